#!/bin/bash
# Runs Kubernetes 1.37.2 with containerd on this machine, as the test cluster of the other scripts: one node, CoreDNS, a
# StorageClass of directories, and no network policies. Its programs are built from published Go modules; the container
# runtime is the distribution's package, with state and a socket of its own. Needs root, Go, gcc, openssl, iptables and jq.
#
#   machine.sh setup                  installs packages (with apt-get, if containerd is missing) and builds programs into $BIN
#   machine.sh former VERSION         builds the kubelet of another release as $BIN/kubelet-VERSION; suits as KUBELET
#   machine.sh up                     starts the cluster; its administrator's kubeconfig is $RUN/admin.kubeconfig. APISERVER
#                                     and KUBELET are programs that take the places of kube-apiserver and of kubelet
#   machine.sh image NAME:TAG BINARY  packs a static binary as an image of the node; suits as LOAD of the other scripts
#   machine.sh import ARCHIVE         imports an OCI archive; suits as IMPORT
#   machine.sh crash NAMESPACE POD    sends SIGKILL to the process of a pod's container; suits as CRASH
#   machine.sh volumes N              creates N volumes of 10Gi of the default StorageClass
#   machine.sh down                   stops everything that up started, and deletes $RUN
#
# Pods have addresses in 10.88.0.0/16, Services in 10.96.0.0/16; the node is 10.99.0.1.
set -euo pipefail
BIN=${BIN:-/tmp/quorate-cluster-bin} RUN=${RUN:-/tmp/quorate-cluster} HOST=10.99.0.1 PORT=${PORT:-36443}
VERSION=v1.37.2 ETCD=v3.7.3 COREDNS=v1.15.0 RUNC=v1.5.2
export CONTAINERD_ADDRESS=${CONTAINERD_ADDRESS:-$RUN/containerd.sock} KUBECONFIG=$RUN/admin.kubeconfig PATH=$BIN:$PATH
cd "$(dirname "$0")"

die() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

