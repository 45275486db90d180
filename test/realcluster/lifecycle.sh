#!/bin/bash
# Runs the Operator Lifecycle Manager on the cluster of machine.sh, and installs operators from OLM bundles with it; suits as
# OLM of olm.sh. Its programs are built from the source of a release. testdata/olmtool, which is compiled in the same source
# tree, takes the place of opm, grpc_health_probe and cp, and packs images. Needs root, Go, git and jq.
#
#   lifecycle.sh build                          builds OLM into $OLM_BIN, from a clone or from the git directory $OLM_GIT
#   lifecycle.sh up                             installs OLM on the cluster, and waits for it
#   lifecycle.sh validate DIR [VERSION]         checks a bundle; needs no cluster
#   lifecycle.sh bundle DIR NAME:TAG            packs a bundle as an image, and adds it to the catalog source olm/local
#   lifecycle.sh install NAMESPACE PACKAGE CHANNEL [AllNamespaces|OwnNamespace|SingleNamespace=NAME]
#                                               subscribes, and waits for the newest version; also upgrades
#   lifecycle.sh status NAMESPACE               prints the state of subscriptions and their problems
#   lifecycle.sh uninstall NAMESPACE PACKAGE    deletes the subscription and its ClusterServiceVersion
#   lifecycle.sh clear                          empties the catalog
set -e -o pipefail
HERE=$(dirname "$(readlink -f "$0")")
BIN=${BIN:-/tmp/quorate-cluster-bin}; RUN=${RUN:-/tmp/quorate-cluster}
export CONTAINERD_ADDRESS=${CONTAINERD_ADDRESS:-$RUN/containerd.sock}
OLM_TAG=${OLM_TAG:-v0.46.0}; OLM_GIT=${OLM_GIT:-$BIN/src/olm.git}
OLM_SRC=${OLM_SRC:-$BIN/src/olm}; OLM_BIN=${OLM_BIN:-$BIN/olm}; STATE=$RUN/olm; TIMEOUT=${TIMEOUT:-420}
export KUBECONFIG=$RUN/admin.kubeconfig
CATALOG=local; CATALOG_IMAGE=cluster.local/catalog:current
kubectl() { if [ -x "$BIN/kubectl" ]; then "$BIN/kubectl" "$@"; else command kubectl "$@"; fi; }
tool() { "$OLM_BIN/olmtool" "$@"; }
say() { echo "lifecycle.sh: $*"; }
die() { echo "lifecycle.sh: $*" >&2; exit 1; }
built() { [ -x "$OLM_BIN/olmtool" ] || die "run \"lifecycle.sh build\" first (no $OLM_BIN/olmtool)"; }
running() { kubectl get --raw /readyz >/dev/null 2>&1 || die "the cluster of $KUBECONFIG is unreachable: run machine.sh up"; }

build() {
  local tag=$OLM_TAG p
  [ -d "$OLM_GIT" ] || git clone --quiet --bare --depth 1 --branch "$tag" https://github.com/operator-framework/operator-lifecycle-manager "$OLM_GIT"
  if [ "$(cat "$OLM_SRC/.tag" 2>/dev/null)" != "$tag" ]; then
    say "unpacking $tag"; rm -rf "$OLM_SRC"; mkdir -p "$OLM_SRC"
    # Without cgo, sqlite's C source is not compiled; incomplete copies of the repository may lack it.
    git --git-dir="$OLM_GIT" archive "$tag" -- . ':(exclude)vendor/github.com/mattn/go-sqlite3/sqlite3-binding.c' 2>/dev/null | tar -x -C "$OLM_SRC"
    echo "$tag" > "$OLM_SRC/.tag"
  fi
  mkdir -p "$OLM_SRC/cmd/olmtool" "$OLM_BIN"; cp "$HERE/testdata/olmtool/main.go" "$OLM_SRC/cmd/olmtool/main.go"
  cd "$OLM_SRC"
  for p in cmd/olm cmd/catalog cmd/package-server cmd/copy-content util/cpb cmd/olmtool; do
    say "building $p"
    CGO_ENABLED=0 GOFLAGS= nice go build -mod=vendor -buildvcs=false -trimpath -tags json1 -ldflags "-s -w -X github.com/operator-framework/operator-lifecycle-manager/pkg/version.OLMVersion=$tag" -o "$OLM_BIN/" ./$p
  done
  rm -rf "$OLM_BIN/chart"; cp -r deploy/chart "$OLM_BIN/chart"; cp deploy/upstream/values.yaml "$OLM_BIN/values.yaml"; echo "$tag" > "$OLM_BIN/tag"
  say "$tag in $OLM_BIN"
}

