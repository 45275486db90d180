package sandbox

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/plugin/overview"
	"quorate.dev/sandbox/endpoints"
	"quorate.dev/sandbox/management"
	"quorate.dev/sandbox/names"
	"quorate.dev/sandbox/node"
	"quorate.dev/sandbox/page"
	"quorate.dev/sandbox/process"
	"quorate.dev/sandbox/progress"
	"quorate.dev/sandbox/proxy"
	"quorate.dev/sandbox/resolver"
)

// executable is the binary of this process. The link works even if the file has been deleted, for example by `go run`.
const executable = "/proc/self/exe"

// operatorKubeconfig is the path of the operator's kubeconfig. It is in a directory with files that users do not need.
var operatorKubeconfig = filepath.Join("management", "operator.kubeconfig")

// NodeName is the name of the Node.
const NodeName = "sandbox"

// sandbox is a running sandbox.
type sandbox struct {
	settings settings
	home     *home
	display  *progress.Display
	log      logr.Logger
	plane    *management.Plane
	spawner  *process.Spawner
	table    *endpoints.Table
	proxy    *proxy.Proxy
	fail     context.CancelCauseFunc // ends the sandbox with an error
}

func newSandbox(s settings, h *home, display *progress.Display) (*sandbox, error) {
	plane, err := management.New(h.file("management"), h.state.Network, time.Now())
	if err != nil {
		return nil, fmt.Errorf("%w; delete the sandbox with `quorate sandbox delete --dir %s` and start it again",
			err, h.shown)
	}
	if err := errors.Join(
		plane.WriteKubeconfig(h.file("management.kubeconfig")),
		plane.WriteOperatorKubeconfig(h.file(operatorKubeconfig)),
	); err != nil {
		return nil, err
	}
	return &sandbox{settings: s, home: h, display: display, plane: plane, table: endpoints.NewTable()}, nil
}

