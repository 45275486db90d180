package endtoend

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"quorate.dev/test/docs/guide"
	"quorate.dev/test/upstream"
)

// reading is a document that a reader follows.
type reading struct {
	document string
	sections []string // headings; nil: all
	prepare  string   // commands before the document, for its prerequisites
	finish   string   // commands after it, to prepare the next document
	long     bool     // executed by `make guides` only
	replace  map[string]string
}

// readings are executed in this order, in one sandbox.
var readings = []reading{
	{document: "docs/api.md"},
	{document: "docs/troubleshooting.md"},
	{document: "docs/backup.md", sections: []string{
		"One backup", "Encryption", "Verification", "Schedules", "Restore",
	}, finish: "kubectl delete asc/copy --ignore-not-found --timeout=2m"},
	{
		document: "docs/backup.md", sections: []string{"A lost quorum"},
		finish: `kubectl patch asc demo --type=merge -p '{"spec":{"recovery":null}}'`,
	},
	{
		document: "docs/kubectl-quorate.md", prepare: "mkdir -p ~/bin",
		finish: "kubectl delete asc/copy --ignore-not-found --timeout=2m",
	},
	{document: "docs/certificates.md", prepare: `
		kubectl config view --minify --context demo --raw > admin.kubeconfig
		kubectl --context demo create namespace apps
		kubectl create namespace team`},
	{document: "docs/install.md", sections: []string{"A first API server", "Access", "Operations"}, finish: `
		kubectl -n team delete asc/demo --ignore-not-found --timeout=2m`},
	{document: "docs/monitoring.md"},
	{document: "docs/security.md"},
	{document: "docs/configuration.md", prepare: `
		echo '{apiVersion: audit.k8s.io/v1, kind: Policy, rules: [{level: Metadata}]}' > audit-policy.yaml`, finish: `
		kubectl patch asc demo --type=merge -p '{"spec":{"audit":null}}'`},
	{document: "docs/upgrades.md", finish: `kubectl patch asc demo --type=merge -p '{"spec":{"maintenance":null}}'`},
	{document: "docs/etcd.md", sections: []string{"In an ApiServerCluster"}},
	{document: "docs/aggregation.md"},
	{document: "docs/extension-mode.md"},
	{document: "docs/move.md", long: true, prepare: prepareMove, finish: "kubectl delete asc/reports --timeout=2m"},
	{document: "docs/nodes.md", long: true, prepare: `
		kubectl create -f - <<< '{"apiVersion":"quorate.dev/v1alpha1","kind":"ApiServerCluster","metadata":{"name":"workers"},"spec":{"replicas":1}}'
		kubectl wait asc/workers --for=condition=Available --timeout=2m
		WORKERS=https://$(kubectl get service workers -o jsonpath='{.spec.clusterIP}'):6443`, finish: `
		unset KUBECONFIG; eval "$(quorate sandbox env)"; kubectl delete asc/workers --timeout=2m`,
		replace: map[string]string{"https://api.workers.example.org:6443": "$WORKERS"}},
	{document: "docs/envtest.md"},
	{document: "docs/sandbox.md", finish: "kubectl --context demo delete namespace team-a"},
	{document: "docs/start.md"},
	// The command `status` of README fails while the cluster is being scaled, so the test waits first.
	{document: "README.md", prepare: "kubectl scale asc/demo --replicas=5; kubectl quorate wait demo"},
}

// prepareMove creates a group with an object in the hosting cluster, and the extension cluster that the group moves
// to.
const prepareMove = `
	kubectl apply -f - <<'END'
` + reportsDefinition + `
END
	kubectl wait crd/reports.reports.example.com --for=condition=Established --timeout=1m
	kubectl apply -f - <<'END'
` + report + `
END
	kubectl apply -f - <<'END'
apiVersion: quorate.dev/v1alpha1
kind: ApiServerCluster
metadata: {name: reports}
spec: {mode: Extension, replicas: 1, extension: {groups: [{name: reports.example.com, versions: [v1]}]}}
END
	kubectl wait asc/reports --for=condition=Available --timeout=2m`

// longGuides reports whether all commands are executed, including those that take minutes.
func longGuides() bool { return os.Getenv("QUORATE_GUIDES") != "" }