# until_true SECONDS WHAT COMMAND...: waits for the command to succeed.
until_true() {
  local deadline=$((SECONDS + $1)) what=$2; shift 2
  until "$@" >/dev/null 2>&1; do
    [ $SECONDS -lt $deadline ] || { tail -5 "$RUN"/log/*.log >&2; die "timed out waiting for: $what"; }
    sleep 0.2
  done
}

setup() {
  mkdir -p "$BIN/src/etcd" "$BIN/src/pause"
  if ! command -v containerd >/dev/null; then apt-get update -q && apt-get install -y -q containerd; fi
  apt-get install -y -q containernetworking-plugins iptables conntrack libseccomp-dev pkg-config gcc jq
  kubernetes "$VERSION" "$BIN/src/kubernetes" "" kube-apiserver kube-controller-manager kube-scheduler kube-proxy kubelet kubectl
  [ -x "$BIN/etcd" ] || (
    cd "$BIN/src/etcd" && printf 'module etcd\n\ngo 1.26.0\n' > go.mod
    GOFLAGS=-mod=mod go get "go.etcd.io/etcd/server/v3@$ETCD" && GOFLAGS=-mod=mod CGO_ENABLED=0 go build -o "$BIN/etcd" go.etcd.io/etcd/server/v3
  )
  [ -x "$BIN/coredns" ] || GOBIN=$BIN CGO_ENABLED=0 go install "github.com/coredns/coredns@$COREDNS"
  [ -x "$BIN/runc" ] || GOBIN=$BIN CGO_ENABLED=1 go install -tags seccomp "github.com/opencontainers/runc@$RUNC"
  [ -x "$BIN/pause" ] || (
    cd "$BIN/src/pause" && printf 'module pause\n\ngo 1.26.0\n' > go.mod
    printf 'package main\n\nimport (\n\t"os"\n\t"os/signal"\n\t"syscall"\n)\n\nfunc main() {\n\tc := make(chan os.Signal, 1)
\tsignal.Notify(c, syscall.SIGINT, syscall.SIGTERM)\n\t<-c\n}\n' > main.go
    CGO_ENABLED=0 go build -o "$BIN/pause" .
  )
}

# kubernetes VERSION DIRECTORY SUFFIX COMPONENT...: builds components with their version, which OLM compares with
# minKubeVersion, in a module in the directory.
kubernetes() {
  local release=$1 directory=$2 suffix=$3 component specification; shift 3
  local minor=${release#v1.} package=k8s.io/component-base/version
  local version="-X $package.gitVersion=$release -X $package.gitMajor=1 -X $package.gitMinor=${minor%%.*}"
  mkdir -p "$directory"
  cd "$directory"
  if [ ! -f go.mod ]; then
    specification=$(go mod download -json "k8s.io/kubernetes@$release" | sed -n 's/.*"GoMod": "\(.*\)".*/\1/p')
    printf 'module cluster\n\ngo 1.26.0\n\nrequire k8s.io/kubernetes %s\n' "$release" > go.mod
    { echo 'replace ('; grep -E '=> \./staging' "$specification" | awk -v v="v0.$minor" '{print "\t"$1" => "$1" "v}'; echo ')'; } >> go.mod
  fi
  for component; do
    [ -x "$BIN/$component$suffix" ] ||
      GOFLAGS=-mod=mod CGO_ENABLED=0 go build -ldflags "$version" -o "$BIN/$component$suffix" "k8s.io/kubernetes/cmd/$component"
  done
  cd - >/dev/null
}

former() { kubernetes "$1" "$BIN/src/kubernetes-$1" "-$1" kubelet; }

# issue NAME USER GROUP NAMES: a certificate, and a kubeconfig that uses it.
issue() {
  openssl req -newkey rsa:2048 -nodes -keyout "pki/$1.key" -out "pki/$1.csr" -subj "/O=$3/CN=$2" 2>/dev/null
  openssl x509 -req -in "pki/$1.csr" -CA pki/ca.crt -CAkey pki/ca.key -CAcreateserial -days 30 -out "pki/$1.crt" \
    -extfile <(printf 'extendedKeyUsage=clientAuth,serverAuth\n%s\n' "${4:+subjectAltName=$4}") 2>/dev/null
  cat > "$1.kubeconfig" <<K
apiVersion: v1
kind: Config
clusters: [{name: cluster, cluster: {server: "https://$HOST:$PORT", certificate-authority: $RUN/pki/ca.crt}}]
users: [{name: user, user: {client-certificate: $RUN/pki/$1.crt, client-key: $RUN/pki/$1.key}}]
contexts: [{name: context, context: {cluster: cluster, user: user}}]
current-context: context
K
}

certificates() {
  openssl req -x509 -newkey rsa:2048 -nodes -keyout pki/ca.key -out pki/ca.crt -days 30 -subj /CN=cluster 2>/dev/null
  issue apiserver kube-apiserver none "IP:$HOST,IP:127.0.0.1,IP:10.96.0.1,DNS:kubernetes,DNS:kubernetes.default,DNS:kubernetes.default.svc,DNS:localhost"
  issue admin admin system:masters
  issue kcm system:kube-controller-manager system:kube-controller-manager
  issue scheduler system:kube-scheduler system:kube-scheduler
  issue proxy system:kube-proxy system:kube-proxy
  issue kubelet system:node:node-a system:nodes "DNS:node-a,IP:$HOST"
  issue frontproxy front-proxy-client none
  openssl genrsa -out pki/sa.key 2048 2>/dev/null
  openssl rsa -in pki/sa.key -pubout -out pki/sa.pub 2>/dev/null
}

# start NAME COMMAND...: starts a program that down stops.
start() {
  local name=$1; shift
  setsid "$@" > "$RUN/log/$name.log" 2>&1 < /dev/null &
  echo $! > "$RUN/$name.pid"
}

up() {
  mkdir -p "$RUN/pki" "$RUN/log"
  cd "$RUN"
  ip link show quorate0 >/dev/null 2>&1 || { ip link add quorate0 type bridge && ip addr add "$HOST/32" dev quorate0 && ip link set quorate0 up; }
  sysctl -qw net.ipv4.ip_forward=1
  sysctl -qw net.bridge.bridge-nf-call-iptables=1 2>/dev/null || true # without the module, packets on a bridge skip iptables
  [ -f pki/ca.crt ] || certificates
  runtime
  controlPlane
  node
  until_true 120 "the node" bash -c 'kubectl get node node-a | grep -q " Ready"'
  until_true 60 "the service account of pods" kubectl get serviceaccount default
}

runtime() {
  mkdir -p /etc/cni/net.d
  cat > /etc/cni/net.d/10-quorate.conflist <<'C'
{"cniVersion":"0.4.0","name":"quorate","plugins":[{"type":"bridge","bridge":"cni-quorate","isGateway":true,"ipMasq":true,"hairpinMode":true,
 "ipam":{"type":"host-local","ranges":[[{"subnet":"10.88.0.0/16"}]],"routes":[{"dst":"0.0.0.0/0"}]}},{"type":"portmap","capabilities":{"portMappings":true}}]}
C
  containerd config default | sed -e "s#BinaryName = ['\"]['\"]#BinaryName = '$BIN/runc'#" -e 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' \
    -e "s#/opt/cni/bin#/usr/lib/cni#g" -e "s#^root = .*#root = '$RUN/containerd'#" -e "s#^state = .*#state = '$RUN/containerd-state'#" \
    -e "s#/run/containerd/containerd.sock#$CONTAINERD_ADDRESS#" > containerd.toml
  start containerd containerd --config "$RUN/containerd.toml"
  until_true 60 containerd ctr version
  image registry.k8s.io/pause:3.6 "$BIN/pause"
  image "$(sed -nE "s/.*sandbox(_image)? = ['\"]([^'\"]+)['\"].*/\2/p" containerd.toml | head -1)" "$BIN/pause"
}

controlPlane() {
  start etcd etcd --name=cluster --data-dir "$RUN/etcd" --listen-client-urls http://127.0.0.1:33790 --advertise-client-urls http://127.0.0.1:33790 \
    --listen-peer-urls http://127.0.0.1:33800 --initial-advertise-peer-urls http://127.0.0.1:33800 --initial-cluster cluster=http://127.0.0.1:33800 --log-level warn
  start apiserver "${APISERVER:-kube-apiserver}" --etcd-servers=http://127.0.0.1:33790 --secure-port="$PORT" --advertise-address=$HOST \
    --client-ca-file=pki/ca.crt --tls-cert-file=pki/apiserver.crt --tls-private-key-file=pki/apiserver.key \
    --service-account-key-file=pki/sa.pub --service-account-signing-key-file=pki/sa.key --service-account-issuer=https://kubernetes.default.svc.cluster.local \
    --authorization-mode=Node,RBAC --service-cluster-ip-range=10.96.0.0/16 --allow-privileged=true \
    --kubelet-client-certificate=pki/admin.crt --kubelet-client-key=pki/admin.key --kubelet-preferred-address-types=InternalIP \
    --proxy-client-cert-file=pki/frontproxy.crt --proxy-client-key-file=pki/frontproxy.key --requestheader-client-ca-file=pki/ca.crt \
    --requestheader-allowed-names=front-proxy-client --requestheader-username-headers=X-Remote-User --requestheader-group-headers=X-Remote-Group \
    --requestheader-extra-headers-prefix=X-Remote-Extra- --enable-aggregator-routing=true
  until_true 60 "the API server" kubectl get --raw /readyz
  start kcm kube-controller-manager --kubeconfig="$RUN/kcm.kubeconfig" --service-account-private-key-file=pki/sa.key --root-ca-file=pki/ca.crt \
    --cluster-signing-cert-file=pki/ca.crt --cluster-signing-key-file=pki/ca.key --use-service-account-credentials=true \
    --cluster-cidr=10.88.0.0/16 --allocate-node-cidrs=false --leader-elect=false
  start scheduler kube-scheduler --kubeconfig="$RUN/scheduler.kubeconfig" --leader-elect=false
}

node() {
  cat > kubelet.yaml <<K
apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
authentication: {anonymous: {enabled: false}, webhook: {enabled: true}, x509: {clientCAFile: $RUN/pki/ca.crt}}
authorization: {mode: Webhook}
cgroupDriver: cgroupfs
cgroupsPerQOS: false
enforceNodeAllocatable: []
failCgroupV1: false
failSwapOn: false
clusterDomain: cluster.local
clusterDNS: [$HOST]
containerRuntimeEndpoint: unix://$CONTAINERD_ADDRESS
tlsCertFile: $RUN/pki/kubelet.crt
tlsPrivateKeyFile: $RUN/pki/kubelet.key
evictionHard: {memory.available: 100Mi, nodefs.available: 1%, imagefs.available: 1%}
imageGCHighThresholdPercent: 100
podPidsLimit: -1
maxPods: 110
K
  printf '.:53 {\n  bind %s\n  errors\n  kubernetes cluster.local in-addr.arpa ip6.arpa {\n    kubeconfig %s\n    pods insecure\n  }\n  cache 5\n}\n' \
    $HOST "$KUBECONFIG" > Corefile
  start kubelet "${KUBELET:-kubelet}" --config=kubelet.yaml --kubeconfig="$RUN/kubelet.kubeconfig" --hostname-override=node-a --node-ip=$HOST \
    --root-dir="$RUN/kubelet" --cert-dir="$RUN/kubelet-pki"
  start proxy kube-proxy --kubeconfig="$RUN/proxy.kubeconfig" --hostname-override=node-a --cluster-cidr=10.88.0.0/16 --proxy-mode=iptables --conntrack-max-per-core=0
  start coredns coredns -conf Corefile
}

image() {
  local work config layer
  work=$(mktemp -d)
  mkdir -p "$work/root/tmp" "$work/root/etc"
  install -m 755 "$2" "$work/root/$(basename "$2")"
  chmod 1777 "$work/root/tmp"
  printf 'root:x:0:0::/:\nnonroot:x:65532:65532::/:\n' > "$work/root/etc/passwd"
  tar -C "$work/root" -cf "$work/layer.tar" .
  layer=$(sha256sum "$work/layer.tar" | cut -d' ' -f1)
  printf '{"architecture":"%s","os":"linux","config":{"Entrypoint":["/%s"],"Env":["PATH=/"]},"rootfs":{"type":"layers","diff_ids":["sha256:%s"]}}\n' \
    "$(go env GOARCH)" "$(basename "$2")" "$layer" > "$work/config.json"
  config=$(sha256sum "$work/config.json" | cut -d' ' -f1).json
  mv "$work/config.json" "$work/$config"
  printf '[{"Config":"%s","RepoTags":["%s"],"Layers":["layer.tar"]}]\n' "$config" "$1" > "$work/manifest.json"
  tar -C "$work" -cf "$work/image.tar" manifest.json "$config" layer.tar
  ctr -n k8s.io images import "$work/image.tar"
  rm -rf "$work"
}

import() { ctr -n k8s.io images import "$1"; }

crash() {
  local container
  container=$(kubectl -n "$1" get pod "$2" -o jsonpath='{.status.containerStatuses[0].containerID}')
  ctr -n k8s.io tasks kill -s SIGKILL "${container##*/}"
}

volumes() {
  local i name
  printf 'apiVersion: storage.k8s.io/v1\nkind: StorageClass\nmetadata: {name: directories, annotations: {storageclass.kubernetes.io/is-default-class: "true"}}
provisioner: kubernetes.io/no-provisioner\nvolumeBindingMode: WaitForFirstConsumer\n' | kubectl apply -f -
  for i in $(seq 1 "$1"); do
    name=volume-$(date +%s%N | tail -c 9)-$i
    mkdir -p "$RUN/volumes/$name" && chmod 0777 "$RUN/volumes/$name"
    printf 'apiVersion: v1\nkind: PersistentVolume\nmetadata: {name: %s}\nspec: {capacity: {storage: 10Gi}, accessModes: [ReadWriteOnce],
  persistentVolumeReclaimPolicy: Retain, storageClassName: directories, hostPath: {path: %s, type: Directory}}\n---\n' "$name" "$RUN/volumes/$name"
  done | kubectl apply -f -
}

