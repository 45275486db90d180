#!/bin/bash
# Installs, upgrades and uninstalls the operator with the Operator Lifecycle Manager of a Kubernetes cluster, and checks
# the statements of docs/install.md about it. Prints the results with their durations, and exits at the first failure.
# Needs jq.
#
#   KUBECONFIG  of the cluster, as administrator. Needs OLM and a default StorageClass.
#   IMPORT      command that loads the image of release/build.sh on the nodes: $IMPORT FILE, an OCI archive whose annotation
#               names the image, as "ctr -n k8s.io images import" does.
#   OLM         command for OLM: $OLM validate DIR; $OLM bundle DIR NAME:TAG packs a bundle and adds it to the catalog;
#               $OLM install NAMESPACE PACKAGE CHANNEL subscribes and waits for the newest version;
#               $OLM uninstall NAMESPACE PACKAGE.
#   REGISTRY    prefix of the images; default: example.com/.
#   KUBECTL, NAMESPACE: see below. KEEP=1 leaves everything in place at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
REGISTRY=${REGISTRY-example.com/} KUBECTL=${KUBECTL:-$(command -v kubectl)} NAMESPACE=${NAMESPACE:-quorate-olm} KEEP=${KEEP:-}
SYSTEM=quorate-system ARCHITECTURE=$(go env GOARCH)
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
  DIST=$WORK/dist ARCHITECTURES=$ARCHITECTURE IMAGE=${REGISTRY}quorate VERSION=$version TAG=v$version BINARIES=$WORK/binaries quietly release/build.sh image
  quietly $IMPORT "$WORK/dist/quorate-v$version-image.tar"
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

# scale checks that a user with the role edit can scale, and that one with the role view can only read the status.
scale() {
  k -n "$NAMESPACE" create rolebinding editor --clusterrole=edit --user=editor >/dev/null
  k -n "$NAMESPACE" create rolebinding viewer --clusterrole=view --user=viewer >/dev/null
  local tries=30
  until k -n "$NAMESPACE" --as editor auth can-i patch apiserverclusters --subresource=scale >/dev/null; do # roles are aggregated
    [ $((tries--)) -gt 0 ] || die "edit may not scale"
    sleep 1
  done
  k -n "$NAMESPACE" --as viewer auth can-i get apiserverclusters --subresource=status >/dev/null || die "view may not read the status"
  ! k -n "$NAMESPACE" --as viewer auth can-i patch apiserverclusters --subresource=scale >/dev/null || die "view may scale"
  k -n "$NAMESPACE" --as editor scale asc/demo --replicas=1 >/dev/null
  k -n "$NAMESPACE" wait asc/demo --for=jsonpath='{.status.replicas}'=1 --timeout=180s >/dev/null
  say "the roles edit and view: /scale and /status"
}

# operator checks the operator's two replicas with their leader, the disruption budget, the NetworkPolicy, and the metrics
# over TLS for authorized clients.
operator() {
  [ "$(k -n "$SYSTEM" get deployment quorate-operator -o jsonpath='{.status.readyReplicas}')" = 2 ] || die "there are not two operators"
  k -n "$SYSTEM" wait lease/operator.quorate.dev --for=jsonpath='{.spec.holderIdentity}' --timeout=60s >/dev/null
  [ "$(k -n "$SYSTEM" get poddisruptionbudget quorate-operator -o jsonpath='{.status.expectedPods}/{.status.disruptionsAllowed}')" = 2/1 ] ||
    die "the disruption budget does not protect the operator"
  k -n "$SYSTEM" get networkpolicy quorate-operator >/dev/null
  k -n "$SYSTEM" get secret quorate-operator-metrics -o jsonpath='{.data.ca\.crt}' | base64 -d > "$WORK/ca.crt"
  k -n "$NAMESPACE" create serviceaccount scraper >/dev/null
  [ "$(scrape)" = 403 ] || die "metrics without permission: $(scrape)"
  k create clusterrolebinding "$NAMESPACE-scraper" --clusterrole=quorate-metrics-reader --serviceaccount="$NAMESPACE:scraper" >/dev/null
  local tries=30
  until [ "$(scrape)" = 200 ]; do # the operator caches reviews
    [ $((tries--)) -gt 0 ] || die "metrics with permission: $(scrape)"
    sleep 1
  done
  k delete clusterrolebinding "$NAMESPACE-scraper" >/dev/null
  say "two operators, disruption budget, NetworkPolicy, metrics" "$(grep -c '^[a-z]' "$WORK/metrics") lines"
}

