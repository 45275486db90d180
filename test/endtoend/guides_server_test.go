package endtoend

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/docs/guide"
	"quorate.dev/test/upstream"
)

// serverReadings are executed in this order, on a machine without the operator. An API server with an embedded member
// runs, and `quorate apiserver ...` restarts it with other flags.
var serverReadings = []reading{
	{document: "docs/observability.md"},
	{document: "docs/fairness.md"},
	{document: "docs/etcd.md", sections: []string{"Without the operator"}},
	{document: "docs/backup.md", sections: []string{"Without the operator"}, prepare: "mkdir -p /mnt/backups"},
	{document: "docs/etcd.md", sections: []string{"quorate etcd"}},
	{document: "docs/audit.md", prepare: "mkdir -p /var/log/kubernetes", finish: `
		kubectl get namespaces; kubectl create configmap audited; grep -q '"name":"audited"' /var/log/kubernetes/audit.log`},
	{document: "docs/authentication.md", prepare: "cp $KUBECONFIG /etc/kubernetes/policy-webhook.kubeconfig"},
	{document: "docs/encryption.md", sections: []string{"Setup"},
		prepare: "kubectl create secret generic example", finish: `
		quorate etcd snapshot save encrypted.db --data-dir /var/lib/quorate/etcd
		quorate etcd snapshot status encrypted.db | grep -q secretbox:v1:key1`},
	{document: "docs/egress.md", prepare: `
		mkdir -p /etc/kubernetes/proxy
		cp /etc/kubernetes/pki/ca.crt /etc/kubernetes/pki/front-proxy-client.crt /etc/kubernetes/pki/front-proxy-client.key /etc/kubernetes/proxy
		cd /etc/kubernetes/proxy; mv front-proxy-client.crt client.crt; mv front-proxy-client.key client.key; cd -
		kubectl create -f - <<< '` + unreachableWebhook + `'`,
		// The server calls a webhook through a proxy that does not exist.
		replace: map[string]string{"kubectl get --raw /metrics | grep -E '^(apiserver_egress": "kubectl create configmap " +
			"reviewed\nkubectl get --raw /metrics | grep -E '^(apiserver_egress"}},
}

const unreachableWebhook = `{
	"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration", "metadata": {"name": "unreachable"},
	"webhooks": [{
		"name": "unreachable.example.com", "clientConfig": {"url": "https://unreachable.invalid/"}, "timeoutSeconds": 1,
		"admissionReviewVersions": ["v1"], "sideEffects": "None", "failurePolicy": "Ignore",
		"rules": [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}]
	}]
}`

// TestServerGuides executes the commands of guides about `quorate apiserver` without the operator.
func TestServerGuides(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	m := newMachine(t)
	for _, reading := range serverReadings {
		t.Run(reading.document, func(t *testing.T) { m.read(t, reading) })
	}
}

// machine is a directory that replaces the root of a file system, with a PKI named like kubeadm's.
type machine struct {
	root      string
	programs  string
	variables []string
	flags     string // of API servers, separated by spaces
	pki       *upstream.PKI
	port      int // of API servers
}

func newMachine(t *testing.T) *machine {
	t.Helper()
	root := must(os.MkdirTemp("", "machine"))(t) // paths of sockets must be short
	t.Cleanup(func() { os.RemoveAll(root) })
	m := &machine{root: root, programs: t.TempDir()}
	for _, directory := range []string{"etc/kubernetes", "var/lib/quorate", "run"} {
		check(t, os.MkdirAll(filepath.Join(root, directory), 0o755))
	}
	pki := must(upstream.NewPKI(filepath.Join(root, "etc/kubernetes/pki")))(t)
	must(pki.WriteFrontProxy())(t)
	for name, link := range map[string]string{
		"client-ca.crt": "ca.crt", "front-proxy.crt": "front-proxy-client.crt", "front-proxy.key": "front-proxy-client.key",
	} {
		check(t, os.Symlink(name, filepath.Join(root, "etc/kubernetes/pki", link)))
	}
	check(t, os.Symlink("client-ca.crt", filepath.Join(root, "etc/kubernetes/pki/front-proxy-ca.crt")))
	port := freePort(t)
	kubeconfig := filepath.Join(root, "etc/kubernetes/admin.conf")
	check(t, upstream.WriteKubeconfig(kubeconfig, pki.Admin(port)))
	for program, binary := range map[string]string{
		"kubectl": must(upstream.Binary(t.Context(), "kubectl"))(t), "quorate-binary": must(upstream.Quorate(t.Context()))(t),
	} {
		check(t, os.Symlink(binary, filepath.Join(m.programs, program)))
	}
	m.pki, m.port = pki, port
	m.flags = strings.Join(append(pki.Flags(), "--bind-address=127.0.0.1", "--advertise-address=192.0.2.10",
		fmt.Sprintf("--secure-port=%d", port),
		"--service-cluster-ip-range=10.0.0.0/24", "--authorization-mode=Node,RBAC"), " ")
	m.variables = append(os.Environ(), "KUBECONFIG="+kubeconfig, "FLAGS="+m.flags, "ROOT="+root, "HOME="+root,
		"PATH="+m.programs+":"+os.Getenv("PATH"))
	t.Cleanup(func() { m.stop(t) })
	return m
}

