#!/bin/bash
# Tests mode Extension on a cluster for tests that has the operator and manifests/extension.yaml: clients of the host use a
# group that an ApiServerCluster serves; the host's garbage collector and namespace deletion keep working; a deleted replica
# causes no failed requests, and a crashed one fails only requests of the first seconds; a cluster that is down is reported in
# the status and does not block the host. Prints the results with their durations, and exits at the first failure. Takes one
# to two minutes.
#
#   KUBECONFIG  of the cluster, as administrator. Needs a default StorageClass that can provide 3 volumes of 8Gi, and jq.
#   CRASH       command that sends SIGKILL to a container's process: $CRASH NAMESPACE POD. Empty: the pod is deleted instead.
#   KUBECTL, NAMESPACE: see below. KEEP=1 leaves everything in place at the end.
set -euo pipefail
cd "$(dirname "$0")/../.."
KUBECTL=${KUBECTL:-$(command -v kubectl)} NAMESPACE=${NAMESPACE:-quorate-extension} KEEP=${KEEP:-}
WORK=$(mktemp -d)
READER=

k() { "$KUBECTL" -n "$NAMESPACE" "$@"; }                            # the host
e() { "$KUBECTL" --kubeconfig "$WORK/admin.kubeconfig" "$@"; }      # the API servers themselves
now() { date +%s%N; }
since() { echo "$((($(now) - $1) / 1000000)) ms"; }
say() { printf '%-64s %s\n' "$1" "${2:-}"; }
die() { printf 'FAILED: %s\n' "$*" >&2; exit 1; }

finish() {
  local code=$?
  [ -z "$READER" ] || kill "$READER" 2>/dev/null || true
  if [ $code != 0 ]; then
    k get asc,pods -o wide || true
    k get asc -o jsonpath='{range .items[*].status.conditions[*]}{.type}={.status} {.reason}: {.message}{"\n"}{end}' || true
    "$KUBECTL" get apiservice v1.reports.example.com -o yaml || true
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

create() {
  local began; began=$(now)
  "$KUBECTL" create namespace "$NAMESPACE" >/dev/null
  k apply -f config/samples/extension.yaml >/dev/null
  k wait asc/reports --for=condition=Available --timeout=180s >/dev/null || die "not Available"
  k get secret reports-admin-kubeconfig -o jsonpath='{.data.kubeconfig}' | base64 -d > "$WORK/admin.kubeconfig"
  e config set-cluster reports --server="https://$(k get service reports -o jsonpath='{.spec.clusterIP}'):6443" >/dev/null
  until_true 60 "the Service" e get --raw /readyz
  ! "$KUBECTL" get apiservice v1.reports.example.com >/dev/null 2>&1 || die "an APIService without a served version"
  e apply -f - >/dev/null <<'Y'
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: reports.reports.example.com}
spec:
  group: reports.example.com
  scope: Namespaced
  names: {plural: reports, singular: report, kind: Report}
  versions:
  - name: v1
    served: true
    storage: true
    schema: {openAPIV3Schema: {type: object, properties: {spec: {type: object, properties: {pages: {type: integer, description: Number of pages.}}}}}}
Y
  k wait asc/reports --for=condition=APIServicesAvailable --timeout=60s >/dev/null || die "the APIService is not available"
  until_true 60 "three replicas" allReady
  until_true 60 "discovery of the host" k get reports
  say "a cluster of three replicas serves the group to the host" "$(since "$began")"
}
allReady() { [ "$(k get asc reports -o jsonpath='{.status.ready}')" = 3/3 ]; }

# report NAME [NAMESPACE [OWNER]]: prints a Report, whose owner is a ConfigMap of the host.
report() {
  local owner=
  [ -z "${3:-}" ] || owner="ownerReferences: [{apiVersion: v1, kind: ConfigMap, name: $3, uid: $("$KUBECTL" -n "$2" get configmap "$3" -o jsonpath='{.metadata.uid}')}]"
  printf 'apiVersion: reports.example.com/v1\nkind: Report\nmetadata:\n  name: %s\n  namespace: %s\n  %s\nspec: {pages: 12}\n' \
    "$1" "${2:-$NAMESPACE}" "$owner"
}

clients() {
  (k get reports --watch -o name > "$WORK/watched") & READER=$!
  report monthly | k create -f - >/dev/null
  [ "$(k get report monthly -o jsonpath='{.spec.pages}')" = 12 ] || die "get"
  report monthly | sed 's/12/13/' | k apply --server-side --force-conflicts -f - >/dev/null
  k annotate report monthly seen=yes >/dev/null
  [ "$(k get reports -o jsonpath='{.items[*].spec.pages}')" = 13 ] || die "list"
  [[ $(k explain reports.spec.pages) == *"Number of pages."* ]] || die "explain"
  [[ $(k auth can-i create reports.reports.example.com --as=alice) == no* ]] || die "permissions of the host do not apply"
  local reply; reply=$(report monthly | k --as=alice create -f - 2>&1) && die "created without permission"
  [[ $reply == *forbidden* ]] || die "without permission: $reply"
  k delete report monthly >/dev/null
  until_true 30 "events of the watch" watched
  kill "$READER"; wait "$READER" 2>/dev/null || true; READER=
  say "create, get, apply, annotate, list, watch, explain, delete; RBAC of the host"
}
watched() { [ "$(wc -l < "$WORK/watched")" -ge 4 ]; }

