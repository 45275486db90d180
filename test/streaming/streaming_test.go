// Package streaming compares log, exec, attach, port-forward and proxy through this server and kube-apiserver: both run
// on one etcd, and the same clients use both.
package streaming

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"quorate.dev/test/upstream"
)

const (
	namespace = "default"
	patience  = 20 * time.Second
)

// side is one of the two servers.
type side struct {
	name       string
	admin      *rest.Config
	client     *kubernetes.Clientset
	kubeconfig string
}

// bench has both servers, the kubelet they connect to, and kubectl.
type bench struct {
	kubernetes, quorate *side
	kubelet             *kubelet
	kubectl             string
	server              *upstream.APIServer // quorate's
}

func start(t *testing.T) *bench {
	ctx, directory := t.Context(), t.TempDir()
	var addresses []net.IP
	if address := upstream.GlobalAddress(t); address != "" {
		addresses = append(addresses, net.ParseIP(address))
	}
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"), addresses...)
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := upstream.StartEtcd(ctx, directory)
	if err != nil {
		t.Fatal(err)
	}
	etcd.StopAfter(t)
	admin := pki.Admin(0)
	files := map[string][]byte{
		"kubelet-ca.crt": admin.CAData, "kubelet-client.crt": admin.CertData, "kubelet-client.key": admin.KeyData,
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(directory, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	options := upstream.Options{Directory: directory, PKI: pki, Etcd: etcd.Endpoint, Arguments: []string{
		"--kubelet-certificate-authority=" + filepath.Join(directory, "kubelet-ca.crt"),
		"--kubelet-client-certificate=" + filepath.Join(directory, "kubelet-client.crt"),
		"--kubelet-client-key=" + filepath.Join(directory, "kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--feature-gates=CBORServingAndStorage=true",
	}}
	theirs, err := upstream.StartKubernetes(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	theirs.StopAfter(t)
	ours, err := upstream.StartQuorate(ctx, options)
	if err != nil {
		t.Fatal(err)
	}
	ours.StopAfter(t)
	kubectl, err := upstream.Binary(ctx, "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{
		kubernetes: newSide(t, "kube-apiserver", theirs.Admin), quorate: newSide(t, "quorate", ours.Admin), kubectl: kubectl,
		kubelet: startKubelet(t, filepath.Join(directory, "pki")), server: ours,
	}
	b.createObjects(t)
	return b
}

func newSide(t *testing.T, name string, admin *rest.Config) *side {
	client, err := kubernetes.NewForConfig(admin)
	if err != nil {
		t.Fatal(err)
	}
	s := &side{name: name, admin: admin, client: client, kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: admin.Host, CertificateAuthorityData: admin.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: admin.CertData, ClientKeyData: admin.KeyData}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: namespace}
	config.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*config, s.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return s
}

// createObjects creates a node with the fake kubelet, and a pod on it.
func (b *bench) createObjects(t *testing.T) {
	ctx, core := t.Context(), b.kubernetes.client.CoreV1()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node"}}
	node.Status.Addresses = []corev1.NodeAddress{
		{Type: corev1.NodeHostName, Address: "nowhere.invalid"}, {Type: corev1.NodeInternalIP, Address: "127.0.0.1"},
	}
	node.Status.DaemonEndpoints.KubeletEndpoint.Port = int32(b.kubelet.port)
	if _, err := core.Nodes().Create(ctx, node, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "pod", Labels: map[string]string{"app": "pod"}}}
	pod.Spec.NodeName = "node"
	for _, name := range []string{"main", "follow", "broken", "waiting", "elsewhere", "gone", "busy"} {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{Name: name, Image: "image", Stdin: true})
	}
	pod.Annotations = map[string]string{"kubectl.kubernetes.io/default-container": "main"}
	pod, err := core.Pods(namespace).Create(ctx, pod, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	pod.Status.Phase = corev1.PodRunning
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	if address := upstream.GlobalAddress(t); address != "" {
		pod.Status.PodIP, pod.Status.PodIPs = address, []corev1.PodIP{{IP: address}}
	}
	if _, err := core.Pods(namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// both runs a function on both servers and compares the results, which must contain the wanted text.
func (b *bench) both(t *testing.T, want string, do func(t *testing.T, s *side) string) {
	t.Helper()
	theirs, ours := do(t, b.kubernetes), do(t, b.quorate)
	if theirs != ours {
		t.Errorf("kube-apiserver:\n%s\nquorate:\n%s", theirs, ours)
	}
	if !strings.Contains(theirs, want) {
		t.Errorf("%q is not in\n%s", want, theirs)
	}
}

// run runs kubectl and returns its output with the exit code.
func (b *bench) run(t *testing.T, s *side, input string, arguments ...string) string {
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	var out, stderr bytes.Buffer
	command := exec.CommandContext(ctx, b.kubectl, append([]string{"--kubeconfig=" + s.kubeconfig}, arguments...)...)
	command.Stdin, command.Stdout, command.Stderr = strings.NewReader(input), &out, &stderr
	command.Env = append(os.Environ(), "HOME="+t.TempDir())
	_ = command.Run() // the exit code is checked below
	said := fmt.Sprintf("exit code %d\nstdout: %sstderr: %s", command.ProcessState.ExitCode(),
		out.String(), stderr.String())
	return strings.ReplaceAll(said, s.admin.Host, "SERVER")
}

func TestStreaming(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	b := start(t)
	before := goroutines(t, b.quorate)
	t.Run("kubectl", b.testKubectl)
	t.Run("copy", b.testCopy)
	t.Run("follow", b.testFollow)
	t.Run("commands", b.testCommands)
	t.Run("gone", b.testGone)
	t.Run("ports", b.testPorts)
	t.Run("connect", b.testConnect)
	t.Run("kubectl port-forward", b.testKubectlPortForward)
	t.Run("kubectl proxy", b.testKubectlProxy)
	t.Run("proxy", b.testProxy)
	t.Run("sockets", b.testSockets)
	t.Run("watch", b.testWatchOverSocket)
	t.Run("metrics", b.testMetrics)
	b.awaitGoroutines(t, before)
	t.Run("stop", b.testStop)
}

// testMetrics compares the metrics of both servers about the requests so far. The code of a translated stream whose
// client disconnected depends on what its handler observes first, on either server: only the sum of all codes is
// compared.
func (b *bench) testMetrics(t *testing.T) {
	b.both(t, `subresource="exec"`, func(t *testing.T, s *side) string {
		var lines []string
		translated := 0
		for line := range strings.SplitSeq(metrics(t, s), "\n") {
			counts := strings.HasPrefix(line, "apiserver_request_total{") && strings.Contains(line, `verb="CONNECT"`)
			if strings.HasSuffix(line, "} 0") {
				continue // did not occur
			}
			var count int
			if rest, found := strings.CutPrefix(line, "apiserver_stream_translator_requests_total{code="); found {
				if _, err := fmt.Sscanf(rest, "%q} %d", new(string), &count); err != nil {
					t.Errorf("%s: %v", line, err)
				}
				translated += count
			}
			for _, family := range []string{
				"apiserver_websocket_streaming_requests_total{",
				"apiserver_stream_tunnel_requests_total{", "kube_apiserver_pod_logs_insecure",
			} {
				counts = counts || strings.HasPrefix(line, family)
			}
			if counts {
				lines = append(lines, line)
			}
		}
		slices.Sort(lines)
		return strings.Join(append(lines, fmt.Sprintf("%d translated streams", translated)), "\n")
	})
}

// metrics returns a server's metrics page.
func metrics(t *testing.T, s *side) string {
	body, err := s.client.CoreV1().RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func (b *bench) testKubectl(t *testing.T) {
	for name, c := range map[string]struct {
		input, want, arguments string
	}{
		"logs":  {want: "pod main", arguments: "logs pod"},
		"tail":  {want: "tailLines=3", arguments: "logs pod --tail=3 --timestamps"},
		"since": {want: "sinceSeconds=60", arguments: "logs pod --since=1m --limit-bytes=7"},
		"since a time": {
			want: "sinceTime=2020-01-02T03%3A04%3A05Z", arguments: "logs pod --since-time=2020-01-02T03:04:05Z",
		},
		"previous":          {want: "previous=true", arguments: "logs pod --previous"},
		"unverified":        {want: "pod main", arguments: "logs pod --insecure-skip-tls-verify-backend"},
		"labels":            {want: "pod main", arguments: "logs -l app=pod"},
		"broken":            {want: "the runtime is broken", arguments: "logs pod -c broken"},
		"waiting":           {want: "waiting to start", arguments: "logs pod -c waiting"},
		"elsewhere":         {want: "redirects forbidden", arguments: "logs pod -c elsewhere"},
		"gone":              {want: "could not find the requested resource", arguments: "logs pod -c gone"},
		"busy":              {want: "exit code 1", arguments: "logs pod -c busy"},
		"unknown":           {want: "container x is not valid", arguments: "logs pod -c x"},
		"exec":              {want: "stdout: hello\n", arguments: "exec pod -- echo hello"},
		"exec with input":   {want: "stdout: some input", input: "some input", arguments: "exec -i pod -- cat"},
		"exec that fails":   {want: "exit code 3", arguments: "exec pod -- sh -c exit${IFS}3"},
		"exec with errors":  {want: "stderr: ls: ", arguments: "exec pod -- ls /nothing/there"},
		"exec of nothing":   {want: "exit code 1", arguments: "exec pod -- /nothing/there"},
		"exec in another":   {want: "container x is not valid", arguments: "exec pod -c x -- ls"},
		"attach":            {want: "attached", arguments: "attach pod"},
		"attach with input": {want: "twice\ntwice\n", input: "twice\n", arguments: "attach -i pod"},
	} {
		t.Run(name, func(t *testing.T) {
			b.both(t, c.want, func(t *testing.T, s *side) string { return b.run(t, s, c.input, strings.Fields(c.arguments)...) })
		})
	}
}

func (b *bench) testCopy(t *testing.T) {
	source := filepath.Join(t.TempDir(), "source")
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	if err := os.WriteFile(source, content, 0o600); err != nil {
		t.Fatal(err)
	}
	b.both(t, "exit code 0", func(t *testing.T, s *side) string {
		there, back := filepath.Join(t.TempDir(), "there"), filepath.Join(t.TempDir(), "back")
		said := b.run(t, s, "", "cp", source, "pod:"+there) + b.run(t, s, "", "cp", "pod:"+there, back)
		if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s: %v, %d bytes came back of %d\n%s", s.name, err, len(got), len(content), said)
		}
		return strings.Split(said, "\n")[0]
	})
}

// testFollow reads each line as soon as it is written, and closes the connection to the kubelet at once.
func (b *bench) testFollow(t *testing.T) {
	b.both(t, "first second", func(t *testing.T, s *side) string {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		stream, err := s.client.CoreV1().Pods(namespace).GetLogs("pod",
			&corev1.PodLogOptions{Container: "follow", Follow: true}).Stream(ctx)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(stream)
		lines.Scan()
		first := lines.Text()
		b.kubelet.more <- struct{}{}
		lines.Scan()
		said := first + " " + lines.Text()
		if err := stream.Close(); err != nil {
			t.Fatal(err)
		}
		b.awaitEnd(t, s, "log")
		return said
	})
}

// awaitEnd waits until the kubelet observes that a client has disconnected.
func (b *bench) awaitEnd(t *testing.T, s *side, what string) {
	t.Helper()
	select {
	case ended := <-b.kubelet.ended:
		if ended != what {
			t.Errorf("%s: %s ended, not %s", s.name, ended, what)
		}
	case <-time.After(patience):
		t.Errorf("%s: the kubelet did not observe that the client of %s disconnected", s.name, what)
	}
}

// goroutines returns go_goroutines from the server's metrics.
func goroutines(t *testing.T, s *side) int {
	for line := range strings.SplitSeq(metrics(t, s), "\n") {
		var count int
		if _, err := fmt.Sscanf(line, "go_goroutines %d", &count); err == nil {
			return count
		}
	}
	t.Fatal("no go_goroutines")
	return 0
}

// awaitGoroutines waits until the server has no more goroutines than before, except those of kept connections.
func (b *bench) awaitGoroutines(t *testing.T, before int) {
	const kept = 25 // about two for each connection to the kubelet and of a client, and those of caches that started
	var now int
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, patience, true, func(
		context.Context,
	) (bool, error) {
		now = goroutines(t, b.quorate)
		return now <= before+kept, nil
	})
	if err != nil {
		profile, _ := b.quorate.client.CoreV1().RESTClient().Get().AbsPath("/debug/pprof/goroutine").Param("debug",
			"1").DoRaw(t.Context())
		t.Fatalf("%d goroutines, %d before\n%s", now, before, profile)
	}
}

// get sends a request as the administrator and returns the compared parts of the response.
func get(t *testing.T, s *side, method, path string) string {
	client, err := rest.HTTPClientFor(s.admin)
	if err != nil {
		t.Fatal(err)
	}
	client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	request, err := http.NewRequestWithContext(t.Context(), method, s.admin.Host+path, strings.NewReader("sent"))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("X-Mine", "kept")
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	said := fmt.Sprintf("%s\nType: %s\nLocation: %s\nMine: %s\n%s", response.Status, response.Header.Get("Content-Type"),
		response.Header.Get("Location"), response.Header.Get("X-Mine"), body)
	return strings.ReplaceAll(strings.ReplaceAll(said, s.admin.Host, "SERVER"),
		strings.TrimPrefix(s.admin.Host, "https://"), "HOST")
}
