#!/bin/bash
# Tests Quorate on a Kubernetes cluster: installs the image, the manifests and the sample, runs clients, and performs the
# operations of docs/install.md. Prints the results with their durations, and exits at the first failure.
#
#   KUBECONFIG  of the cluster, as administrator. Needs a default StorageClass that can provide 16 volumes of 8Gi, and jq.
#   IMPORT      command that loads the image of release/build.sh on the nodes: $IMPORT FILE, an OCI archive whose annotation
#               names the image, as "ctr -n k8s.io images import" does. Empty: the nodes have, or can pull, $IMAGE.
#   LOAD        command that loads the image of a tool on the nodes: $LOAD NAME:TAG BINARY. The entry point is the static
#               binary at /<its base name>. Empty: the nodes have, or can pull, $CLIENT_IMAGE and $PROBE_IMAGE
#               (test/realcluster/probe).
#   CRASH       command that sends SIGKILL to a container's process: $CRASH NAMESPACE POD. Empty: skipped.
#   SERVER      URL of the sample's Service for this script; default: its cluster IP.
#   MANIFESTS   file to install; default: manifests/install.yaml. manifests/install-namespaced.yaml restricts the operator
#               to $NAMESPACE.
#   ENFORCED    1: the cluster's network enforces NetworkPolicies, so a policy without effect is an error.
#   IMAGE, CLIENT_IMAGE, PROBE_IMAGE, KUBECTL, NAMESPACE: see below. KEEP=1 leaves everything in place at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
IMAGE=${IMAGE:-quorate:v$(cat VERSION)} IMPORT=${IMPORT:-} CLIENT_IMAGE=${CLIENT_IMAGE:-kubectl:trial} PROBE_IMAGE=${PROBE_IMAGE:-probe:trial}
MANIFESTS=${MANIFESTS:-manifests/install.yaml} ENFORCED=${ENFORCED:-} KUBECTL=${KUBECTL:-$(command -v kubectl)}
NAMESPACE=${NAMESPACE:-quorate-trial} KEEP=${KEEP:-}
WORK=$(mktemp -d)
WRITER=

k() { "$KUBECTL" -n "$NAMESPACE" "$@"; }                          # the hosting cluster
d() { "$KUBECTL" --kubeconfig "$WORK/demo.kubeconfig" "$@"; }     # the declared cluster
now() { date +%s%N; }
since() { echo "$((($(now) - $1) / 1000000)) ms"; }
say() { printf '%-64s %s\n' "$1" "${2:-}"; }
die() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

finish() {
  local code=$?
  [ -z "$WRITER" ] || kill "$WRITER" 2>/dev/null || true
  if [ $code != 0 ]; then
    k get asc,pods,pvc,svc,pdb -o wide || true
    k get asc -o jsonpath='{range .items[*].status.conditions[*]}{.type}={.status} {.reason}: {.message}{"\n"}{end}' || true
    k get events --sort-by=.metadata.creationTimestamp | tail -30 || true
    "$KUBECTL" -n quorate-system logs -l app.kubernetes.io/name=quorate-operator --prefix --tail=20 || true
  fi
  rm -rf "$WORK"
}
trap finish EXIT

# until_true SECONDS WHAT COMMAND...: waits for the command to succeed.
until_true() {
  local deadline=$((SECONDS + $1)) what=$2; shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || die "timed out waiting for: $what"
    sleep 0.2
  done
}

# settled N VOTERS: the cluster matches its spec with N replicas and VOTERS voters.
settled() {
  k get asc demo -o json | jq -e --argjson n "$1" --argjson voters "$2" '
    .status.observedGeneration == .metadata.generation and .status.ready == "\($n)/\($n)" and .status.voters == $voters
    and ([.status.conditions[] | {(.type): .status}] | add | .Available == "True" and .Progressing == "False" and .Degraded == "False" and .EtcdQuorum == "True")
    and ([.status.members[] | select(.ready)] | length == $voters)' >/dev/null && [ "$(k get pods -l quorate.dev/cluster=demo --no-headers | wc -l)" = "$1" ]
}

