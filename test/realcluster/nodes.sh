#!/bin/bash
# Tests that a worker node joins a cluster with companions: a kubelet with a bootstrap token gets a signed certificate, and
# runs pods that kube-controller-manager created and kube-scheduler assigned. Run it as root on a node of a cluster for
# tests that has the operator; the test runs another kubelet and container runtime on it. Prints the results with their
# durations, and exits at the first failure. Takes one to two minutes.
#
#   KUBECONFIG  of the cluster, as administrator. Needs a default StorageClass that can provide 1 volume of 8Gi, and jq.
#   BIN         directory with kube-controller-manager, kube-scheduler, kubelet, kubectl, pause and runc.
#   LOAD        command that loads an image on the nodes: $LOAD NAME:TAG BINARY. It must honour CONTAINERD_ADDRESS.
#   NAMESPACE: see below. KEEP=1 leaves everything in place at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
KUBECTL=${KUBECTL:-$BIN/kubectl} NAMESPACE=${NAMESPACE:-quorate-nodes} KEEP=${KEEP:-}
WORK=$(mktemp -d)
NODE=joined-node
SOCKET=$WORK/containerd.sock
PIDS=()

k() { "$KUBECTL" -n "$NAMESPACE" "$@"; }                          # the hosting cluster
d() { "$KUBECTL" --kubeconfig "$WORK/admin.kubeconfig" "$@"; }    # the declared cluster
now() { date +%s%N; }
since() { echo "$((($(now) - $1) / 1000000)) ms"; }
say() { printf '%-64s %s\n' "$1" "${2:-}"; }
die() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

