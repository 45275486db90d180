package differential

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

// tokens are the users of scripts in addition to the administrator: token, name, UID and groups.
const tokens = `alice-token,alice,1001,"developers"
bob-token,bob,1002
node-a-token,system:node:node-a,1003,"system:nodes"
node-b-token,system:node:node-b,1004,"system:nodes"
nameless-node-token,system:node:,1005,"system:nodes"
impostor-token,system:node:node-a,1006,"developers"
ivan-token,ivan,1008
node-token,system:node:worker,1007,"system:nodes,system:masters"
`

// Server is kube-apiserver or our API server, with the fixtures that scripts use.
type Server struct {
	Name   string
	Origin string // URL of the server without a path
	Began  time.Time

	Etcd *Recorder
	// AuditLog is the file of --audit-log-path if that is ${directory}/audit.log.
	AuditLog string
	// Webhooks are the webhooks that scripts configure on this server, or nil.
	Webhooks *Webhooks
	// Extensions are the extension API servers that scripts configure on this server, or nil.
	Extensions *Extensions
	// Reviews are the webhooks of authentication and authorization of this server, or nil.
	Reviews *Reviews
	// Variables are defined in all scripts.
	Variables map[string]string

	config *rest.Config // configuration of the administrator's client
	admin  *http.Client
	plain  *http.Client // without a client certificate
}

func newServer(name string, began time.Time, admin *rest.Config, etcd *Recorder) (*Server, error) {
	s := &Server{Name: name, Origin: admin.Host, Began: began, Etcd: etcd, config: admin}
	admin = rest.CopyConfig(admin)
	admin.Timeout = 0
	admin.DisableCompression = true
	var err error
	if s.admin, err = rest.HTTPClientFor(admin); err != nil {
		return nil, err
	}
	plain := rest.AnonymousClientConfig(admin)
	plain.DisableCompression = true
	s.plain, err = rest.HTTPClientFor(plain)
	return s, err
}

// Pair is kube-apiserver and our API server, which are both running.
type Pair struct {
	Upstream, Ours *Server
	stop           []func() error
	frontProxy     bool
}

// StartPair starts both servers with the standard flags and the given ones. Each has its own etcd. ${directory} in a
// flag is replaced by the directory of the server.
func StartPair(ctx context.Context, directory string, further ...string) (*Pair, error) {
	return startPair(ctx, directory, &Pair{}, func(string) []string { return further })
}

// StartFrontProxies is like StartPair, with the certificate and the flags of front proxies for extension API servers.
func StartFrontProxies(ctx context.Context, directory string, further ...string) (*Pair, error) {
	return startPair(ctx, directory, &Pair{frontProxy: true}, func(string) []string { return further })
}

// Names of the servers of a pair.
const (
	upstreamName = "upstream"
	oursName     = "ours"
)

// startPair starts both servers with the same flags, and the flags that further returns for the name of the server.
func startPair(
	ctx context.Context, directory string, pair *Pair, further func(name string) []string,
) (_ *Pair, err error) {
	defer func() {
		if err != nil {
			_ = pair.Stop()
		}
	}()
	users := filepath.Join(directory, "tokens.csv")
	if err := os.WriteFile(users, []byte(tokens), 0o600); err != nil {
		return nil, err
	}
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		return nil, err
	}
	var proxy []string
	if pair.frontProxy {
		if proxy, err = pki.WriteFrontProxy(); err != nil {
			return nil, err
		}
	}
	// In a range of this size, the first 256 addresses are allocated only on request, which scripts do.
	options := func(name string) upstream.Options {
		return upstream.Options{PKI: pki, Accounts: true, Arguments: append([]string{
			"--token-auth-file=" + users, "--enable-bootstrap-token-auth", "--enable-admission-plugins=NodeRestriction",
			"--service-cluster-ip-range=10.0.0.0/20,fd00:10::/112",
		}, append(proxy, further(name)...)...)}
	}
	pair.Upstream, err = pair.start(ctx, filepath.Join(directory, upstreamName),
		options(upstreamName), upstream.StartKubernetes)
	if err != nil {
		return nil, fmt.Errorf("kube-apiserver: %w", err)
	}
	pair.Ours, err = pair.start(ctx, filepath.Join(directory, oursName), options(oursName), upstream.StartQuorate)
	return pair, err
}

// start runs an etcd, a recorder of its writes, and the server with the given name.
func (p *Pair) start(
	ctx context.Context, directory string, options upstream.Options,
	start func(context.Context, upstream.Options) (*upstream.APIServer, error),
) (*Server, error) {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return nil, err
	}
	etcd, err := upstream.StartEtcd(ctx, directory)
	if err != nil {
		return nil, err
	}
	p.stop = append(p.stop, etcd.Stop)
	recorder, err := StartRecorder(ctx, etcd.Endpoint)
	if err != nil {
		return nil, err
	}
	p.stop = append(p.stop, recorder.Stop)
	options.Directory, options.Etcd = directory, etcd.Endpoint
	options.Arguments = slices.Clone(options.Arguments)
	for i := range options.Arguments {
		options.Arguments[i] = strings.ReplaceAll(options.Arguments[i], "${directory}", directory)
	}
	began := time.Now()
	server, err := start(ctx, options)
	if err != nil {
		return nil, err
	}
	p.stop = append(p.stop, server.Stop)
	if err := awaitOwnObjects(ctx, server.Admin); err != nil {
		return nil, err
	}
	made, err := newServer(filepath.Base(directory), began, server.Admin, recorder)
	if err == nil {
		made.AuditLog = filepath.Join(directory, "audit.log")
	}
	return made, err
}

// awaitOwnObjects waits for the last object that a server creates after it is ready, because scripts list such objects.
func awaitOwnObjects(ctx context.Context, admin *rest.Config) error {
	client, err := kubernetes.NewForConfig(admin)
	if err != nil {
		return err
	}
	written := func(ctx context.Context) (bool, error) {
		for _, name := range []string{
			"extension-apiserver-authentication", "kube-apiserver-legacy-service-account-token-tracking",
		} {
			if _, err := client.CoreV1().ConfigMaps("kube-system").Get(ctx, name, metav1.GetOptions{}); err != nil {
				return false, nil
			}
		}
		return true, nil
	}
	if err := wait.PollUntilContextTimeout(ctx, 50*time.Millisecond, time.Minute, true, written); err != nil {
		return fmt.Errorf("wait for the objects that the server makes: %w", err)
	}
	return nil
}

// Stop stops both servers, and then their etcds.
func (p *Pair) Stop() error {
	var first error
	for i := len(p.stop) - 1; i >= 0; i-- {
		if err := p.stop[i](); err != nil && first == nil {
			first = err
		}
	}
	return first
}
