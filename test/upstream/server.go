package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"
)

const (
	attempts     = 5                     // each with other ports
	pollInterval = 10 * time.Millisecond // interval of checks of readiness
	readyTimeout = time.Minute
)

// EtcdServer is a running etcd of one member.
type EtcdServer struct {
	*Process
	Endpoint string // URL
}

// StartEtcd runs etcd with its data in directory/etcd and returns when it is healthy.
func StartEtcd(ctx context.Context, directory string) (*EtcdServer, error) {
	binary, err := Etcd(ctx)
	if err != nil {
		return nil, err
	}
	return retry(func(ports []int) (*EtcdServer, error) {
		client, peer := localURL(ports[0]), localURL(ports[1])
		process, err := start("etcd", binary, directory, []string{
			"--data-dir=" + filepath.Join(directory, "etcd"), "--log-level=warn",
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
		})
		if err != nil {
			return nil, err
		}
		return &EtcdServer{process, client}, process.await(ctx, http.DefaultClient, client+"/health")
	})
}

// StartSecureEtcd is like StartEtcd, but the etcd serves TLS and requires client certificates of an authority.
func StartSecureEtcd(ctx context.Context, directory string, serving, clients *Authority) (*EtcdServer, error) {
	binary, err := Etcd(ctx)
	if err != nil {
		return nil, err
	}
	certificate, key, err := serving.Server("localhost")
	if err != nil {
		return nil, err
	}
	certificateFile, keyFile, err := Write(directory, "etcd", certificate, key)
	if err != nil {
		return nil, err
	}
	authority := filepath.Join(directory, "etcd-clients.crt")
	if err := os.WriteFile(authority, clients.PEM(), 0o600); err != nil {
		return nil, err
	}
	return retry(func(ports []int) (*EtcdServer, error) {
		client, peer, metrics := "https://127.0.0.1:"+strconv.Itoa(ports[0]), localURL(ports[1]), localURL(ports[2])
		process, err := start("etcd", binary, directory, []string{
			"--data-dir=" + filepath.Join(directory, "etcd"), "--log-level=warn",
			"--listen-client-urls=" + client, "--advertise-client-urls=" + client,
			"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=default=" + peer,
			"--listen-metrics-urls=" + metrics, "--cert-file=" + certificateFile, "--key-file=" + keyFile,
			"--client-cert-auth", "--trusted-ca-file=" + authority,
		})
		if err != nil {
			return nil, err
		}
		return &EtcdServer{process, client}, process.await(ctx, http.DefaultClient, metrics+"/health")
	})
}

// APIServer is a running kube-apiserver or Quorate.
type APIServer struct {
	*Process
	Admin *rest.Config
	Ready time.Time // time at which /readyz, or Options.Answers, first returned 200
}

// Options are the options of an API server.
type Options struct {
	Directory string   // directory of the log, and of the data of an embedded member
	PKI       *PKI     // may be shared by several servers
	Etcd      string   // URL of an external etcd; "": Quorate runs its embedded member, kube-apiserver fails
	Arguments []string // additional flags, which override the standard flags
	// Version is the release of kube-apiserver, such as v1.36.3; "" means the release that this module requires.
	Version string
	// Answers is the URL path that returns 200 once the server has started; "" means /readyz.
	Answers string
	// Wrapper is a command line that is put before the command line of the server and runs it, for example with limits;
	// empty: the server runs directly.
	Wrapper []string
	// Accounts is set if the test creates default service accounts or runs a controller that does, so that the admission
	// plugin ServiceAccount can require them.
	Accounts bool
}

// NewOptions starts an etcd, and returns it with the options of servers that use it. The options have a temporary
// directory, with the PKI in its folder pki. The end of the test stops the etcd.
func NewOptions(t testing.TB) (*EtcdServer, Options) {
	t.Helper()
	directory := t.TempDir()
	pki, err := NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := StartEtcd(t.Context(), directory)
	if err != nil {
		t.Fatal(err)
	}
	etcd.StopAfter(t)
	return etcd, Options{Directory: directory, PKI: pki, Etcd: etcd.Endpoint}
}

// StartKubernetes runs kube-apiserver and returns when it is ready.
func StartKubernetes(ctx context.Context, options Options) (*APIServer, error) {
	binary, err := BinaryOf(ctx, "kube-apiserver", options.Version)
	if err != nil {
		return nil, err
	}
	return options.start(ctx, "kube-apiserver", binary)
}