# image NAME:TAG [flags of olmtool image] HOST=IMAGE...: packs and imports, prints NAME@DIGEST, by which name OLM's
# pods take it without a registry (OLM pulls always what is named by tag, and only if absent what is named by digest)
image() {
  local n=$1 t d; shift; t=$(mktemp)
  d=$(tool image --out "$t" --name "$n" "$@") || { rm -f "$t"; return 1; }
  ctr -n k8s.io images import "$t" >/dev/null && ctr -n k8s.io images tag --force "$n" "${n%:*}@$d" >/dev/null || { rm -f "$t"; return 1; }
  rm -f "$t"; echo "${n%:*}@$d"
}

# until SECONDS COMMAND...: repeats COMMAND until it succeeds
until_ok() { local e=$((SECONDS + $1)); shift; until "$@" >/dev/null 2>&1; do [ $SECONDS -lt $e ] || return 1; sleep 1; done; }

up() {
  built; running; mkdir -p "$STATE"
  local tag olm opm; tag=$(cat "$OLM_BIN/tag")
  say "images of OLM $tag"
  olm=$(image quay.io/operator-framework/olm:$tag --system --user 1001 --entrypoint /bin/olm --link bin/cp=olmtool \
    "$OLM_BIN/olm=bin/olm" "$OLM_BIN/catalog=bin/catalog" "$OLM_BIN/package-server=bin/package-server" "$OLM_BIN/copy-content=bin/copy-content" "$OLM_BIN/cpb=bin/cpb" "$OLM_BIN/olmtool=bin/olmtool")
  opm=$(image quay.io/operator-framework/opm:$tag --system --user 1001 --entrypoint /bin/opm --link bin/opm=olmtool --link bin/grpc_health_probe=olmtool "$OLM_BIN/olmtool=bin/olmtool")
  tool chart "$OLM_BIN/chart" -f "$OLM_BIN/values.yaml" Chart.Version=${tag#v} installType=local package.replicaCount=1 package.image.pullPolicy=IfNotPresent \
    olm.image.ref=$olm catalog.image.ref=$olm package.image.ref=$olm catalog.opmImageArgs=--opmImage=$opm > "$STATE/olm.yaml"
  say "CRDs and deployments"
  kubectl apply --server-side --force-conflicts -f "$OLM_BIN/chart/crds" >/dev/null
  kubectl wait --for=condition=Established --timeout=60s -f "$OLM_BIN/chart/crds" >/dev/null
  kubectl apply --server-side --force-conflicts -f "$STATE/olm.yaml" >/dev/null
  kubectl -n olm rollout status --timeout=${TIMEOUT}s deployment/olm-operator deployment/catalog-operator
  until_ok $TIMEOUT succeeded olm packageserver || { status olm; die "OLM's own CSV packageserver did not succeed"; }
  kubectl -n olm rollout status --timeout=${TIMEOUT}s deployment/packageserver
  until_ok $TIMEOUT kubectl get packagemanifests -A || die "the packageserver's API does not answer"
  [ -f "$STATE/catalog.ref" ] && serve_catalog
  say "OLM $tag is up: $(kubectl -n olm get csv packageserver --no-headers | tr -s ' ')"
}

phase() { kubectl -n "$1" get csv "$2" -o jsonpath='{.status.phase}' 2>/dev/null; }
succeeded() { [ "$(phase "$1" "$2")" = Succeeded ]; }

validate() { built; [ -d "$1/manifests" ] || die "validate: no $1/manifests"; tool validate "$@"; }

# the catalog is an image too, as a cluster's administrator would name it in a CatalogSource: nothing but the file-based
# catalog, which OLM copies out of it and serves with its own opm
serve_catalog() {
  kubectl apply --server-side --force-conflicts -f - >/dev/null <<K
apiVersion: operators.coreos.com/v1alpha1
kind: CatalogSource
metadata: {name: $CATALOG, namespace: olm}
spec:
  sourceType: grpc
  image: $(cat "$STATE/catalog.ref")
  displayName: Local bundles
  publisher: Quorate
  grpcPodConfig: {securityContextConfig: restricted, extractContent: {catalogDir: /configs}}
K
  until_ok $TIMEOUT catalog_ready || { kubectl -n olm get pods,catalogsource; kubectl -n olm logs -l olm.catalogSource=$CATALOG --tail=20; die "the catalog does not serve"; }
}
catalog_ready() {
  local ref; ref=$(cat "$STATE/catalog.ref")
  [ "$(kubectl -n olm get pods -l olm.catalogSource=$CATALOG -o jsonpath='{range .items[*]}{.spec.initContainers[1].image} {.status.containerStatuses[0].ready}{"\n"}{end}')" = "$ref true" ] &&
    [ "$(kubectl -n olm get catalogsource $CATALOG -o jsonpath='{.status.connectionState.lastObservedState}')" = READY ]
}

bundle() {
  built; local dir=$1 ref=$2 pkg csv channels digest labels=() l next=$STATE/next
  [ -d "$dir/manifests" ] && [ -d "$dir/metadata" ] || die "bundle: $dir needs manifests/ and metadata/"
  case $ref in *.*/*:*|*:*/*:*|localhost/*:*) ;; *) die "bundle: NAME:TAG with a registry's host, such as example.com/my-bundle:v0.1.0" ;; esac
  read -r pkg csv channels < <(tool name "$dir") || true; [ -n "$csv" ] || die "bundle: $dir has no CSV or no metadata/annotations.yaml that can be read"
  while IFS= read -r l; do labels+=(--label "$l"); done < <(tool labels "$dir")
  digest=$(image "$ref" "${labels[@]}" "$dir/manifests=manifests" "$dir/metadata=metadata")
  rm -rf "$next"; mkdir -p "$STATE/bundles" "$next"; cp -r "$STATE/bundles" "$next/bundles"
  rm -rf "$next/bundles/$csv"; mkdir "$next/bundles/$csv"; cp -r "$dir/manifests" "$dir/metadata" "$next/bundles/$csv/"; echo "$digest" > "$next/bundles/$csv/ref"
  tool catalog "$next/configs" "$next"/bundles/*
  rm -rf "$STATE/bundles" "$STATE/configs"; mv "$next/bundles" "$next/configs" "$STATE/"; rm -rf "$next"
  image "$CATALOG_IMAGE" --label operators.operatorframework.io.index.configs.v1=/configs "$STATE/configs=configs" > "$STATE/catalog.ref"
  say "$csv of package $pkg, channels $channels: $digest"
  kubectl get crd catalogsources.operators.coreos.com >/dev/null 2>&1 || { say "OLM is not up yet: \"lifecycle.sh up\" will serve this catalog"; return 0; }
  serve_catalog
  until_ok $TIMEOUT offered "$pkg" "$csv" || die "the packageserver does not offer $csv"
  say "CatalogSource olm/$CATALOG offers it"
}
offered() { kubectl -n olm get packagemanifest "$1" -o jsonpath='{range .status.channels[*].entries[*]}{.name}{"\n"}{end}' 2>/dev/null | grep -qx "$2"; }

install() {
  built; running; local ns=$1 pkg=$2 channel=$3 mode=$4 head modes targets end seen= s failed=0
  [ -n "$channel" ] || die "install NAMESPACE PACKAGE CHANNEL"
  head=$(kubectl -n olm get packagemanifest "$pkg" -o jsonpath="{.status.channels[?(@.name==\"$channel\")].currentCSV}" 2>/dev/null) || true
  [ -n "$head" ] || die "no package $pkg with a channel $channel in the catalog (lifecycle.sh bundle first?)"
  modes=$(kubectl -n olm get packagemanifest "$pkg" -o jsonpath="{range .status.channels[?(@.name==\"$channel\")].currentCSVDesc.installModes[?(@.supported==true)]}{.type} {end}")
  if [ -z "$mode" ]; then case " $modes" in *" AllNamespaces "*) mode=AllNamespaces ;; *) mode=OwnNamespace ;; esac; fi
  case $mode in AllNamespaces) targets= ;; OwnNamespace) targets="targetNamespaces: [$ns]" ;; SingleNamespace=*) targets="targetNamespaces: [${mode#*=}]" ;; *) die "install: $mode?" ;; esac
  say "$head into namespace $ns as $mode (its CSV supports: ${modes:-nothing})"
  kubectl get namespace "$ns" >/dev/null 2>&1 || kubectl create namespace "$ns" >/dev/null
  kubectl apply --server-side --force-conflicts -f - >/dev/null <<K
apiVersion: operators.coreos.com/v1
kind: OperatorGroup
metadata: {name: $ns, namespace: $ns}
spec: {$targets}
---
apiVersion: operators.coreos.com/v1alpha1
kind: Subscription
metadata: {name: $pkg, namespace: $ns}
spec: {name: $pkg, channel: $channel, source: $CATALOG, sourceNamespace: olm, installPlanApproval: ${APPROVAL:-Automatic}${STARTING_CSV:+, startingCSV: $STARTING_CSV}}
K
  end=$((SECONDS + TIMEOUT))
  while :; do
    s="subscription $(kubectl -n $ns get subscription $pkg -o jsonpath='{.status.state}' 2>/dev/null), CSV $(kubectl -n $ns get csv $head -o jsonpath='{.status.phase} {.status.reason}: {.status.message}' 2>/dev/null || echo none yet)"
    [ "$s" = "$seen" ] || say "$s"; seen=$s
    if succeeded $ns $head && [ "$(kubectl -n $ns get subscription $pkg -o jsonpath='{.status.installedCSV}')" = "$head" ]; then break; fi
    # OLM tries a failed CSV again; what is still failed after that has failed
    [ "$(phase $ns $head)" = Failed ] && failed=$((failed + 1))
    if [ $failed -ge 15 ] || [ $SECONDS -ge $end ]; then status $ns; die "$head did not succeed: phase $(phase $ns $head || true)"; fi
    sleep 2
  done
  kubectl -n $ns get csv $head
  kubectl -n $ns get deployments,pods -o wide
}

status() {
  local ns=$1 own='!olm.copiedFrom' # not the copies that OLM makes of another namespace's operator for all namespaces
  kubectl -n $ns get subscription,installplan 2>/dev/null || true
  kubectl -n $ns get csv -l "$own" 2>/dev/null || true
  kubectl -n $ns get subscription -o go-template='{{range .items}}{{$n := .metadata.name}}{{range .status.conditions}}{{if eq .status "True"}}subscription {{$n}}: {{.type}}: {{.reason}}: {{.message}}{{"\n"}}{{end}}{{end}}{{end}}' 2>/dev/null || true
  kubectl -n $ns get installplan -o go-template='{{range .items}}{{$n := .metadata.name}}installplan {{$n}}: {{.status.phase}}{{"\n"}}{{range .status.conditions}}{{if ne .status "True"}}  {{.type}}: {{.reason}}: {{.message}}{{"\n"}}{{end}}{{end}}{{range .status.bundleLookups}}{{range .conditions}}{{if ne .status "False"}}  bundle: {{.type}}: {{.reason}}: {{.message}}{{"\n"}}{{end}}{{end}}{{end}}{{end}}' 2>/dev/null || true
  kubectl -n $ns get csv -l "$own" -o go-template='{{range .items}}csv {{.metadata.name}}: {{.status.phase}}: {{.status.reason}}: {{.status.message}}{{"\n"}}{{range .status.requirementStatus}}{{if and (ne .status "Present") (ne .status "Satisfied")}}  requirement {{.kind}} {{.name}}: {{.status}}: {{.message}}{{"\n"}}{{range .dependents}}{{if ne .status "Satisfied"}}    {{.kind}}: {{.status}}: {{.message}}{{"\n"}}{{end}}{{end}}{{end}}{{end}}{{end}}' 2>/dev/null || true
  kubectl -n $ns get pods --no-headers 2>/dev/null || true
  kubectl -n $ns get events --field-selector type=Warning --sort-by=.lastTimestamp --no-headers 2>/dev/null | tail -8 || true
}

uninstall() {
  running; local ns=$1 pkg=$2 csv
  csv=$(kubectl -n $ns get subscription $pkg -o jsonpath='{.status.installedCSV} {.status.currentCSV}' 2>/dev/null) || true
  kubectl -n $ns delete subscription $pkg --ignore-not-found
  for c in $(tr ' ' '\n' <<< "$csv" | sort -u); do kubectl -n $ns delete csv $c --ignore-not-found; done
}

clear_catalog() {
  kubectl -n olm delete catalogsource $CATALOG --ignore-not-found 2>/dev/null || true
  rm -rf "$STATE/bundles" "$STATE/configs" "$STATE/catalog.ref"
}

c=$1; shift || true
case $c in
  build|up) $c ;;
  validate) [ $# -ge 1 ] || die "validate DIR [K8S-VERSION]"; validate "$@" ;;
  bundle) [ $# -eq 2 ] || die "bundle DIR NAME:TAG"; bundle "$@" ;;
  install) [ $# -ge 3 ] || die "install NAMESPACE PACKAGE CHANNEL [MODE]"; install "$@" ;;
  status) [ $# -eq 1 ] || die "status NAMESPACE"; running; status "$1" ;;
  uninstall) [ $# -eq 2 ] || die "uninstall NAMESPACE PACKAGE"; uninstall "$@" ;;
  clear) clear_catalog ;;
  *) sed -n '2,/^set -e/p' "$HERE/$(basename "$0")" | sed '$d; s/^# \{0,1\}//'; exit 2 ;;
esac
