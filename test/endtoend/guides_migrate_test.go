package endtoend

import (
	"bytes"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"quorate.dev/test/upstream"
)

// definition defines a custom resource whose objects both servers write.
const migratedDefinition = `
	kubectl apply -f - <<'END'
` + reportsDefinition + `
END
	kubectl wait crd/reports.reports.example.com --for=condition=Established --timeout=1m
	until kubectl get reports; do sleep 0.2; done`

// registered are conditions of a running server: the Service kubernetes has its address, and it has the only identity
// lease. A server publishes both after it is ready, and withdraws them when it stops.
const registered = `
published() {
	[ "$(kubectl get endpointslices -l kubernetes.io/service-name=kubernetes -o 'jsonpath={.items[0].endpoints[0].addresses[0]}')" = 192.0.2.10 ]
}
identified() {
	[ "$(kubectl -n kube-system get leases -l apiserver.kubernetes.io/identity=kube-apiserver -o name | wc -l)" = 1 ]
}`

// migrations are the sections of docs/migrate.md. The commands between them write with one server and read with the
// other.
var migrations = []reading{
	{sections: []string{"Before", "Try it beside kube-apiserver"}, prepare: migratedDefinition + `
	kubectl create serviceaccount before
	kubectl create token before > before.token
	kubectl create secret generic before --from-literal=password=swordfish
	kubectl create service clusterip before --tcp=80
	kubectl create -f - <<< '{"apiVersion":"reports.example.com/v1","kind":"Report","metadata":{"name":"before"},"spec":{"pages":1}}'`},
	{sections: []string{"Change over"}, finish: registered + `
	[ "$(kubectl get secret before -o 'go-template={{.data.password|base64decode}}')" = swordfish ]
	[ "$(kubectl get report before -o 'jsonpath={.spec.pages}')" = 1 ]
	[ "$(kubectl --kubeconfig token.conf --token "$(cat before.token)" auth whoami -o 'jsonpath={.status.userInfo.username}')" = system:serviceaccount:default:before ]
	eventually published
	eventually identified
	kubectl get apiservice v1.reports.example.com v1.apps
	kubectl patch report before --type=merge -p '{"spec":{"pages":2}}'
	kubectl create serviceaccount after
	kubectl create token after > after.token
	kubectl create secret generic after --from-literal=password=halibut
	kubectl create service clusterip after --tcp=80
	kubectl create deployment after --image=registry.example/web --replicas=0`},
	{sections: []string{"Back"}, finish: registered + `
	[ "$(kubectl get secret after -o 'go-template={{.data.password|base64decode}}')" = halibut ]
	[ "$(kubectl get report before -o 'jsonpath={.spec.pages}')" = 2 ]
	[ "$(kubectl --kubeconfig token.conf --token "$(cat after.token)" auth whoami -o 'jsonpath={.status.userInfo.username}')" = system:serviceaccount:default:after ]
	[ "$(kubectl get services before after -o 'jsonpath={.items[*].spec.clusterIP}' | tr ' ' '\n' | sort -u | wc -l)" = 2 ]
	eventually published
	kubectl get deployment after
	! grep -q 'Secret before\|Secret after' kube-apiserver.log`},
	{sections: []string{"Into an embedded etcd"}, finish: `
	[ "$(kubectl get report before -o 'jsonpath={.spec.pages}')" = 2 ]
	[ "$(kubectl get secret before -o 'go-template={{.data.password|base64decode}}')" = swordfish ]`},
}

// TestMigrate executes the commands of docs/migrate.md on a machine with kube-apiserver as a static pod, and etcd.
func TestMigrate(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	m := newMachine(t)
	endpoint := m.startEtcd(t)
	k := m.startKubelet(t, endpoint)
	for i, reading := range migrations {
		reading.document = "docs/migrate.md"
		reading.replace = map[string]string{
			"https://127.0.0.1:2379": endpoint, "https://127.0.0.1:7443": "https://127.0.0.1:" + k.trialPort,
			"=7443": "=" + k.trialPort,
		}
		if i == len(migrations)-1 {
			k.stop()
		}
		if !t.Run(strings.Join(reading.sections, ", "), func(t *testing.T) { m.read(t, reading) }) {
			t.Fatalf("log: %s", k.tail())
		}
	}
}