# change WHAT N VOTERS COMMAND...: runs the command and waits until the cluster is settled.
change() {
  local what=$1 n=$2 voters=$3 began; shift 3
  began=$(now)
  "$@" >/dev/null
  sleep 0.3 # until the status is updated
  until_true 300 "$what" settled "$n" "$voters"
  say "$what" "$(since "$began"), longest without a write $(gap "$began") ms"
}

# gap TIME: the longest time since TIME without an acknowledged write, in milliseconds.
gap() {
  awk -v from="$(($1 / 1000000))" -v end="$(date +%s%3N)" '
    {if ($2 > from) {since = t > from ? t : from; if ($2 - since > m) m = $2 - since}; t = $2}
    END {since = t > from ? t : from; if (end - since > m) m = end - since; print m + 0}' "$WORK/acknowledged"
}

leader() { k get asc demo -o jsonpath='{.status.members[?(@.role=="leader")].name}'; }
follower() { k get asc demo -o jsonpath='{.status.members[?(@.role=="voter")].name}' | cut -d' ' -f1; }

install() {
  if [ -n "$IMPORT" ]; then
    local version=${IMAGE##*:v}
    DIST=$WORK/dist ARCHITECTURES=$(go env GOARCH) IMAGE=${IMAGE%:v*} VERSION=$version TAG=v$version release/build.sh image >/dev/null
    $IMPORT "$WORK/dist/quorate-v$version-image.tar" >/dev/null
  fi
  if [ -n "${LOAD:-}" ]; then
    cp "$KUBECTL" "$WORK/kubectl" && $LOAD "$CLIENT_IMAGE" "$WORK/kubectl" >/dev/null
    CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$WORK/probe" ./test/realcluster/probe
    $LOAD "$PROBE_IMAGE" "$WORK/probe" >/dev/null
  fi
  "$KUBECTL" create namespace "$NAMESPACE" >/dev/null
  "$KUBECTL" label namespace "$NAMESPACE" pod-security.kubernetes.io/enforce=restricted >/dev/null
  until_true 30 "the namespace" k get serviceaccount default
  contents > "$WORK/before"
  sed "s|quorate:latest|$IMAGE|; s|quorate-clusters|$NAMESPACE|" "$MANIFESTS" | "$KUBECTL" apply -f - >/dev/null
  local began; began=$(now)
  "$KUBECTL" -n quorate-system rollout status deployment/quorate-operator --timeout=180s >/dev/null
  [ "$("$KUBECTL" get namespace quorate-system -o jsonpath='{.metadata.labels.pod-security\.kubernetes\.io/enforce}')" = restricted ] ||
    die "quorate-system does not enforce the restricted pod security standard"
  say "$MANIFESTS applied, operator ready" "$(since "$began")"
}

# contents lists the objects of the namespace, except for events.
contents() {
  k get pods,persistentvolumeclaims,secrets,services,endpointslices,poddisruptionbudgets,networkpolicies,configmaps,leases -o name | sort
}

create() {
  local began; began=$(now)
  k apply -f config/samples/demo.yaml >/dev/null
  k wait asc/demo --for=condition=Available --timeout=180s >/dev/null || die "not Available"
  say "sample Available" "$(since "$began")"
  until_true 120 "three members" settled 3 3
  say "sample 3/3, three voters" "$(since "$began")"
}

connect() {
  k get secret demo-admin-kubeconfig -o jsonpath='{.data.kubeconfig}' | base64 -d > "$WORK/demo.kubeconfig"
  local server=${SERVER:-https://$(k get service demo -o jsonpath='{.spec.clusterIP}'):6443}
  "$KUBECTL" --kubeconfig "$WORK/demo.kubeconfig" config set-cluster demo --server="$server" >/dev/null
  d create namespace team-a >/dev/null
  d get --raw /readyz >/dev/null
  say "kubectl from outside, through the Service"
  k apply -f - >/dev/null <<Y
apiVersion: v1
kind: Pod
metadata: {name: client}
spec:
  restartPolicy: Never
  automountServiceAccountToken: false
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  volumes: [{name: kubeconfig, secret: {secretName: demo-admin-kubeconfig}}, {name: tmp, emptyDir: {}}]
  containers:
  - name: kubectl
    image: $CLIENT_IMAGE
    imagePullPolicy: IfNotPresent
    args: [--kubeconfig=/kubeconfig/kubeconfig, --cache-dir=/tmp, get, namespace, team-a]
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    volumeMounts: [{name: kubeconfig, mountPath: /kubeconfig}, {name: tmp, mountPath: /tmp}]
Y
  k wait pod/client --for=jsonpath='{.status.phase}'=Succeeded --timeout=60s >/dev/null || die "kubectl in a pod: $(k logs client)"
  k delete pod client --wait=false >/dev/null
  say "kubectl from inside a pod, with the Secret's kubeconfig"
}

# probe ARGUMENT...: runs the probe in a pod with the labels $LABELS and the service account $ACCOUNT, and prints its output.
LABELS= ACCOUNT=default
probe() {
  local arguments; arguments=$(printf '"%s",' "$@")
  k apply -f - >/dev/null <<Y
apiVersion: v1
kind: Pod
metadata: {name: probe, labels: {$LABELS}}
spec:
  restartPolicy: Never
  serviceAccountName: $ACCOUNT
  securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
  volumes: [{name: trust, configMap: {name: trust, optional: true}}]
  containers:
  - name: probe
    image: $PROBE_IMAGE
    imagePullPolicy: IfNotPresent
    args: [$arguments]
    securityContext: {allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
    volumeMounts: [{name: trust, mountPath: /trust}]
Y
  k wait pod/probe --for=jsonpath='{.status.containerStatuses[0].state.terminated}' --timeout=60s >/dev/null || die "no probe"
  k logs probe
  k delete pod probe --now >/dev/null
}

# network connects to the ports of a member from an unrelated pod, and from a pod with the labels of a server.
network() {
  local address stranger server
  address=$(k get pod "$(leader)" -o jsonpath='{.status.podIP}')
  stranger=$(probe dial "$address:6443" "$address:2379" "$address:2380" | sed 's/.*://' | paste -sd,)
  server=$(LABELS='quorate.dev/cluster: demo, quorate.dev/role: server' probe dial "$address:6443" "$address:2379" "$address:2380" | sed 's/.*://' | paste -sd,)
  say "a member's ports from another pod" "$stranger"
  say "a member's ports from a pod with a server's labels" "$server"
  [[ $stranger == "6443 open,"* ]] || die "the API is closed to a pod"
  [ -z "$ENFORCED" ] || [ "$stranger" = "6443 open,2379 closed,2380 closed" ] || die "etcd's ports are open to every pod"
  [ -z "$ENFORCED" ] || [ "$server" = "6443 open,2379 open,2380 closed" ] || die "etcd's ports as a server sees them"
}

# metrics reads the operator's metrics in a pod, with an authorized and with an unauthorized token.
metrics() {
  local url=https://quorate-operator-metrics.quorate-system.svc:8443/metrics token=/var/run/secrets/kubernetes.io/serviceaccount/token
  "$KUBECTL" -n quorate-system get secret quorate-operator-metrics -o jsonpath='{.data.ca\.crt}' | base64 -d > "$WORK/ca.crt"
  k create configmap trust --from-file=ca.crt="$WORK/ca.crt" >/dev/null
  k create serviceaccount scraper >/dev/null
  "$KUBECTL" create clusterrolebinding "$NAMESPACE-scraper" --clusterrole=quorate-metrics-reader --serviceaccount="$NAMESPACE:scraper" >/dev/null
  ACCOUNT=scraper probe scrape $url /trust/ca.crt $token > "$WORK/metrics"
  grep -q '^controller_runtime_' "$WORK/metrics" || die "no metrics: $(head -3 "$WORK/metrics")"
  local refused; refused=$(probe scrape $url /trust/ca.crt $token)
  [[ $refused == *"403 Forbidden"* ]] || die "metrics without rights: $(head -3 <<<"$refused")"
  "$KUBECTL" delete clusterrolebinding "$NAMESPACE-scraper" >/dev/null
  k delete configmap/trust serviceaccount/scraper >/dev/null
  say "metrics over TLS with an authorized token" "$(grep -c '^[a-z]' "$WORK/metrics") lines"
}

# write creates one object after the other, and records the acknowledged ones with their times.
write() {
  local i=0
  while :; do
    i=$((i + 1))
    if d -n team-a create configmap "w-$i" --request-timeout=2s >/dev/null 2>&1; then
      echo "w-$i $(date +%s%3N)"
    fi
  done >> "$WORK/acknowledged"
}

written() {
  kill "$WRITER"; wait "$WRITER" 2>/dev/null || true; WRITER=
  d -n team-a get configmaps -o name | sed 's|.*/||' | sort > "$WORK/found"
  cut -d' ' -f1 "$WORK/acknowledged" | sort > "$WORK/wanted"
  local lost; lost=$(comm -23 "$WORK/wanted" "$WORK/found")
  [ -z "$lost" ] || die "acknowledged writes are gone: $lost"
  say "no acknowledged write lost" "of $(wc -l < "$WORK/wanted")"
}

evict() {
  k create --raw "/api/v1/namespaces/$NAMESPACE/pods/$1/eviction" -f - <<<"{\"apiVersion\":\"policy/v1\",\"kind\":\"Eviction\",\"metadata\":{\"name\":\"$1\"}}"
}

evictTwo() {
  evict "$1"
  local reply; reply=$(evict "$2" 2>&1) && die "a second eviction was allowed"
  [[ $reply == *"disruption budget"* ]] || die "second eviction: $reply"
}

crashLeader() {
  local name; name=$(leader)
  local before; before=$(restarts "$name")
  $CRASH "$NAMESPACE" "$name"
  until_true 60 "a restart of $name" restarted "$name" "$before"
}
restarts() { k get pod "$1" -o jsonpath='{.status.containerStatuses[0].restartCount}'; }
restarted() { [ "$(restarts "$1")" -gt "$2" ]; }

loseVolume() {
  local name; name=$(follower)
  k delete pvc "$name" --wait=false
  until_true 120 "$name to go" gone "$name"
}

gone() { ! k get pvc "$1" && ! k get pod "$1"; }

invalid() {
  k get asc demo -o json | jq -e '[.status.conditions[] | select(.type == "Degraded")][0] | .status == "True" and .reason == "InvalidSpec"'
}

badSpec() {
  local before; before=$(k get pods -l quorate.dev/cluster=demo -o jsonpath='{.items[*].metadata.uid}')
  k patch asc demo --type=merge -p '{"spec":{"replicas":1,"extraArgs":{"no-such-flag":"1"}}}' >/dev/null
  until_true 30 "InvalidSpec" invalid
  k get asc demo -o jsonpath='{.status.conditions[?(@.type=="Degraded")].message}' && echo
  sleep 2 # time for unwanted changes
  [ "$before" = "$(k get pods -l quorate.dev/cluster=demo -o jsonpath='{.items[*].metadata.uid}')" ] || die "a bad spec changed pods"
  local reply; reply=$(k patch asc demo --type=merge -p '{"spec":{"extraArgs":{"etcd-name":"x"}}}' 2>&1) && die "the schema let a reserved flag through"
  say "an invalid spec is reported and changes nothing"
}

# rolled reports whether every replica has the present arguments.
rolled() { [ "$(k get pods -l quorate.dev/cluster=demo -o json | jq '[.items[] | select(.spec.containers[0].args | index("--max-requests-inflight=321"))] | length')" = 3 ]; }
roll() {
  k patch asc demo --type=merge -p '{"spec":{"extraArgs":{"max-requests-inflight":"321"}}}'
  until_true 300 "the rollout" rolled
}

# names adds a name to the serving certificate, which every replica loads without a restart.
names() {
  local pods; pods=$(k get pods -l quorate.dev/cluster=demo -o jsonpath='{.items[*].metadata.uid}')
  k patch asc demo --type=merge -p '{"spec":{"extraSANs":["trial.example"]}}' >/dev/null
  local i; for i in 1 2 3 4 5 6; do # the Service selects a replica at random
    until_true 120 "the name in the certificate" d --tls-server-name=trial.example get --raw /livez
  done
  [ "$pods" = "$(k get pods -l quorate.dev/cluster=demo -o jsonpath='{.items[*].metadata.uid}')" ] || die "a certificate restarted pods"
}

holder() { "$KUBECTL" -n quorate-system get lease operator.quorate.dev -o jsonpath='{.spec.holderIdentity}' | sed 's/_.*//'; }
otherHolder() { local h; h=$(holder); [ -n "$h" ] && [ "$h" != "$1" ]; }
handOver() {
  local began old; began=$(now) old=$(holder)
  "$KUBECTL" -n quorate-system delete pod "$old" --wait=false >/dev/null
  until_true 60 "another operator" otherHolder "$old"
  say "the operator's leader deleted, another one leads" "$(since "$began")"
}

# rights checks that the operator had all permissions that it needed.
rights() {
  local refused; refused=$("$KUBECTL" -n quorate-system logs -l app.kubernetes.io/name=quorate-operator --tail=-1 | grep -i forbidden | head -3 || true)
  [ -z "$refused" ] || die "the operator lacks rights: $refused"
  say "no request of the operator was forbidden"
}

remove() {
  local began; began=$(now)
  k delete asc demo --timeout=120s >/dev/null
  until_true 120 "an empty namespace" empty
  say "deleted, no objects remain" "$(since "$began")"
}
empty() { contents | diff "$WORK/before" - >/dev/null; }

removeBroken() {
  k apply -f config/samples/demo.yaml >/dev/null
  k patch asc demo --type=merge -p '{"spec":{"image":"no.such/image:1","imagePullPolicy":"Never"}}' >/dev/null
  until_true 60 "failing pods" failing
  remove
}
failing() { k get asc demo -o json | jq -e '[.status.conditions[] | select(.type == "Degraded")][0].reason == "PodsFailing"'; }

uninstall() {
  "$KUBECTL" delete namespace "$NAMESPACE" >/dev/null
  sed "s|quorate-clusters|$NAMESPACE|" "$MANIFESTS" | "$KUBECTL" delete --ignore-not-found -f - >/dev/null
  say "uninstalled"
}

install
create
connect
network
metrics
write & WRITER=$!
until_true 10 "a write" test -s "$WORK/acknowledged"
change "scaled to 5" 5 5 k scale asc/demo --replicas=5
change "scaled to 3" 3 3 k scale asc/demo --replicas=3
change "scaled to 1" 1 1 k scale asc/demo --replicas=1
change "scaled to 3" 3 3 k scale asc/demo --replicas=3
change "scaled to 4: three voters and a server" 4 3 k scale asc/demo --replicas=4
change "scaled to 3" 3 3 k scale asc/demo --replicas=3
change "a follower's pod deleted" 3 3 k delete pod "$(follower)"
change "the leader's pod deleted" 3 3 k delete pod "$(leader)"
change "one of two evicted" 3 3 evictTwo "$(follower)" "$(leader)"
[ -z "${CRASH:-}" ] || change "the leader's process killed" 3 3 crashLeader
change "a member's claim deleted, the member replaced" 3 3 loseVolume
badSpec
change "spec corrected" 3 3 k patch asc demo --type=merge -p '{"spec":{"replicas":3,"extraArgs":null}}'
change "arguments rolled out" 3 3 roll
change "a name added to the serving certificate" 3 3 names
handOver
change "scaled to 1 by the other operator" 1 1 k scale asc/demo --replicas=1
written
rights
[ -z "$KEEP" ] || { KEEP=; exit 0; }
remove
removeBroken
uninstall
