#!/bin/bash
# Runs the tests of this folder on a Kubernetes cluster that machine.sh starts on this machine, and stops it. Needs root.
#
#   prove.sh cluster   run.sh, the budgets of docs/availability.md, extension.sh and nodes.sh
#   prove.sh olm       olm.sh, with the Operator Lifecycle Manager of lifecycle.sh
#   prove.sh skew      kubelet.sh with this server in place of kube-apiserver, and the kubelets of this and of the two former
#                      minor versions
#   LOGS               directory to which the logs of a failed run are copied; default: none
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
export BIN=${BIN:-/tmp/quorate-cluster-bin} RUN=${RUN:-/tmp/quorate-cluster} LOGS=${LOGS:-}
export KUBECONFIG=$RUN/admin.kubeconfig KUBECTL=$BIN/kubectl CONTAINERD_ADDRESS=$RUN/containerd.sock PATH=$BIN:$PATH
export LOAD="$HERE/machine.sh image" IMPORT="$HERE/machine.sh import" CRASH="$HERE/machine.sh crash" OLM="$HERE/lifecycle.sh"
cd "$HERE/../.."

finish() {
  local code=$?
  if [ $code != 0 ] && [ -n "$LOGS" ]; then mkdir -p "$LOGS" && cp "$RUN"/log/*.log "$LOGS" || true; fi
  "$HERE/machine.sh" down
  exit $code
}

# cluster leaves run.sh's operator in place for the tests after it.
cluster() {
  local image; image=docker.io/library/quorate:v$(cat VERSION)
  KEEP=1 NAMESPACE=quorate-trial "$HERE/run.sh"
  kubectl delete apiserverclusters --all-namespaces --all --timeout=120s
  "$HERE/machine.sh" volumes 10 >/dev/null
  ctr -n k8s.io images tag "$image" docker.io/library/quorate:again >/dev/null
  QUORATE_CLUSTER=$KUBECONFIG QUORATE_CLUSTER_IMAGE=quorate:again make availability-cluster
  kubectl apply --server-side -f manifests/extension.yaml >/dev/null
  "$HERE/extension.sh"
  "$HERE/nodes.sh"
}

olm() {
  "$HERE/lifecycle.sh" up
  "$HERE/olm.sh"
}

# skew starts a cluster for each kubelet.
skew() {
  local former kubelet
  mkdir -p "$BIN/quorate"
  CGO_ENABLED=0 go build -o "$BIN/quorate/kube-apiserver" .
  former=$(sed -n 's/^func FormerMinors() .*{\(.*\)} }$/\1/p' test/upstream/former.go | tr -d '",')
  [ -n "$former" ]
  for kubelet in kubelet $(printf 'kubelet-%s ' $former); do
    [ "$kubelet" = kubelet ] || "$HERE/machine.sh" former "${kubelet#kubelet-}"
    APISERVER="$BIN/quorate/kube-apiserver" KUBELET=$kubelet "$HERE/machine.sh" up
    echo "$kubelet:"
    "$HERE/kubelet.sh"
    "$HERE/machine.sh" down
  done
}

case ${1:-} in
  cluster | olm | skew) ;;
  *) sed -n '2,/^set -e/p' "$0" | sed '$d; s/^# \{0,1\}//'; exit 2 ;;
esac
trap finish EXIT
"$HERE/machine.sh" setup
if [ "$1" = olm ]; then "$HERE/lifecycle.sh" build; fi
if [ "$1" != skew ]; then
  "$HERE/machine.sh" up
  "$HERE/machine.sh" volumes 30 >/dev/null
fi
"$1"
