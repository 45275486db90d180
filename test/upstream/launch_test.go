package upstream

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// get sends a request and returns the body of the response.
func get(t *testing.T, config *rest.Config, path string) string {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, config.Host+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(request)
	if err != nil {
		return err.Error()
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

// TestAPIServersAreStarted starts both servers, and checks their flags and the users of the certificates.
func TestAPIServersAreStarted(t *testing.T) {
	usePrograms(t, "")
	pki := newPKI(t)
	for name, test := range map[string]struct {
		launch  Launch
		options Options
		has     []string // in the command line
		lacks   []string
	}{
		"Quorate with an embedded member": {
			StartQuorate, Options{}, []string{
				"start quorate apiserver --bind-address=127.0.0.1 ", "/member", "--disable-admission-plugins=ServiceAccount",
			}, []string{"--etcd-servers"},
		},
		"Quorate with an etcd": {
			StartQuorate, Options{Etcd: "http://etcd", Accounts: true, Answers: "/livez", Wrapper: []string{"env", "A=1"}},
			[]string{"start quorate apiserver ", "--etcd-servers=http://etcd"},
			[]string{"/member", "--disable-admission-plugins"},
		},
		"kube-apiserver with other flags": {
			StartKubernetes, Options{Etcd: "http://etcd", Arguments: []string{
				"--allow-privileged=false", "--authorization-config=file", "--service-account-signing-endpoint=socket",
			}},
			[]string{"start kube-apiserver --bind-address", "--allow-privileged=false --authorization-config=file"},
			[]string{"--allow-privileged=true", "--authorization-mode", "--service-account-key-file", "signing-key-file"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			test.options.PKI, test.options.Directory = pki, filepath.Join(t.TempDir(), "server")
			before := time.Now()
			server, err := test.launch(t.Context(), test.options)
			if err != nil {
				t.Fatal(err)
			}
			server.StopAfter(t)
			if server.Ready.Before(before) || server.Started.Before(before) {
				t.Errorf("started at %v and ready at %v", server.Started, server.Ready)
			}
			if user := get(t, server.Admin, "/user"); user != "admin[system:masters]" {
				t.Errorf("the administrator is %q", user)
			}
			jane, err := pki.As(server.Admin, "jane", "team")
			if err != nil {
				t.Fatal(err)
			}
			if user := get(t, jane, "/user"); user != "jane[team]" {
				t.Errorf("jane is %q", user)
			}
			stranger := rest.AnonymousClientConfig(server.Admin)
			if user := get(t, stranger, "/user"); !strings.Contains(user, "certificate required") {
				t.Errorf("a client without a certificate is %q", user)
			}
			line := server.Tail()
			for _, flag := range test.has {
				if !strings.Contains(line, flag) {
					t.Errorf("the command line lacks %s: %s", flag, line)
				}
			}
			for _, flag := range test.lacks {
				if strings.Contains(line, flag) {
					t.Errorf("the command line has %s: %s", flag, line)
				}
			}
		})
	}
}

// TestFailedStarts checks the errors of programs that do not become ready, and that none of them keeps running.
func TestFailedStarts(t *testing.T) {
	pki := newPKI(t)
	t.Run("exit", func(t *testing.T) {
		usePrograms(t, "exit")
		_, err := StartQuorate(t.Context(), Options{PKI: pki, Directory: t.TempDir()})
		for _, want := range []string{"quorate exited before it was ready", "cannot read the data", "exit status 3"} {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("got the error %v, want %q", err, want)
			}
		}
	})
	t.Run("timeout", func(t *testing.T) {
		usePrograms(t, "hang")
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		directory := t.TempDir()
		server, err := StartQuorate(ctx, Options{PKI: pki, Directory: directory})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "start quorate apiserver") {
			t.Errorf("got the error %v", err)
		}
		if server != nil {
			t.Errorf("got a server that is not ready: %+v", server)
		}
		process, err := Run("sleep", "/bin/sleep", directory, nil, []string{"3600"})
		if err != nil {
			t.Fatal(err)
		}
		if err := process.until(ctx, func(context.Context) bool { return false }); err == nil {
			t.Error("a process is ready after a timeout")
		}
		<-process.Ended()
	})
	t.Run("port", func(t *testing.T) {
		usePrograms(t, "port taken twice")
		server, err := StartQuorate(t.Context(), Options{PKI: pki, Directory: t.TempDir()})
		if err != nil {
			t.Fatal(err)
		}
		server.StopAfter(t)
		if starts := strings.Count(server.Tail(), "start quorate"); starts != 3 {
			t.Errorf("the server was started %d times", starts)
		}
	})
	t.Run("no binary", func(t *testing.T) {
		if _, err := Run("missing", filepath.Join(t.TempDir(), "missing"), t.TempDir(), nil, nil); err == nil ||
			!strings.HasPrefix(err.Error(), "missing: fork/exec") {
			t.Errorf("got the error %v", err)
		}
	})
	t.Run("no directory", func(t *testing.T) {
		missing := filepath.Join(t.TempDir(), "missing")
		if _, err := Run("sh", "/bin/sh", missing, nil, nil); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("got the error %v", err)
		}
	})
}