collect() {
  local began
  k create configmap owner >/dev/null
  report owned "$NAMESPACE" owner | k apply -f - >/dev/null
  k create configmap dependent --dry-run=client -o json | jq --arg uid "$(k get report owned -o jsonpath='{.metadata.uid}')" '
    .metadata.ownerReferences = [{apiVersion: "reports.example.com/v1", kind: "Report", name: "owned", uid: $uid}]' | k apply -f - >/dev/null
  began=$(now)
  k delete configmap owner >/dev/null
  until_true 60 "the garbage collector" collected
  say "ConfigMap deleted; its Report and the Report's ConfigMap are collected" "$(since "$began")"
}
collected() { ! k get report owned && ! k get configmap dependent; }

namespaceDeletion() {
  local began
  "$KUBECTL" create namespace "$NAMESPACE-passing" >/dev/null
  report passing "$NAMESPACE-passing" | "$KUBECTL" apply -f - >/dev/null
  began=$(now)
  "$KUBECTL" delete namespace "$NAMESPACE-passing" --timeout=60s >/dev/null
  [ -z "$("$KUBECTL" get reports -A -o name)" ] || die "reports are left"
  say "namespace of the host deleted with its reports" "$(since "$began")"
}

# readReports gets a report repeatedly, and prints one line per attempt: its start in seconds, and ok or the error.
readReports() {
  local started
  while :; do
    started=$SECONDS
    k get report monthly -o name --request-timeout=5s >/dev/null 2>"$WORK/error" && echo "$started ok" || echo "$started $(tail -1 "$WORK/error")"
  done > "$WORK/reads"
}

# unexpected prints the failed reads that began later than three seconds after the crash of a replica. Arguments are the
# times of crashes. kube-apiserver does not repeat a request whose connection was reset or refused, so requests fail until
# the kubelet has noticed the crash and the replica is no endpoint of the Service any more.
unexpected() {
  awk -v crashes="$*" '$2 == "ok" { next }
    { split(crashes, times, " "); for (i in times) if ($1 >= times[i] && $1 <= times[i] + 3) next; print }' "$WORK/reads"
}

replicas() {
  report monthly | k apply -f - >/dev/null
  readReports & READER=$!
  until_true 30 "reads" test -s "$WORK/reads"
  local pod before crashes=()
  for pod in $(k get pods -l quorate.dev/cluster=reports -o name | head -2 | sed 's|.*/||'); do
    if [ -n "${CRASH:-}" ]; then
      before=$(k get pod "$pod" -o jsonpath='{.status.containerStatuses[0].restartCount}')
      crashes+=($((SECONDS - 1))) # a read that is in progress fails too
      $CRASH "$NAMESPACE" "$pod"
      until_true 60 "a restart of $pod" crashed "$pod" "$before"
    else
      k delete pod "$pod" >/dev/null
    fi
    until_true 60 "three replicas" allReady
  done
  kill "$READER"; wait "$READER" 2>/dev/null || true; READER=
  say "two replicas killed, one after the other: failed reads" "$(grep -vc ' ok$' "$WORK/reads" || true) of $(wc -l < "$WORK/reads")"
  local failed; failed=$(unexpected ${crashes+"${crashes[@]}"})
  [ -z "$failed" ] || die "$failed"
}
crashed() { [ "$(k get pod "$1" -o jsonpath='{.status.containerStatuses[0].restartCount}')" -gt "$2" ] && [ "$(k get pod "$1" -o jsonpath='{.status.containerStatuses[0].ready}')" = true ]; }

down() {
  local began; began=$(now)
  k scale asc/reports --replicas=0 >/dev/null
  until_true 60 "the APIService to be unavailable" "$KUBECTL" wait apiservice/v1.reports.example.com --for=condition=Available=False --timeout=1s
  until_true 60 "the condition of the cluster" k wait asc/reports --for=condition=APIServicesAvailable=False --timeout=1s
  say "no replica: APIService and cluster report it" "$(since "$began")"
  k get asc reports -o jsonpath='{.status.conditions[?(@.type=="APIServicesAvailable")].message}{"\n"}'
  began=$(now)
  k get pods --cache-dir="$WORK/cache" >/dev/null || die "the host does not list pods"
  say "kubectl get pods of the host, with discovery" "$(since "$began")"
  began=$(now)
  "$KUBECTL" api-resources --cache-dir="$WORK/cache2" > "$WORK/resources" 2>/dev/null || true
  grep -q '^deployments ' "$WORK/resources" || die "discovery of the host is incomplete"
  say "kubectl api-resources of the host" "$(since "$began")"
  began=$(now)
  k create deployment owner --image=none --replicas=0 >/dev/null
  until_true 60 "the ReplicaSet" replicaSets 1
  k delete deployment owner >/dev/null
  until_true 60 "the garbage collector of the host" replicaSets 0
  say "the host's garbage collector still works" "$(since "$began")"
  began=$(now)
  k scale asc/reports --replicas=3 >/dev/null
  until_true 120 "the APIService to be available" "$KUBECTL" wait apiservice/v1.reports.example.com --for=condition=Available --timeout=1s
  until_true 60 "the report" k get report monthly
  say "replicas running again: the report is available" "$(since "$began")"
}
replicaSets() { [ "$(k get replicasets -o name | wc -l)" = "$1" ]; }

remove() {
  local began; began=$(now)
  k delete asc reports --timeout=120s >/dev/null
  ! "$KUBECTL" get apiservice v1.reports.example.com >/dev/null 2>&1 || die "the APIService is left"
  [ -z "$("$KUBECTL" get clusterrolebindings -o name | grep "quorate:$NAMESPACE:reports" || true)" ] || die "a ClusterRoleBinding is left"
  "$KUBECTL" delete namespace "$NAMESPACE" --timeout=60s >/dev/null
  say "deleted, no objects remain in the host" "$(since "$began")"
}

create
clients
collect
namespaceDeletion
replicas
down
[ -n "$KEEP" ] || remove