// TestGuides executes the commands of guides like a reader: all blocks of a document in one shell, in a directory with
// .quorate and the repository files that guides name. QUORATE_GUIDES is empty, "all", or a list of documents.
func TestGuides(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	s := startSandbox(t)
	s.settled(3, 3)
	r := newReader(t, s)
	s3 := upstream.StartS3(t)
	values := map[string]string{
		"https://s3.example.org": s3.URL, "accessKeyID=ID": "accessKeyID=" + upstream.S3AccessKey,
		"secretAccessKey=KEY": "secretAccessKey=" + upstream.S3SecretKey, "CA_BUNDLE": "",
	}
	for _, reading := range readings {
		selected := os.Getenv("QUORATE_GUIDES")
		if reading.long && selected == "" ||
			selected != "" && selected != "all" && !strings.Contains(selected, reading.document) {
			continue
		}
		t.Run(reading.document, func(t *testing.T) { r.read(t, reading, values) })
		s.settled(s.cluster().ReplicaCount(), s.cluster().VoterCount())
	}
	t.Run("runbooks", func(t *testing.T) { s.testRunbooks(t, r) })
}

// reader executes documents.
type reader struct {
	sandbox   *sandbox
	directory string
	programs  string
}

func newReader(t *testing.T, s *sandbox) *reader {
	t.Helper()
	r := &reader{sandbox: s, directory: t.TempDir(), programs: t.TempDir()}
	check(t, os.Symlink(s.directory, filepath.Join(r.directory, ".quorate")))
	for _, name := range []string{"config", "manifests"} {
		check(t, os.Symlink(must(filepath.Abs(filepath.Join("../..", name)))(t), filepath.Join(r.directory, name)))
	}
	check(t, os.Symlink(s.kubectl, filepath.Join(r.programs, "kubectl")))
	if longGuides() {
		build := exec.CommandContext(t.Context(), "go", "build", "-o", r.programs, "filippo.io/age/cmd/age-keygen")
		if output, err := build.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
	}
	return r
}

// read executes the sections of a document, and compares the output with the document's.
func (r *reader) read(t *testing.T, reading reading, values map[string]string) {
	t.Helper()
	text := must(os.ReadFile(filepath.Join("../..", reading.document)))(t)
	blocks := selected(must(guide.Blocks(reading.document, string(text)))(t), reading.sections)
	script := &guide.Script{Long: longGuides(), DryRun: true, Replace: map[string]string{}}
	for _, source := range []map[string]string{values, reading.replace} {
		for old, value := range source {
			script.Replace[old] = value
		}
	}
	script.Add(blocks)
	if script.Len() == 0 {
		if longGuides() {
			t.Fatal("no block is executed")
		}
		t.Skip("its commands take minutes; set QUORATE_GUIDES=all")
	}
	output := t.TempDir()
	r.execute(t, output,
		reading.prepare+"\nset -x\n"+script.String()+"\n{ set +x; } 2>/dev/null\nexec >&2\n"+reading.finish)
	if err := script.Check(blocks, output); err != nil {
		t.Error(err)
	}
}

// selected returns the blocks of sections; nil: of all.
func selected(blocks []guide.Block, sections []string) []guide.Block {
	if sections == nil {
		return blocks
	}
	return slices.DeleteFunc(blocks, func(b guide.Block) bool { return !slices.Contains(sections, b.Heading) })
}

// prelude replaces `go run .` by the binary that runs the sandbox, and sets the variables of the sandbox's terminals.
// The kubeconfig is a copy, because guides change it.
const prelude = `
set -euo pipefail
trap 'kill $(jobs -p) 2>/dev/null || true' EXIT
go() {
  case "$1 $2" in
  "run .") "$QUORATE" "${@:3}" ;;
  "build -o") cp "$QUORATE" "$3" ;;
  *) echo "unexpected: go $*" >&2; return 1 ;;
  esac
}
eval "$(go run . sandbox env 2>/dev/null)"
kubectl config view --raw --flatten > "$OUTPUT/kubeconfig"
export KUBECONFIG="$OUTPUT/kubeconfig"
`

// execute runs a script in the reader's directory.
func (r *reader) execute(t *testing.T, output, script string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "bash", "--norc", "-c", prelude+script)
	command.Dir = r.directory
	command.Env = append(os.Environ(), "QUORATE="+filepath.Join(r.sandbox.directory, "bin", "quorate"),
		"OUTPUT="+output, "HOME="+output,
		"PATH="+r.programs+":"+os.Getenv("PATH"), "KUBECONFIG=", "QUORATE_RESOLVER="+r.resolver(t))
	if printed, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, printed)
	}
}

// resolver returns the address of the sandbox's DNS server, which pods use.
func (r *reader) resolver(t *testing.T) string {
	t.Helper()
	id := must(r.sandbox.process("demo-0"))(t)
	environment := must(os.ReadFile(fmt.Sprintf("/proc/%d/environ", id)))(t)
	_, rest, _ := strings.Cut("\x00"+string(environment), "\x00QUORATE_RESOLVER=")
	address, _, _ := strings.Cut(rest, "\x00")
	return address
}