# scrape prints the status code of the metrics for ServiceAccount scraper.
scrape() {
  local name=quorate-operator-metrics.$SYSTEM.svc address
  address=$(k -n "$SYSTEM" get service quorate-operator-metrics -o jsonpath='{.spec.clusterIP}')
  curl --silent --output "$WORK/metrics" --write-out '%{http_code}' --cacert "$WORK/ca.crt" --resolve "$name:8443:$address" \
    --header "Authorization: Bearer $(k -n "$NAMESPACE" create token scraper)" "https://$name:8443/metrics"
}

# uninstall deletes the clusters and the operator, and compares the remaining objects with docs/install.md. The roles
# olm.og.* belong to the OperatorGroup.
uninstall() {
  k -n "$NAMESPACE" delete asc demo --timeout=180s >/dev/null
  quietly $OLM uninstall "$SYSTEM" quorate
  k -n "$SYSTEM" wait deployment/quorate-operator --for=delete --timeout=120s >/dev/null
  local resource role
  for resource in apiserverclusters apiserverbackups apiserverbackupschedules apiserverkubeconfigs; do
    echo "customresourcedefinition.apiextensions.k8s.io/$resource.quorate.dev"
    for role in admin edit view crdview; do
      echo "clusterrole.rbac.authorization.k8s.io/$resource.quorate.dev-v1alpha1-$role"
    done
  done > "$WORK/expected"
  for role in edit view metrics-reader; do echo "clusterrole.rbac.authorization.k8s.io/quorate-$role"; done >> "$WORK/expected"
  sort -o "$WORK/expected" "$WORK/expected"
  local tries=60
  until left && diff "$WORK/expected" "$WORK/left" > "$WORK/difference"; do # the garbage collector deletes dependents
    [ $((tries--)) -gt 0 ] || die "left after uninstall, compared with docs/install.md: $(cat "$WORK/difference")"
    sleep 1
  done
  say "remaining after uninstall: definitions with their roles, and roles for users" "$(wc -l < "$WORK/left") objects"
}

# left lists the remaining objects of the operator.
left() {
  {
    k get clusterroles,clusterrolebindings,crds -o name
    k -n "$SYSTEM" get deployments,pods,services,serviceaccounts,roles,rolebindings,poddisruptionbudgets,networkpolicies,secrets,leases,configmaps -o name
  } | grep -i quorate | grep -v '/olm\.og\.' | sort > "$WORK/left"
}

CGO_ENABLED=0 go build -trimpath -ldflags '-s -w' -o "$WORK/binaries/linux-$ARCHITECTURE/quorate" .
release 0.1.0
k create namespace "$SYSTEM" >/dev/null
k label namespace "$SYSTEM" pod-security.kubernetes.io/enforce=restricted >/dev/null
subscribe 0.1.0
k create namespace "$NAMESPACE" >/dev/null
k label namespace "$NAMESPACE" pod-security.kubernetes.io/enforce=restricted >/dev/null
began=$(now)
k -n "$NAMESPACE" apply -f config/samples/demo.yaml >/dev/null
k -n "$NAMESPACE" wait asc/demo --for=condition=Available --timeout=180s >/dev/null
k -n "$NAMESPACE" wait asc/demo --for=jsonpath='{.status.voters}'=3 --timeout=180s >/dev/null
k -n "$NAMESPACE" wait pods -l quorate.dev/cluster=demo --for=condition=Ready --timeout=60s >/dev/null
say "sample Available, three voters" "$(since "$began")"
operator
before=$(pods)
release 0.2.0
subscribe 0.2.0
k -n "$NAMESPACE" annotate asc demo "quorate.dev/seen=$(date +%s)" >/dev/null # the new operator reconciles
k -n "$NAMESPACE" wait asc/demo --for=condition=Available --timeout=60s >/dev/null
[ "$(pods)" = "$before" ] || die "the upgrade of the operator changed pods: $before, then $(pods)"
say "the upgrade restarted no API server"
scale
[ -n "$KEEP" ] || uninstall