// run starts all parts of the sandbox in order, waits until ctx is done, and stops the parts in reverse order.
func (s *sandbox) run(ctx context.Context) error {
	started := time.Now()
	if err := os.MkdirAll(s.home.file("logs"), 0o700); err != nil {
		return err
	}
	logFile, err := os.OpenFile(s.home.file("logs", "sandbox.log"), os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	defer logFile.Close()
	s.log = logr.FromSlogHandler(slog.NewTextHandler(logFile, nil))
	klog.SetLogger(s.log)
	s.spawner = process.NewSpawner()
	defer s.spawner.Close()
	s.proxy = proxy.New(s.log)
	ctx, s.fail = context.WithCancelCause(ctx)
	defer s.fail(nil)

	dns, err := names.Listen(netip.AddrPortFrom(s.home.state.Network.Resolver(), names.Port), s.table, s.log)
	if err != nil {
		return err
	}
	naming := s.begin(dns.Run)
	defer naming.end()
	server, err := s.startServer(ctx)
	if err != nil {
		return err
	}
	defer server.end()
	config, err := s.restConfig()
	if err != nil {
		return err
	}
	kubelet, err := s.plane.KubeletTLS()
	if err != nil {
		return err
	}
	defer s.begin(s.runProxy).end()
	defer s.begin(s.nodeAgent(config, kubelet, dns.Address()).Run).end()
	statusPage, err := s.servePage(config)
	if err != nil {
		return err
	}
	defer statusPage.end()
	if err := s.home.linkBinary(); err != nil {
		return fmt.Errorf("link the binary for kubectl: %w", err)
	}
	s.display.Show(progress.Event{
		Event: "management", Name: "management", Kubeconfig: s.home.show("management.kubeconfig"),
	})
	s.display.Show(progress.Event{Event: "page", Name: "page", URL: s.home.pageURL()})
	if err := s.installResources(ctx, config); err != nil {
		return s.outcome(ctx, err)
	}
	defer s.begin(s.runOperator).end()
	defer s.display.Show(progress.Event{
		Event: "stopping", Message: "stopping, Ctrl-C again stops at once; the data stays in " + s.home.shown,
	})
	return s.outcome(ctx, s.clusters(ctx, config, started))
}

// outcome returns the error that ended the sandbox, or nil if the user stopped it.
func (s *sandbox) outcome(ctx context.Context, err error) error {
	if ctx.Err() == nil {
		return err
	}
	if cause := context.Cause(ctx); !errors.Is(cause, context.Canceled) {
		return cause
	}
	return nil
}

// part is a part of the sandbox that runs until end stops it.
type part struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// begin runs a part of the sandbox. The part does not end with the sandbox's context, because parts stop one after the
// other. An error of a part ends the sandbox.
func (s *sandbox) begin(run func(context.Context) error) *part {
	ctx, cancel := context.WithCancel(context.Background())
	p := &part{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		if err := run(ctx); err != nil && ctx.Err() == nil {
			s.fail(err)
		}
	}()
	return p
}

func (p *part) end() {
	p.cancel()
	<-p.done
}

func (s *sandbox) restConfig() (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", s.home.file("management.kubeconfig"))
	if err != nil {
		return nil, err
	}
	config.QPS = -1 // no limit: the server is part of the sandbox
	config.WarningHandler = rest.NoWarnings{}
	config.UserAgent = "quorate-sandbox"
	return config, nil
}

// runProxy serves the addresses of Services. A static route leads from the Service kubernetes to the management API
// server, whose loopback address must not be in Endpoints.
func (s *sandbox) runProxy(ctx context.Context) error {
	first := s.home.state.Network.Services().Addr().Next()
	s.proxy.Run(ctx, s.table, s.home.state.Network.Node(), []proxy.Route{
		{Listen: netip.AddrPortFrom(first, 443), Backends: []netip.AddrPort{s.plane.Address()}},
	})
	return nil
}

// servePage serves the status page.
func (s *sandbox) servePage(config *rest.Config) (*part, error) {
	client, err := client.New(config, client.Options{Scheme: overview.Scheme()})
	if err != nil {
		return nil, err
	}
	listener, err := net.Listen("tcp4", netip.AddrPortFrom(s.home.state.Network.Page(), page.Port).String())
	if err != nil {
		return nil, fmt.Errorf("listen for the status page: %w", err)
	}
	reader := &page.Reader{
		Config: config, Client: client, Directory: s.home.shown,
		Kubeconfig: func(namespace, name string) string { return s.home.show(fileName(namespace, name) + ".kubeconfig") },
	}
	log := s.log.WithName("page")
	return s.begin(func(ctx context.Context) error {
		return page.Serve(ctx, listener, page.Handler(reader.Read), log)
	}), nil
}

func (s *sandbox) nodeAgent(config *rest.Config, kubelet *tls.Config, dns string) *node.Agent {
	server := s.plane.Address()
	return node.New(node.Options{
		Client: kubernetes.NewForConfigOrDie(config), Name: NodeName, Directory: s.home.path, Network: s.home.state.Network,
		Executable: executable, Images: s.settings.images, Table: s.table, Spawner: s.spawner,
		Clock: clock.RealClock{}, Logger: s.log.WithName("node"),
		Kubelet: node.Kubelet{TLS: kubelet, Client: management.KubeletClient},
		Environment: []string{
			resolver.Variable + "=" + dns,
			"KUBERNETES_SERVICE_HOST=" + server.Addr().String(), fmt.Sprintf("KUBERNETES_SERVICE_PORT=%d", server.Port()),
		},
	})
}

// runOperator runs the operator until ctx is done, and restarts it when it exits.
func (s *sandbox) runOperator(ctx context.Context) error {
	address := s.home.state.Network.Operator().String()
	dns := net.JoinHostPort(s.home.state.Network.Resolver().String(), fmt.Sprint(names.Port))
	return s.supervise(ctx, "operator", nil, process.Command{
		Executable: executable, Name: "quorate", Directory: s.home.path, LogFile: s.home.file("logs", "operator.log"),
		Args: []string{
			"operator", "--kubeconfig=" + s.home.file(operatorKubeconfig), "--leader-elect=false", "--image=quorate",
			"--metrics-bind-address=" + address + ":8443", "--health-probe-bind-address=" + address + ":8081",
		},
		Environment: append(os.Environ(), resolver.Variable+"="+dns),
	})
}
