#!/bin/bash
# Tests an API server with the components of a node: kubelet, container runtime, kube-proxy and cluster DNS. Run it on the
# node of a single-node cluster whose kube-apiserver was replaced by `quorate apiserver` (through a link named
# kube-apiserver), and again with kube-apiserver: the results must be the same. Prints the results with their durations,
# continues after failures, and finally prints the number of failures.
#
#   KUBECONFIG  of the cluster, as administrator. Needs curl and jq.
#   LOAD        command that loads an image on the node: $LOAD NAME:TAG BINARY. The static binary is the entry point.
#   KUBECTL, NAMESPACE: see below.
set -uo pipefail
cd "$(dirname "$0")/../.."
KUBECTL=${KUBECTL:-$(command -v kubectl)} NAMESPACE=${NAMESPACE:-kubelet-trial}
WORK=$(mktemp -d)
FAILURES=0

k() { "$KUBECTL" -n "$NAMESPACE" "$@"; }
now() { date +%s%N; }
since() { echo "$((($(now) - $1) / 1000000)) ms"; }

finish() {
  "$KUBECTL" delete namespace "$NAMESPACE" --ignore-not-found --wait=false >/dev/null 2>&1
  "$KUBECTL" delete clusterrolebinding "$NAMESPACE" --ignore-not-found >/dev/null 2>&1
  rm -rf "$WORK"
}
trap finish EXIT

# try WHAT COMMAND...: runs the command and prints its result.
try() {
  local what=$1 began; shift
  began=$(now)
  if "$@" >"$WORK/out" 2>&1; then
    printf '%-60s %s\n' "$what" "$(since "$began")"
  else
    FAILURES=$((FAILURES + 1))
    printf '%-60s FAILED\n' "$what"
    tail -5 "$WORK/out" | sed 's/^/    /'
  fi
}

# soon COMMAND...: retries a command until it succeeds, for 30 seconds.
soon() { within 30 "$@"; }

# within SECONDS COMMAND...: the same with another timeout.
within() {
  local deadline=$((SECONDS + $1)); shift
  until "$@"; do
    [ $SECONDS -lt $deadline ] || return 1
    sleep 0.2
  done
}

# says TEXT COMMAND...: checks that the command succeeds and prints a text.
says() {
  local text=$1 output; shift
  output=$("$@" 2>&1) || { echo "$output"; return 1; }
  [[ $output == *"$text"* ]] || { echo "no $text in: $output"; return 1; }
}

image() {
  CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$WORK/probe" ./test/realcluster/probe && $LOAD probe:trial "$WORK/probe"
}

prepare() {
  "$KUBECTL" create namespace "$NAMESPACE" && soon k get serviceaccount default
}

deploy() {
  k apply -f - <<Y
apiVersion: apps/v1
kind: Deployment
metadata: {name: web}
spec:
  replicas: 2
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec:
      terminationGracePeriodSeconds: 5
      containers:
      - name: web
        image: probe:trial
        imagePullPolicy: IfNotPresent
        args: [serve, one]
        ports: [{containerPort: 8080}]
        readinessProbe: {httpGet: {path: /ready, port: 8080}, periodSeconds: 1}
        volumeMounts: [{name: settings, mountPath: /settings}]
      volumes: [{name: settings, configMap: {name: settings}}]
---
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {key: value}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
Y
  k rollout status deployment/web --timeout=60s
}

pod() { k get pods -l app=web --field-selector=status.phase=Running --sort-by=.metadata.creationTimestamp -o jsonpath='{.items[-1:].metadata.name}'; }
inside() { k exec "$(pod)" -- /probe "$@"; }

code() { inside exit 3; [ $? = 3 ]; }
stdin() { [ "$(echo "through and back" | k exec -i "$(pod)" -- /probe cat)" = "through and back" ]; }
large() { head -c 5000000 /dev/urandom >"$WORK/sent" && k exec -i "$(pod)" -- /probe cat <"$WORK/sent" | cmp - "$WORK/sent"; }
terminal() { says typed script -qec "$KUBECTL -n $NAMESPACE exec -it $(pod) -- /probe cat" /dev/null <<<$'typed\n\004'; }

# follow checks that logs -f prints a line that is written after it has started.
follow() {
  local name; name=$(pod)
  k logs -f "$name" >"$WORK/follow" & local reader=$!
  soon grep -q "is served by" "$WORK/follow" && k get --raw "/api/v1/namespaces/$NAMESPACE/pods/$name:8080/proxy/followed" >/dev/null &&
    soon grep -q followed "$WORK/follow"
  local result=$?
  kill $reader; wait $reader 2>/dev/null
  return $result
}

forward() { # TARGET PORT
  k port-forward "$1" ":$2" >"$WORK/forward" 2>&1 & local forwarder=$!
  soon grep -q Forwarding "$WORK/forward"
  local port; port=$(sed -n 's/.*127.0.0.1:\([0-9]*\).*/\1/p' "$WORK/forward" | head -1)
  says "one from" curl -s --max-time 2 "http://127.0.0.1:$port/" && says "one from" curl -s --max-time 2 "http://127.0.0.1:$port/again"
  local result=$?
  kill $forwarder; wait $forwarder 2>/dev/null
  return $result
}

