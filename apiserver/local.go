package apiserver

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	clientgoinformers "k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/informers"
	"quorate.dev/apiserver/serviceresolver"
	"quorate.dev/apiserver/serving"
	"quorate.dev/writelimit"
)

// loopback calls the server's handler directly, for upstream's controllers and admission plugins. Admission plugins
// call it as soon as they are created, before there is a handler; such requests wait.
type loopback struct {
	trace transport.WrapperFunc
	// ready is closed when handler has been set.
	ready   chan struct{}
	handler http.Handler
}

// newLoopback returns a loopback whose requests wait until serve is called. trace wraps the transport of clients; nil:
// not at all.
func newLoopback(trace transport.WrapperFunc) *loopback {
	return &loopback{trace: trace, ready: make(chan struct{})}
}

// serve sends all requests to the handler from now on. It must be called once.
func (l *loopback) serve(handler http.Handler) {
	l.handler = handler
	close(l.ready)
}

// ServeHTTP waits for the handler.
func (l *loopback) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	select {
	case <-l.ready:
		l.handler.ServeHTTP(w, r)
	case <-r.Context().Done():
	}
}

// config returns the configuration of a client-go client. Its writes are limited and counted under the name of the
// writer.
func (l *loopback) config(userAgent, writer string) *rest.Config {
	return &rest.Config{
		Host: "https://localhost", QPS: -1, UserAgent: userAgent, WrapTransport: l.trace,
		Transport: serving.Local{
			Handler: l,
			User: &user.DefaultInfo{
				Name: user.APIServerUser, Groups: []string{user.AllAuthenticated, user.SystemPrivilegedGroup},
			},
			Writer: writer,
		},
		ContentConfig: rest.ContentConfig{
			ContentType:        "application/vnd.kubernetes.protobuf",
			AcceptContentTypes: "application/vnd.kubernetes.protobuf,application/json",
		},
	}
}

// ownWriteLimit bounds the writes of one object by one of the server's controllers. It permits the renewal of leases
// every two seconds and what a controller does when a client changes an object again and again, and is far below the
// rate at which a controller that fails persistently fills the database.
var ownWriteLimit = writelimit.Limit{Burst: 300, PerHour: 3600}

// newOwnWrites returns the limiter of the writes of the server's controllers.
func newOwnWrites(registerer prometheus.Registerer, clock clock.PassiveClock) *writelimit.Limiter {
	writes := writelimit.NewCounter("[ALPHA] Number of writes by the server's own controllers, by writer and result: " +
		"permitted, or refused because the controller has written the object too often.")
	registerer.MustRegister(writes)
	return writelimit.New(ownWriteLimit, clock, writes)
}

// userAgent returns the user agent of the server's own requests and writes.
func (s *Server) userAgent() string {
	return s.agent + "/" + Version(s.config).GitVersion
}

// clients are the access of upstream's code in this process, such as admission plugins, to objects.
type clients struct {
	client    kubernetes.Interface
	dynamic   dynamic.Interface
	resolver  webhook.ServiceResolver
	informers clientgoinformers.SharedInformerFactory
	// failures receives the panics of the handlers of informers and parameters.
	failures failures
	// parameters has the informers for parameters of policies: the informers of the field informers, and others for all
	// other resources.
	parameters clientgoinformers.SharedInformerFactory
}

// composeClients returns clients of this server, and informers on its watch caches.
func (s *cluster) composeClients() (c clients, err error) {
	config := s.loopback.config(s.userAgent(), "apiserver")
	if c.client, err = kubernetes.NewForConfig(config); err != nil {
		return c, fmt.Errorf("prepare the local client: %w", err)
	}
	if c.dynamic, err = dynamic.NewForConfig(rest.CopyConfig(config)); err != nil {
		return c, fmt.Errorf("prepare the local dynamic client: %w", err)
	}
	c.failures = make(failures, 1)
	options := s.informerOptions(c.client, c.failures)
	c.informers = informers.New(options)
	c.parameters = informers.Dynamic(c.informers, options)
	c.resolver, err = serviceresolver.New(c.informers, s.config.API.AggregatorRouting)
	return c, err
}

// runInformers runs the informers until ctx ends. The panic of a handler is its error: state that upstream's code
// derives from events, such as the graph of the node authorizer, would be wrong from then on.
func (c *clients) runInformers(ctx context.Context, done func()) error {
	c.informers.StartWithContext(ctx)
	done()
	return c.failures.await(ctx)
}

// failures passes on the first error of several goroutines. Its capacity must be 1.
type failures chan error

func (f failures) report(err error) {
	select {
	case f <- err:
	default: // an earlier error has not been received yet
	}
}

// await returns the first error, nil if ctx ends before.
func (f failures) await(ctx context.Context) error {
	select {
	case err := <-f:
		return err
	case <-ctx.Done():
		return nil
	}
}

func (s *cluster) informerOptions(client kubernetes.Interface, failed failures) informers.Options {
	return informers.Options{
		Client: client, Source: s.objects, Catalog: s.catalog, Logger: s.logger.WithName("informers"), Failed: failed.report,
	}
}