finish() {
  local code=$?
  if [ $code != 0 ]; then
    k get asc,deployments,pods -o wide || true
    k get asc -o jsonpath='{range .items[*].status.conditions[*]}{.type}={.status} {.reason}: {.message}{"\n"}{end}' || true
    k logs -l quorate.dev/companion-of=workers --prefix --tail=10 || true
    d get nodes,csr,pods -A -o wide || true
    tail -20 "$WORK"/*.log || true
  fi
  stopNode
  [ -n "$KEEP" ] || rm -rf "$WORK"
}
trap finish EXIT

# stopNode stops the kubelet, its containers and its container runtime.
stopNode() {
  local pid
  [ ${#PIDS[@]} -lt 2 ] || kill "${PIDS[1]}" 2>/dev/null || true
  for task in $(ctr -a "$SOCKET" -n k8s.io tasks ls -q 2>/dev/null); do
    ctr -a "$SOCKET" -n k8s.io tasks kill -s 9 "$task" 2>/dev/null || true
  done
  sleep 1 # shims unmount
  for container in $(ctr -a "$SOCKET" -n k8s.io containers ls -q 2>/dev/null); do
    ctr -a "$SOCKET" -n k8s.io tasks rm -f "$container" >/dev/null 2>&1 || true
    ctr -a "$SOCKET" -n k8s.io containers rm "$container" 2>/dev/null || true
  done
  for pid in "${PIDS[@]}"; do kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; done
  PIDS=()
  mount | awk -v dir="$WORK/" 'index($3, dir) == 1 {print $3}' | sort -r | xargs -r umount -l || true
  ip link del cni-joined 2>/dev/null || true
}

# until_true SECONDS WHAT COMMAND...: waits for the command to succeed.
until_true() {
  local deadline=$((SECONDS + $1)) what=$2; shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || die "timed out waiting for: $what"
    sleep 0.2
  done
}

create() {
  local began; began=$(now)
  $LOAD kube-controller-manager:trial "$BIN/kube-controller-manager" >/dev/null
  $LOAD kube-scheduler:trial "$BIN/kube-scheduler" >/dev/null
  "$KUBECTL" create namespace "$NAMESPACE" >/dev/null
  "$KUBECTL" label namespace "$NAMESPACE" pod-security.kubernetes.io/enforce=restricted >/dev/null
  sed 's|registry.k8s.io/\(.*\):v.*|\1:trial|; s|replicas: 3|replicas: 1|' config/samples/workers.yaml | k apply -f - >/dev/null
  k wait asc/workers --for=condition=Available --timeout=180s >/dev/null || die "not Available"
  say "cluster Available" "$(since "$began")"
  k wait asc/workers --for=condition=CompanionsAvailable --timeout=180s >/dev/null || die "companions are not available"
  say "kube-controller-manager and kube-scheduler available" "$(since "$began")"
  k get secret workers-admin-kubeconfig -o jsonpath='{.data.kubeconfig}' | base64 -d > "$WORK/admin.kubeconfig"
  SERVER=https://$(k get service workers -o jsonpath='{.spec.clusterIP}'):6443
  d config set-cluster workers --server="$SERVER" >/dev/null
  until_true 60 "the default service account, which kube-controller-manager creates" d -n default get serviceaccount default
  until_true 60 "the root CA, which kube-controller-manager publishes" d -n default get configmap kube-root-ca.crt
  ! d -n kube-system get lease quorate-controllers >/dev/null 2>&1 || die "the embedded controllers run too"
}

# token creates a bootstrap token and prints it.
token() {
  local id secret
  id=$(head -c 64 /dev/urandom | sha256sum | head -c 6) secret=$(head -c 64 /dev/urandom | sha256sum | head -c 16)
  d -n kube-system create secret generic "bootstrap-token-$id" --type=bootstrap.kubernetes.io/token \
    --from-literal=token-id="$id" --from-literal=token-secret="$secret" --from-literal=usage-bootstrap-authentication=true \
    --from-literal=usage-bootstrap-signing=true --from-literal=expiration="$(date -u -d '+1 hour' +%Y-%m-%dT%H:%M:%SZ)" >/dev/null
  echo "$id.$secret"
}

# bootstrap writes the files of the node from cluster-info, which an anonymous client can read, the token, and the client
# authority.
bootstrap() {
  local token; token=$(token)
  signed() { curl -sk "$SERVER/api/v1/namespaces/kube-public/configmaps/cluster-info" | jq -e --arg id "jws-kubeconfig-${token%.*}" '.data[$id]'; }
  until_true 60 "the signature of cluster-info by the token" signed
  say "cluster-info readable and signed with the bootstrap token"
  curl -sk "$SERVER/api/v1/namespaces/kube-public/configmaps/cluster-info" | jq -r .data.kubeconfig > "$WORK/bootstrap.kubeconfig"
  local b=("$KUBECTL" --kubeconfig "$WORK/bootstrap.kubeconfig" config)
  # The node does not use the cluster DNS of the hosting cluster.
  "${b[@]}" set-cluster workers --server="$SERVER" >/dev/null
  "${b[@]}" view --raw -o jsonpath='{.clusters[0].cluster.certificate-authority-data}' | base64 -d > "$WORK/ca.crt"
  "${b[@]}" set-cluster workers --server="$SERVER" --certificate-authority="$WORK/ca.crt" >/dev/null
  "${b[@]}" set-credentials kubelet --token="$token" >/dev/null
  "${b[@]}" set-context workers --cluster=workers --user=kubelet >/dev/null
  "${b[@]}" use-context workers >/dev/null
  d -n kube-system get configmap extension-apiserver-authentication -o jsonpath='{.data.client-ca-file}' > "$WORK/client-ca.crt"
}

startNode() {
  mkdir -p "$WORK/cni"
  cat > "$WORK/cni/10-joined.conflist" <<'C'
{"cniVersion":"0.4.0","name":"joined","plugins":[{"type":"bridge","bridge":"cni-joined","isGateway":true,"ipMasq":true,"ipam":{"type":"host-local","ranges":[[{"subnet":"10.87.0.0/24"}]],"routes":[{"dst":"0.0.0.0/0"}]}}]}
C
  containerd config default | sed -e "s#BinaryName = \"\"#BinaryName = \"$BIN/runc\"#" \
    -e 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' -e 's#bin_dir = "/opt/cni/bin"#bin_dir = "/usr/lib/cni"#' \
    -e "s#conf_dir = \"/etc/cni/net.d\"#conf_dir = \"$WORK/cni\"#" -e "s#/run/containerd/containerd.sock#$SOCKET#" \
    -e "s#root = \"/var/lib/containerd\"#root = \"$WORK/containerd\"#" -e "s#state = \"/run/containerd\"#state = \"$WORK/state\"#" > "$WORK/containerd.toml"
  containerd --config "$WORK/containerd.toml" >"$WORK/containerd.log" 2>&1 & PIDS+=($!)
  until_true 30 containerd ctr -a "$SOCKET" version
  CONTAINERD_ADDRESS=$SOCKET $LOAD registry.k8s.io/pause:3.6 "$BIN/pause" >/dev/null
  CONTAINERD_ADDRESS=$SOCKET $LOAD kubectl:trial "$KUBECTL" >/dev/null
  cat > "$WORK/kubelet.yaml" <<Y
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $WORK/client-ca.crt}}
authorization: {mode: Webhook}
rotateCertificates: true
containerRuntimeEndpoint: unix://$SOCKET
port: 10350
healthzPort: 10348
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
Y
  "$BIN/kubelet" --config="$WORK/kubelet.yaml" --bootstrap-kubeconfig="$WORK/bootstrap.kubeconfig" \
    --kubeconfig="$WORK/kubelet.kubeconfig" --hostname-override=$NODE --node-ip="$(nodeIP)" --root-dir="$WORK/kubelet" \
    --cert-dir="$WORK/pki" >"$WORK/kubelet.log" 2>&1 & PIDS+=($!)
}
nodeIP() { "$KUBECTL" get nodes -o jsonpath='{.items[0].status.addresses[?(@.type=="InternalIP")].address}'; }

approved() { d get csr -o json | jq -e '.items[] | select(.spec.signerName == "kubernetes.io/kube-apiserver-client-kubelet") | .status.certificate'; }

join() {
  local began; began=$(now)
  startNode
  until_true 120 "a signed certificate of the kubelet" approved
  until_true 120 "the node to be Ready" d wait node/$NODE --for=condition=Ready --timeout=1s
  say "kubelet joined with a bootstrap token, node Ready" "$(since "$began")"
  d get csr -o custom-columns=REQUESTOR:.spec.username,SIGNER:.spec.signerName,CONDITION:.status.conditions[*].type --no-headers
  openssl x509 -in "$WORK/pki/kubelet-client-current.pem" -noout -subject -issuer -enddate
}

# run creates a Deployment and a Job, as a user would.
run() {
  local began; began=$(now)
  d -n default create deployment web --image=registry.k8s.io/pause:3.6 --replicas=2 >/dev/null
  d -n default rollout status deployment/web --timeout=120s >/dev/null
  say "a Deployment of two pods rolled out" "$(since "$began")"
  d get nodes,pods -A -o wide
  d -n default create job hello --image=kubectl:trial -- kubectl version --client >/dev/null
  until_true 120 "the Job" d -n default wait job/hello --for=condition=Complete --timeout=1s
  local logs; logs=$(d -n default logs job/hello) || die "no logs: $logs"
  [[ $logs == *"Client Version"* ]] || die "logs: $logs"
  say "a Job completed, its logs come from the kubelet" "$(echo "$logs" | head -1)"
  began=$(now)
  d -n default delete deployment web >/dev/null
  until_true 120 "the garbage collector" noPods
  say "the Deployment and, by garbage collection, its pods deleted" "$(since "$began")"
}
noPods() { [ -z "$(d -n default get pods -l app=web -o name)" ]; }

# remove removes the companions, and then deletes the cluster.
remove() {
  local began; began=$(now)
  d -n default delete job hello --wait=false >/dev/null
  k patch asc workers --type=merge -p '{"spec":{"companions":null}}' >/dev/null
  until_true 120 "removed companions" noCompanions
  until_true 120 "embedded controllers" d -n kube-system get lease quorate-controllers
  say "companions removed, the embedded controllers took over" "$(since "$began")"
  ! d -n kube-public get configmap cluster-info >/dev/null 2>&1 || die "cluster-info is left"
  k delete asc workers --timeout=120s >/dev/null
  "$KUBECTL" delete namespace "$NAMESPACE" >/dev/null
}
noCompanions() { [ -z "$(k get deployments -o name)" ] && [ -z "$(k get asc workers -o jsonpath='{.status.companions}')" ] && ! k get secret workers-kubelet-client; }

create
bootstrap
join
run
[ -n "$KEEP" ] || { stopNode; remove; }