// StartQuorate runs our API server and returns when it is ready.
func StartQuorate(ctx context.Context, options Options) (*APIServer, error) {
	binary, err := Quorate(ctx)
	if err != nil {
		return nil, err
	}
	return options.start(ctx, "quorate", binary, "apiserver")
}

func (o Options) start(ctx context.Context, name, binary string, command ...string) (*APIServer, error) {
	if err := os.MkdirAll(o.Directory, 0o755); err != nil {
		return nil, err
	}
	return retry(func(ports []int) (*APIServer, error) {
		server := &APIServer{Admin: o.PKI.Admin(ports[0])}
		client, err := rest.HTTPClientFor(server.Admin)
		if err != nil {
			return nil, err
		}
		line := slices.Concat(o.Wrapper, []string{binary}, command, o.Flags(ports[0]))
		server.Process, err = start(name, line[0], o.Directory, line[1:])
		if err != nil {
			return nil, err
		}
		err = server.await(ctx, client, server.Admin.Host+cmp.Or(o.Answers, "/readyz"))
		server.Ready = time.Now()
		return server, err
	})
}

// Flags returns the flags of an API server on a port, and the flags of an embedded member if there is no external etcd.
func (o Options) Flags(port int) []string {
	flags := append([]string{
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", port),
		"--authorization-mode=Node,RBAC", "--service-cluster-ip-range=10.0.0.0/24", "--endpoint-reconciler-type=none",
		"--allow-privileged=true",
	}, o.PKI.Flags()...)
	if !o.Accounts {
		flags = append(flags, "--disable-admission-plugins=ServiceAccount")
	}
	if o.Etcd != "" {
		flags = append(flags, "--etcd-servers="+o.Etcd)
	} else {
		flags = append(flags, "--etcd-data-dir="+filepath.Join(o.Directory, "member"))
	}
	return override(flags, o.Arguments)
}

// excludes maps additional flags to the standard flags that they exclude.
var excludes = map[string][]string{
	"--authorization-config":             {"--authorization-mode"},
	"--service-account-signing-endpoint": {"--service-account-key-file", "--service-account-signing-key-file"},
}

// override returns flags without those that further repeats or excludes, and then further. Repeated flags would be
// joined to lists.
func override(flags, further []string) []string {
	named := map[string]bool{}
	for _, flag := range further {
		name, _, _ := strings.Cut(flag, "=")
		named[name] = true
		for _, other := range excludes[name] {
			named[other] = true
		}
	}
	kept := slices.DeleteFunc(flags, func(flag string) bool {
		name, _, _ := strings.Cut(flag, "=")
		return named[name]
	})
	return append(kept, further...)
}

// retry calls start with unused ports. If another process takes a port first (errPortTaken), it calls start with other
// ports, up to attempts times.
func retry[T any](start func(ports []int) (T, error)) (T, error) {
	for attempt := 1; ; attempt++ {
		var none T
		ports, err := freePorts(3)
		if err != nil {
			return none, err
		}
		started, err := start(ports)
		if err == nil {
			return started, nil
		}
		if !errors.Is(err, errPortTaken) || attempt == attempts {
			return none, err
		}
	}
}

func localURL(port int) string { return fmt.Sprintf("http://127.0.0.1:%d", port) }

// await waits until the URL returns 200. On a timeout it kills the process.
func (p *Process) await(ctx context.Context, client *http.Client, url string) error {
	return p.until(ctx, func(ctx context.Context) bool { return answers(ctx, client, url) })
}

// until waits until ready returns true. On a timeout it kills the process.
func (p *Process) until(ctx context.Context, ready func(context.Context) bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case <-p.ended:
			cancel(errEnded)
		case <-ctx.Done():
		}
	}()
	err := poll(ctx, ready)
	switch {
	case err == nil:
		return nil
	case errors.Is(context.Cause(ctx), errEnded):
		return p.failure()
	}
	p.Kill()
	return fmt.Errorf("%s is not ready: %w\n%s", p.Name, err, p.Tail())
}

// errEnded is the cause of a context that ends with a process.
var errEnded = errors.New("the process has exited")

// poll calls done until it returns true.
func poll(ctx context.Context, done func(context.Context) bool) error {
	ctx, cancel := context.WithTimeout(ctx, readyTimeout)
	defer cancel()
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for !done(ctx) {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-ticker.C:
		}
	}
	return nil
}

func answers(ctx context.Context, client *http.Client, url string) bool {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	response, err := client.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	_, err = io.Copy(io.Discard, response.Body)
	return err == nil && response.StatusCode == http.StatusOK
}