// startEtcd starts etcd with TLS and the files of kubeadm, and returns its URL.
func (m *machine) startEtcd(t *testing.T) string {
	t.Helper()
	directory := filepath.Join(m.root, "etc/kubernetes/pki")
	check(t, os.Mkdir(filepath.Join(directory, "etcd"), 0o755))
	check(t, os.WriteFile(filepath.Join(directory, "etcd/ca.crt"), m.pki.Admin(0).CAData, 0o600))
	check(t, os.Symlink("front-proxy.crt", filepath.Join(directory, "apiserver-etcd-client.crt")))
	check(t, os.Symlink("front-proxy.key", filepath.Join(directory, "apiserver-etcd-client.key")))
	client, peer := fmt.Sprintf("https://127.0.0.1:%d", freePort(t)), fmt.Sprintf("http://127.0.0.1:%d", freePort(t))
	etcd := exec.Command(must(upstream.Etcd(t.Context()))(t),
		"--data-dir="+filepath.Join(m.root, "etcd"), "--log-level=warn", "--unsafe-no-fsync",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--cert-file="+filepath.Join(directory, "serving.crt"), "--key-file="+filepath.Join(directory, "serving.key"),
		"--trusted-ca-file="+filepath.Join(directory, "ca.crt"), "--client-cert-auth",
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	check(t, etcd.Start())
	t.Cleanup(func() { end(etcd) })
	return client
}

// kubelet runs the static pod kube-apiserver of a machine.
type kubelet struct {
	manifest, directory string
	binaries            map[string]string
	trialPort           string
	done, stopped       chan struct{}
}

// startKubelet writes the manifest of kube-apiserver, runs it, and returns when it is ready.
func (m *machine) startKubelet(t *testing.T, etcd string) *kubelet {
	t.Helper()
	k := &kubelet{
		manifest: filepath.Join(m.root, "etc/kubernetes/manifests/kube-apiserver.yaml"), directory: m.root,
		trialPort: fmt.Sprint(freePort(t)), done: make(chan struct{}), stopped: make(chan struct{}),
		binaries: map[string]string{
			"kube-apiserver": must(upstream.Binary(t.Context(), "kube-apiserver"))(t),
			"/quorate":       must(upstream.Quorate(t.Context()))(t),
		},
	}
	pki := filepath.Join(m.root, "etc/kubernetes/pki")
	flags := append(strings.Fields(m.flags), "--etcd-servers="+etcd, "--etcd-cafile="+pki+"/etcd/ca.crt",
		"--etcd-certfile="+pki+"/apiserver-etcd-client.crt", "--etcd-keyfile="+pki+"/apiserver-etcd-client.key")
	flags = append(flags, must(m.pki.WriteFrontProxy())(t)...)
	check(t, os.MkdirAll(filepath.Dir(k.manifest), 0o755))
	text := "apiVersion: v1\nkind: Pod\nmetadata:\n  name: kube-apiserver\nspec:\n  containers:\n  - command:\n    - " +
		"kube-apiserver\n    - " +
		strings.Join(flags, "\n    - ") + "\n    image: registry.k8s.io/kube-apiserver:v1.36.3\n    name: kube-apiserver\n"
	check(t, os.WriteFile(k.manifest, []byte(text), 0o600))
	check(t, os.WriteFile(filepath.Join(m.root, "pid"), nil, 0o600)) // nothing else starts a server
	go k.run()
	t.Cleanup(k.stop)
	config := m.pki.Admin(m.port)
	check(t, upstream.WriteKubeconfig(filepath.Join(m.root, "token.conf"), &rest.Config{
		Host: config.Host, TLSClientConfig: rest.TLSClientConfig{CAData: config.CAData},
	}))
	client := must(rest.HTTPClientFor(config))(t)
	s := &sandbox{t: t}
	s.waitFor("kube-apiserver", func() (bool, string) {
		response, err := client.Get(config.Host + "/readyz")
		if err != nil {
			return false, k.tail()
		}
		defer response.Body.Close()
		return response.StatusCode == http.StatusOK, response.Status
	})
	return k
}

// run runs the command of the manifest, and replaces the process when the manifest changes.
func (k *kubelet) run() {
	defer close(k.stopped)
	var running *exec.Cmd
	var current []byte
	for ticker := time.NewTicker(100 * time.Millisecond); ; {
		if text, err := os.ReadFile(k.manifest); err == nil && !bytes.Equal(text, current) {
			end(running)
			current, running = text, k.start(text)
		}
		select {
		case <-ticker.C:
		case <-k.done:
			end(running)
			return
		}
	}
}

func (k *kubelet) start(manifest []byte) *exec.Cmd {
	var pod corev1.Pod
	log, err := os.OpenFile(filepath.Join(k.directory, "kube-apiserver.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil || yaml.UnmarshalStrict(manifest, &pod) != nil {
		return nil // the guide has started to write the file
	}
	defer log.Close()
	command := pod.Spec.Containers[0].Command
	process := exec.Command(k.binaries[command[0]], command[1:]...)
	process.Stdout, process.Stderr = log, log
	if err := process.Start(); err != nil {
		fmt.Fprintln(log, err)
		return nil
	}
	return process
}

func end(process *exec.Cmd) {
	if process != nil {
		_ = process.Process.Signal(syscall.SIGTERM)
		defer time.AfterFunc(time.Minute, func() { _ = process.Process.Kill() }).Stop()
		_ = process.Wait()
	}
}

// stop stops kube-apiserver.
func (k *kubelet) stop() {
	select {
	case <-k.stopped:
	default:
		close(k.done)
		<-k.stopped
	}
}

func (k *kubelet) tail() string {
	text, _ := os.ReadFile(filepath.Join(k.directory, "kube-apiserver.log"))
	return string(text[max(0, len(text)-3000):])
}