// TestOtherProgramsAreStarted starts etcd, an extension API server, the controller manager and the scheduler, and the
// S3 server.
func TestOtherProgramsAreStarted(t *testing.T) {
	usePrograms(t, "")
	directory := t.TempDir()
	etcd, err := StartEtcd(t.Context(), directory)
	if err != nil {
		t.Fatal(err)
	}
	etcd.StopAfter(t)
	if line := etcd.Tail(); !strings.Contains(line, "--advertise-client-urls="+etcd.Endpoint+" ") {
		t.Errorf("%s is not in the command line %s", etcd.Endpoint, line)
	}

	serving, err := NewAuthority("serving")
	if err != nil {
		t.Fatal(err)
	}
	secure, err := StartSecureEtcd(t.Context(), t.TempDir(), serving, serving)
	if err != nil {
		t.Fatal(err)
	}
	secure.StopAfter(t)
	if !strings.HasPrefix(secure.Endpoint, "https://") || !strings.Contains(secure.Tail(), "--client-cert-auth ") {
		t.Errorf("%s is started with %s", secure.Endpoint, secure.Tail())
	}

	extension, err := StartExtension(t.Context(), ExtensionOptions{
		Directory: filepath.Join(directory, "extension"), Etcd: etcd.Endpoint, Serving: serving,
		Names: []string{"extension.default.svc"}, Arguments: []string{"--extension-groups=example.com"},
	})
	if err != nil {
		t.Fatal(err)
	}
	extension.StopAfter(t)
	line := extension.Tail()
	if !strings.Contains(line, "--etcd-servers="+etcd.Endpoint) ||
		!strings.HasSuffix(line, "--extension-groups=example.com") {
		t.Errorf("the extension API server is started with %s", line)
	}

	pki := newPKI(t)
	server, err := StartQuorate(t.Context(), Options{PKI: pki, Directory: filepath.Join(directory, "server")})
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	client := Client{
		Directory: filepath.Join(directory, "clients"), PKI: pki, Server: server.Admin, Arguments: []string{"--v=3"},
	}
	for name, start := range map[string]func(context.Context) (*Process, error){
		"kube-controller-manager": client.StartControllerManager, "kube-scheduler": client.StartScheduler,
	} {
		process, err := start(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		process.StopAfter(t)
		kubeconfig := filepath.Join(client.Directory, name+".kubeconfig")
		if line := process.Tail(); !strings.Contains(line, " --kubeconfig="+kubeconfig+" ") ||
			!strings.HasSuffix(line, " --v=3") {
			t.Errorf("%s is started with %s", name, line)
		}
		config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
		if err != nil {
			t.Fatal(err)
		}
		if user := get(t, config, "/user"); user != "system:"+name+"[]" {
			t.Errorf("%s is the user %q", name, user)
		}
	}

	if s3 := StartS3(t); get(t, &rest.Config{Host: s3.URL}, "/healthz") != "" {
		t.Errorf("%s does not answer", s3.URL)
	}
}

// TestReplicasAreDialed checks which replica a client connects to: its preferred one, while that replica runs, and any
// other one afterwards.
func TestReplicasAreDialed(t *testing.T) {
	usePrograms(t, "")
	pki := newPKI(t)
	replicas := []*Replica{{}, {}, {Launch: StartQuorate}} // the first has never been started
	dial := DialReplicas(replicas, 2)
	if _, err := dial(t.Context(), "tcp", "ignored"); err == nil {
		t.Error("connected to a replica before the first start")
	}
	for _, replica := range replicas[1:] {
		replica.Launch, replica.Options = StartQuorate, Options{PKI: pki, Directory: t.TempDir()}
		if err := replica.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		defer replica.Server().Kill()
	}
	for _, want := range []*Replica{replicas[2], replicas[1]} {
		connection, err := dial(t.Context(), "tcp", "ignored")
		if err != nil {
			t.Fatal(err)
		}
		if got := connection.RemoteAddr().String(); "https://"+got != want.Server().Admin.Host {
			t.Errorf("connected to %s, want %s", got, want.Server().Admin.Host)
		}
		connection.Close()
		want.Server().Kill()
	}
	if _, err := dial(t.Context(), "tcp", "ignored"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("after all replicas were killed: %v", err)
	}
}

// TestStop checks the results of processes that end in different ways after SIGTERM.
func TestStop(t *testing.T) {
	for name, test := range map[string]struct {
		script string
		code   int
		want   string // error of Stop
	}{
		"ends":               {"trap 'exit 0' TERM; echo ready; while :; do sleep 0.01; done", 0, ""},
		"ends with an error": {"trap 'exit 4' TERM; echo ready; while :; do sleep 0.01; done", 4, "sh: exit status 4"},
		"the signal ends it": {"echo ready; exec sleep 3600", -1, ""},
		"has ended before":   {"echo ready", 0, ""},
		"has failed before":  {"echo ready; exit 5", 5, "sh: exit status 5"},
		"another signal ends it": {
			"trap 'kill -KILL $$' TERM; echo ready; while :; do sleep 0.01; done", -1, "sh: signal: killed",
		},
	} {
		p, err := Run("sh", "/bin/sh", t.TempDir(), []string{"A=1"}, []string{"-c", test.script})
		if err != nil {
			t.Fatal(err)
		}
		if err := poll(t.Context(), func(context.Context) bool { return p.Tail() == "ready" }); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(test.script, "sleep") {
			<-p.Ended()
		}
		err = p.Stop()
		if (err == nil) != (test.want == "") || err != nil && err.Error() != test.want {
			t.Errorf("%s: got the error %v, want %q", name, err, test.want)
		}
		<-p.Ended()
		if code := p.ExitCode(); code != test.code {
			t.Errorf("%s: got the exit code %d, want %d", name, code, test.code)
		}
	}
}

// TestTail checks the end of a log in errors: the last 60 lines.
func TestTail(t *testing.T) {
	p, err := Run("sh", "/bin/sh", t.TempDir(), []string{"LAST=end"},
		[]string{"-c", "for i in $(seq 100); do echo line $i; done; echo $LAST"})
	if err != nil {
		t.Fatal(err)
	}
	<-p.Ended()
	lines := strings.Split(p.Tail(), "\n")
	if len(lines) != 60 || lines[0] != "line 42" || lines[59] != "end" {
		t.Errorf("got %q", lines)
	}
	p.Log += ".missing"
	if got := p.Tail(); !strings.Contains(got, "no such file") {
		t.Errorf("without a log: got %q", got)
	}
}

// TestStoreIsEtcdByDefault checks the store of tests for which no other store is selected.
func TestStoreIsEtcdByDefault(t *testing.T) {
	usePrograms(t, "")
	t.Setenv(StoreName, "")
	store := StartStore(t)
	if err := store.Restart(t.Context()); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a restart ended with %v", err)
	}
	if answer := get(t, &rest.Config{Host: store.Endpoint}, "/health"); answer != "" {
		t.Errorf("%s answers %q", store.Endpoint, answer)
	}
}

// TestGlobalAddress checks that a server can listen on the address, and that it is no loopback address.
func TestGlobalAddress(t *testing.T) {
	address := GlobalAddress(t)
	if address == "" {
		t.Skip("this machine has only loopback addresses")
	}
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", net.JoinHostPort(address, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	if listener.Addr().(*net.TCPAddr).IP.IsLoopback() {
		t.Errorf("%s is a loopback address", address)
	}
}