proxied() { says "$1" "$KUBECTL" get --raw "$2"; }
address() { k get service web -o jsonpath='{.spec.clusterIP}'; }
asAccount() {
  "$KUBECTL" create clusterrolebinding "$NAMESPACE" --clusterrole=view --serviceaccount="$NAMESPACE:default" &&
    soon says '"kind":"ConfigMapList"' inside api "/api/v1/namespaces/$NAMESPACE/configmaps"
}
roll() {
  k patch deployment web --type=json -p '[{"op":"replace","path":"/spec/template/spec/containers/0/args","value":["serve","two"]}]' &&
    k rollout status deployment/web --timeout=90s && soon says "two from" curl -s --max-time 2 "http://$(address)/"
}
undo() { k rollout undo deployment/web && k rollout status deployment/web --timeout=90s && soon says "one from" curl -s --max-time 2 "http://$(address)/"; }
# changed checks that the kubelet updates a ConfigMap volume of a running pod at its next sync.
changed() {
  says value inside read /settings/key && k patch configmap settings -p '{"data":{"key":"other"}}' &&
    k annotate pods -l app=web look=again --overwrite && within 90 says other inside read /settings/key
}
job() {
  k create -f - <<Y && k wait job/once --for=condition=Complete --timeout=60s && says "one from" k logs job/once
apiVersion: batch/v1
kind: Job
metadata: {name: once}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: c, image: "probe:trial", imagePullPolicy: IfNotPresent, args: [get, "http://web/"]}]}}}
Y
}
crashing() {
  k create -f - <<Y
apiVersion: v1
kind: Pod
metadata: {name: crash}
spec: {containers: [{name: c, image: "probe:trial", imagePullPolicy: IfNotPresent, args: [exit, "7"]}]}
Y
}
restart() {
  crashing && soon says 1 k get pod crash -o jsonpath='{.status.containerStatuses[0].restartCount}' &&
    soon says "ends with 7" k logs crash --previous && k delete pod crash --now
}
events() { says Started k get events --field-selector=reason=Started; }
graceful() { local name; name=$(pod); k delete pod "$name" --timeout=60s && k rollout status deployment/web --timeout=60s; }
# restricted checks that a node can read only the ConfigMaps that its pods mount.
restricted() {
  local node; node=$("$KUBECTL" get nodes -o jsonpath='{.items[0].metadata.name}')
  local node=("--as=system:node:$node" --as-group=system:nodes)
  k create configmap unmounted && k get configmap settings "${node[@]}" -o name || return 1
  ! says Forbidden k get configmap unmounted "${node[@]}" && grep -q 'no relationship found between node' <(k get configmap unmounted "${node[@]}" 2>&1)
}
drain() {
  local node; node=$("$KUBECTL" get nodes -o jsonpath='{.items[0].metadata.name}')
  "$KUBECTL" drain "$node" --pod-selector=app=web --timeout=60s
  local result=$?
  "$KUBECTL" uncordon "$node" && [ $result = 0 ] && k rollout status deployment/web --timeout=60s
}
remove() { "$KUBECTL" delete namespace "$NAMESPACE" --timeout=120s; }

"$KUBECTL" get nodes -o wide
try "the node is ready" "$KUBECTL" wait node --all --for=condition=Ready --timeout=60s
try "image" image
try "namespace with its service account" prepare
try "deployment with volume, probes and Service" deploy
try "logs" says "is served by" k logs "$(pod)"
try "logs of the last line, with times" says 20 k logs "$(pod)" --tail=1 --timestamps
try "logs -f" follow
try "exec" says "one from" inside get http://127.0.0.1:8080/
try "exec: exit code" code
try "exec: standard input" stdin
try "exec: 5 MB both ways" large
try "exec: terminal" terminal
try "port-forward to a pod" forward "pod/$(pod)" 8080
try "port-forward to a Service" forward service/web 80
try "proxy to a pod" proxied "one from" "/api/v1/namespaces/$NAMESPACE/pods/http:$(pod):8080/proxy/"
try "proxy to a Service" proxied "one from" "/api/v1/namespaces/$NAMESPACE/services/http:web:80/proxy/"
try "proxy to the node" proxied ok "/api/v1/nodes/$("$KUBECTL" get nodes -o jsonpath='{.items[0].metadata.name}')/proxy/healthz"
try "Service address from the node" soon says "one from" curl -s --max-time 2 "http://$(address)/"
try "Service by its name from a pod" soon says "one from" inside get http://web/
try "the API server from a pod, as its service account" asAccount
try "job, and its logs" job
try "restart of a container, and its previous logs" restart
try "events of the kubelet" events
try "rollout" roll
try "rollout undone" undo
try "a configuration changed" changed
try "pod deleted gracefully" graceful
try "drain and uncordon" drain
try "permissions of nodes" restricted
try "namespace deleted" remove
echo "$FAILURES failures"
[ $FAILURES = 0 ]