func freePort(t *testing.T) int {
	t.Helper()
	listener := must(net.Listen("tcp", "127.0.0.1:0"))(t)
	defer listener.Close()
	return listener.Addr().(*net.TCPAddr).Port
}

// machinePrelude defines `quorate apiserver ...` as a shell function. It replaces the running server by one in the
// background, and returns when that server is ready.
const machinePrelude = `
set -euo pipefail
stop() {
  [ -e "$ROOT/pid" ] || return 0
  kill "$(cat "$ROOT/pid")" || true
  while kill -0 "$(cat "$ROOT/pid")" 2>/dev/null; do sleep 0.05; done
  rm "$ROOT/pid"
}
quorate() {
  local -
  set +x
  case "$*" in "apiserver ..."*) ;; *)
    [ "$BASHPID" = $$ ] || exec quorate-binary "$@" # in the background, $! is the server then
    quorate-binary "$@"
    return ;;
  esac
  stop
  local args="$*" flags="$FLAGS"
  case "$args" in *--etcd-data-dir*) ;; *) flags+=" --etcd-data-dir=$ROOT/var/lib/quorate/etcd" ;; esac
  case "$args" in *--authorization-config*) flags="${flags/--authorization-mode=Node,RBAC/}" ;; esac
  quorate-binary ${args/.../$flags} > "$ROOT/log" 2>&1 < /dev/null &
  echo $! > "$ROOT/pid"
  until kubectl get --raw /readyz > /dev/null 2>&1; do
    kill -0 "$(cat "$ROOT/pid")" || { cat "$ROOT/log"; return 1; }
    sleep 0.1
  done
}
eventually() {
  for _ in {1..300}; do
    if "$@"; then return; fi
    sleep 0.2
  done
  return 1
}
[ -e "$ROOT/pid" ] || quorate apiserver ...
`

// read executes the sections of a document.
func (m *machine) read(t *testing.T, reading reading) {
	t.Helper()
	text := must(os.ReadFile(filepath.Join("../..", reading.document)))(t)
	blocks := selected(must(guide.Blocks(reading.document, string(text)))(t), reading.sections)
	script := &guide.Script{Long: longGuides(), Replace: m.paths()}
	for name, value := range reading.replace {
		script.Replace[name] = value
	}
	script.Add(blocks)
	if script.Len() == 0 {
		t.Fatal("no block is executed")
	}
	output := t.TempDir()
	m.execute(t, output, m.local(reading.prepare)+"\nset -x\n"+script.String()+"\nexec >&2\n"+m.local(reading.finish))
	if err := script.Check(blocks, output); err != nil {
		t.Error(err)
	}
}

// paths replaces the directories in documents.
func (m *machine) paths() map[string]string {
	paths := map[string]string{}
	for _, path := range []string{"/etc/kubernetes", "/var/lib/quorate", "/var/log/kubernetes", "/mnt/backups", "/run/"} {
		paths[path] = m.root + path
	}
	return paths
}

func (m *machine) local(script string) string {
	for path, local := range m.paths() {
		script = strings.ReplaceAll(script, path, local)
	}
	return script
}

func (m *machine) execute(t *testing.T, output, script string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "bash", "--norc", "-c", machinePrelude+script)
	command.Dir, command.Env = m.root, append(m.variables, "OUTPUT="+output)
	if printed, err := command.CombinedOutput(); err != nil {
		log, _ := os.ReadFile(filepath.Join(m.root, "log"))
		t.Errorf("%v\n%s\nserver: %s", err, printed, log[max(0, len(log)-2000):])
	}
}

// stop stops the server, and waits until no process of the machine is left.
func (m *machine) stop(t *testing.T) {
	t.Helper()
	if output, err := exec.Command(
		"bash", "-c", `[ ! -s "$0/pid" ] || kill "$(cat "$0/pid")"`, m.root,
	).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
	var left []string
	err := wait.PollUntilContextTimeout(context.WithoutCancel(t.Context()), 100*time.Millisecond, time.Minute, true, func(
		context.Context,
	) (bool, error) {
		left = m.processes()
		return len(left) == 0, nil
	})
	if err != nil {
		t.Errorf("processes that the guide does not stop:\n%s", strings.Join(left, "\n"))
	}
}

// processes returns the command lines of processes with the machine's directory in their arguments.
func (m *machine) processes() (found []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		if line, err := os.ReadFile(file); err == nil && strings.Contains(string(line), m.root+"/") {
			found = append(found, strings.ReplaceAll(string(line), "\x00", " "))
		}
	}
	return found
}