# stop NAME: stops a program, and waits for its end.
stop() {
  local pid i
  [ -f "$RUN/$1.pid" ] || return 0
  pid=$(cat "$RUN/$1.pid")
  kill "$pid" 2>/dev/null || true
  for i in $(seq 1 50); do kill -0 "$pid" 2>/dev/null || break; sleep 0.1; done
  kill -9 "$pid" 2>/dev/null || true
  rm -f "$RUN/$1.pid"
}

down() {
  local name container mounted
  for name in coredns proxy kubelet scheduler kcm apiserver etcd; do stop $name; done
  for container in $(ctr -n k8s.io tasks ls -q 2>/dev/null); do ctr -n k8s.io tasks kill -s SIGKILL "$container" || true; done
  for container in $(ctr -n k8s.io containers ls -q 2>/dev/null); do ctr -n k8s.io containers rm "$container" || true; done
  stop containerd
  for mounted in $(awk -v run="$RUN/" 'index($2, run) == 1 {print $2}' /proc/mounts); do umount -l "$mounted" || true; done
  rm -rf "$RUN"
}

case ${1:-} in
  setup | up | down) "$1" ;;
  former) [ $# = 2 ] || die "machine.sh former VERSION"; former "$2" ;;
  image) [ $# = 3 ] || die "machine.sh image NAME:TAG BINARY"; image "$2" "$3" ;;
  import) [ $# = 2 ] || die "machine.sh import ARCHIVE"; import "$2" ;;
  crash) [ $# = 3 ] || die "machine.sh crash NAMESPACE POD"; crash "$2" "$3" ;;
  volumes) [ $# = 2 ] || die "machine.sh volumes N"; volumes "$2" ;;
  *) sed -n '2,/^set -e/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit 2 ;;
esac
