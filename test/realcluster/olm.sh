#!/bin/bash
# Installs, upgrades and uninstalls the operator with the Operator Lifecycle Manager of a Kubernetes cluster, and checks what
# docs/install.md says about it. Prints the results with their durations, and exits at the first failure. jq is needed here.
#
#   KUBECONFIG  of the cluster, as administrator. Needs OLM and a default StorageClass.
#   LOAD        command that gives the nodes an image: $LOAD NAME:TAG BINARY. The image's entry point is the static binary
#               at /<its base name>.
#   OLM         command for OLM: $OLM validate DIR; $OLM bundle DIR NAME:TAG packs a bundle and adds it to the catalog;
#               $OLM install NAMESPACE PACKAGE CHANNEL subscribes and waits for the newest version;
#               $OLM uninstall NAMESPACE PACKAGE.
#   REGISTRY    prefix of the images; default: example.com/.
#   KUBECTL, NAMESPACE: see below. KEEP=1 leaves everything in place at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
REGISTRY=${REGISTRY-example.com/} KUBECTL=${KUBECTL:-$(command -v kubectl)} NAMESPACE=${NAMESPACE:-quorate-olm} KEEP=${KEEP:-}
SYSTEM=quorate-system
WORK=$(mktemp -d)
trap finish EXIT

finish() {
  local code=$?
  if [ $code != 0 ]; then
    k -n "$NAMESPACE" get asc,pods,pvc -o wide || true
    k -n "$NAMESPACE" get asc -o jsonpath='{range .items[*].status.conditions[*]}{.type}={.status} {.reason}: {.message}{"\n"}{end}' || true
    k -n "$NAMESPACE" get events --sort-by=.metadata.creationTimestamp | tail -20 || true
    k -n "$SYSTEM" logs -l app.kubernetes.io/name=quorate-operator --prefix --tail=20 || true
  fi
  rm -rf "$WORK"
}

k() { "$KUBECTL" "$@"; }
now() { date +%s%N; }
since() { echo "$((($(now) - $1) / 1000000)) ms"; }
say() { printf '%-64s %s\n' "$1" "${2:-}"; }
die() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }
quietly() { "$@" > "$WORK/output" 2>&1 || { cat "$WORK/output" >&2; die "$*"; }; }

# release VERSION: generates, validates and publishes the bundle of a version, whose image has the same binary.
release() {
  local version=$1 began; began=$(now)
  quietly $LOAD "${REGISTRY}quorate:v$version" "$WORK/quorate"
  quietly go run ./release/bundle -version "$version" -image "${REGISTRY}quorate:v$version" \
    -bundle-image "${REGISTRY}quorate-bundle:v$version" -output "$WORK/v$version"
  quietly $OLM validate "$WORK/v$version/bundle"
  quietly $OLM bundle "$WORK/v$version/bundle" "${REGISTRY}quorate-bundle:v$version"
  say "bundle v$version is valid and in the catalog" "$(since "$began")"
}

# subscribe VERSION: installs or upgrades to the newest version.
subscribe() {
  local began; began=$(now)
  quietly $OLM install "$SYSTEM" quorate stable
  [ "$(k -n "$SYSTEM" get csv "quorate.v$1" -o jsonpath='{.status.phase}')" = Succeeded ] || die "quorate.v$1 has not succeeded"
  k -n "$SYSTEM" rollout status deployment/quorate-operator --timeout=120s >/dev/null
  local images; images=$(k -n "$SYSTEM" get deployment quorate-operator -o jsonpath='{.spec.template.spec.containers[0].image}')
  [ "$images" = "${REGISTRY}quorate:v$1" ] || die "the operator runs $images"
  say "ClusterServiceVersion quorate.v$1 Succeeded" "$(since "$began")"
}

pods() { k -n "$NAMESPACE" get pods -l quorate.dev/cluster=demo -o json | jq -c '[.items[] | [.metadata.uid, .status.containerStatuses[0].restartCount, .spec.containers[0].image]] | sort'; }

# scale checks that a user with the role edit can scale, and one with the role view can read the status only.
scale() {
  k -n "$NAMESPACE" create rolebinding editor --clusterrole=edit --user=editor >/dev/null
  k -n "$NAMESPACE" create rolebinding viewer --clusterrole=view --user=viewer >/dev/null
  local tries=30
  until k -n "$NAMESPACE" --as editor auth can-i patch apiserverclusters/scale >/dev/null; do # roles are aggregated
    [ $((tries--)) -gt 0 ] || die "edit may not scale"
    sleep 1
  done
  k -n "$NAMESPACE" --as viewer auth can-i get apiserverclusters/status >/dev/null || die "view may not read the status"
  ! k -n "$NAMESPACE" --as viewer auth can-i patch apiserverclusters/scale >/dev/null || die "view may scale"
  k -n "$NAMESPACE" --as editor scale asc/demo --replicas=1 >/dev/null
  k -n "$NAMESPACE" wait asc/demo --for=jsonpath='{.status.replicas}'=1 --timeout=180s >/dev/null
  say "the roles edit and view: /scale and /status"
}

# uninstall deletes the clusters and the operator, and compares what is left with what docs/install.md lists.
uninstall() {
  k -n "$NAMESPACE" delete asc demo --timeout=180s >/dev/null
  quietly $OLM uninstall "$SYSTEM" quorate
  k -n "$SYSTEM" wait deployment/quorate-operator --for=delete --timeout=120s >/dev/null
  k get clusterroles,clusterrolebindings,crds -o name | grep -i quorate | sort > "$WORK/left"
  k -n "$SYSTEM" get deployments,services,serviceaccounts,roles,rolebindings,poddisruptionbudgets,networkpolicies,secrets,leases,configmaps -o name |
    grep -i quorate | sort >> "$WORK/left" || true
  say "left after uninstall:"
  sed 's/^/  /' "$WORK/left"
}

CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$WORK/quorate" .
release 0.1.0
subscribe 0.1.0
k create namespace "$NAMESPACE" >/dev/null
began=$(now)
k -n "$NAMESPACE" apply -f config/samples/demo.yaml >/dev/null
k -n "$NAMESPACE" wait asc/demo --for=condition=Available --timeout=180s >/dev/null
k -n "$NAMESPACE" wait asc/demo --for=jsonpath='{.status.voters}'=3 --timeout=180s >/dev/null
k -n "$NAMESPACE" wait pods -l quorate.dev/cluster=demo --for=condition=Ready --timeout=60s >/dev/null
say "sample Available, three voters" "$(since "$began")"
before=$(pods)
release 0.2.0
subscribe 0.2.0
k -n "$NAMESPACE" annotate asc demo "quorate.dev/seen=$(date +%s)" >/dev/null # the new operator reconciles
k -n "$NAMESPACE" wait asc/demo --for=condition=Available --timeout=60s >/dev/null
[ "$(pods)" = "$before" ] || die "the upgrade of the operator changed pods: $before, then $(pods)"
say "the upgrade restarted no API server"
scale
[ -n "$KEEP" ] || uninstall
