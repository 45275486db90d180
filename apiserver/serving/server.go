// Package serving is the HTTPS server: listeners, certificates that reload, HTTP/2 settings, health checks, the
// graceful shutdown, and the transport for clients in the same process.
//
// Server.Shutdown drains in kube-apiserver's order. First /readyz fails while requests are still served, so that load
// balancers stop sending new requests; preShutdown runs in this phase. In its second half, each request on an HTTP/2
// connection makes the client reconnect, by then to another replica. Then new requests are refused: the port closes and
// HTTP/2 clients get GOAWAY or, with --shutdown-send-retry-after, the port stays open and requests get 429. Running
// requests finish within --request-timeout, and watches end over --shutdown-watch-termination-grace-period, so that not
// all clients reconnect to another replica at the same time. Finally idle connections close, and then the remaining
// connections, including hijacked connections such as exec streams, which net/http does not track.
package serving

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/net/http2"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/authentication"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/request"
)

// These are kube-apiserver's settings. Nearly all objects fit into streamWindow, the window of one HTTP/2 stream in
// bytes.
const (
	streamWindow      = 256 << 10
	maxStreams        = 100
	idleTimeout       = 90 * time.Second
	readHeaderTimeout = 32 * time.Second
	maxHeaderBytes    = 1 << 20
)

// writeMargin is the time after --request-timeout in which the end of a response must be written. net/http writes it
// after the handler has returned, so that no filter can bound it. Long-running requests remove this deadline.
const writeMargin = 10 * time.Second

// Options configure a Server.
type Options struct {
	Config config.Serving
	// Listener is the server's listener; nil means that New listens as Config requires.
	Listener net.Listener
	// Handler is the handler of all requests, which is the filter chain.
	Handler http.Handler
	Drain   *request.Drain
	Health  *Health
	// ClientAuthorities verify the certificates of clients and front proxies. If there are none, the handshake does not
	// request a client certificate.
	ClientAuthorities []*authentication.Authority
	// Reload has the configuration, in addition to the server's certificates, that is reloaded when its files change.
	Reload []Reloadable
	// Hosts are the host names and addresses of the self-signed certificate that is created if there is none.
	Hosts []string

	Clock      clock.Clock
	Logger     logr.Logger
	Registerer prometheus.Registerer
}

// Server is one HTTPS server. The port is open when New returns; connections wait until Serve is called.
type Server struct {
	options  Options
	listener *connections
	http     *http.Server
	reloader *reloader
	workers  *workers
}

// New opens the port and reads the certificates, or creates a self-signed certificate.
func New(options Options) (*Server, error) {
	s := &Server{options: options, workers: newWorkers(options.Handler)}
	certificates, err := loadCertificates(options)
	if err != nil {
		return nil, err
	}
	tlsConfig, err := tlsConfigOf(options.Config, certificates)
	if err != nil {
		return nil, err
	}
	s.http = &http.Server{
		Handler: s.workers, TLSConfig: tlsConfig, ConnContext: connContext,
		IdleTimeout: idleTimeout, ReadHeaderTimeout: readHeaderTimeout, MaxHeaderBytes: maxHeaderBytes,
		WriteTimeout: options.Config.RequestTimeout + writeMargin,
		ErrorLog:     log.New(newErrorLog(options.Logger, options.Registerer), "", 0),
	}
	requestCertificates(tlsConfig, options.ClientAuthorities)
	if !options.Config.DisableHTTP2 {
		if err := configureHTTP2(s.http, options.Config.HTTP2MaxStreams); err != nil {
			return nil, err
		}
	}
	if s.reloader, err = newReloader(append(certificates.reloadables(), options.Reload...), options.Logger); err != nil {
		return nil, err
	}
	listener := options.Listener
	if listener == nil {
		if listener, err = listen(options.Config); err != nil {
			return nil, errors.Join(err, s.reloader.Close())
		}
	}
	s.listener = newConnections(listener, processCapacity(), options.Logger, options.Registerer)
	s.http.ConnState = s.listener.changed
	return s, nil
}

// connContext returns the base context for the requests of a connection.
func connContext(ctx context.Context, conn net.Conn) context.Context {
	ctx = authentication.ConnContext(ctx, conn)
	if tracked := trackedOf(conn); tracked != nil {
		ctx = request.WithConnection(ctx, &tracked.request)
	}
	return ctx
}

func configureHTTP2(server *http.Server, streams int) error {
	if streams == 0 {
		streams = maxStreams
	}
	err := http2.ConfigureServer(server, &http2.Server{
		IdleTimeout:                  idleTimeout,
		MaxConcurrentStreams:         uint32(streams),
		MaxReadFrameSize:             streamWindow,
		MaxUploadBufferPerStream:     streamWindow,
		MaxUploadBufferPerConnection: streamWindow * int32(streams),
	})
	if err != nil {
		return fmt.Errorf("configure HTTP/2: %w", err)
	}
	return nil
}

// Addr returns the address on which the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve serves requests until Shutdown or Close is called. It returns an error if the listener fails.
func (s *Server) Serve() error {
	go s.reloader.run()
	s.options.Logger.Info("Serving securely", "address", s.Addr().String())
	err := s.http.Serve(tls.NewListener(s.listener, s.http.TLSConfig))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serve on %s: %w", s.Addr(), err)
}

// Close closes the listener and all connections immediately.
func (s *Server) Close() error {
	err := errors.Join(s.http.Close(), closeListener(s.listener), s.reloader.Close())
	s.listener.end()
	s.workers.end()
	return err
}

// closeListener closes a listener, which may already be closed.
func closeListener(listener net.Listener) error {
	if err := listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Shutdown drains and stops the server in the order of kube-apiserver's RunWithContext. It returns when all connections
// are closed. When ctx ends, Shutdown no longer waits and closes the remaining connections. preShutdown runs while
// requests are still served, and Shutdown waits for it. The shutdown delay ends early when failed is closed, because
// requests cannot succeed any more.
func (s *Server) Shutdown(ctx context.Context, failed <-chan struct{}, preShutdown func(context.Context)) error {
	logger, options := s.options.Logger, s.options.Config

	// In this phase load balancers notice that /readyz fails, and preShutdown releases the replica's leases.
	begin := s.options.Clock.Now()
	s.options.Health.ShutDown()
	prepared := make(chan struct{})
	go func() {
		defer close(prepared)
		preShutdown(ctx)
	}()
	s.pause(ctx, options.ShutdownDelay/2, failed)
	s.options.Drain.MoveClients()
	s.pause(ctx, options.ShutdownDelay-s.options.Clock.Since(begin), failed)
	waitFor(ctx, prepared)

	// New requests are refused: they get 429 with Retry-After, or the port closes and HTTP/2 clients get GOAWAY.
	closed := make(chan struct{})
	closing, abandon := context.WithCancel(ctx)
	defer abandon()
	if options.ShutdownSendRetryAfter {
		s.options.Drain.Refuse()
	} else {
		go s.closeIdle(closing, closed)
	}

	// Running requests finish, and watches are ended.
	requests, watches := s.options.Drain.Requests.Close(), s.options.Drain.Watches.Close()
	logger.Info("Draining", "requests", s.options.Drain.Requests.Count(), "watches", s.options.Drain.Watches.Count())
	s.endWatches(ctx, watches)
	finishing, cancel := context.WithTimeout(ctx, options.RequestTimeout)
	defer cancel()
	waitFor(finishing, requests)
	waitFor(finishing, watches)

	// The last frames are sent; then the remaining connections are closed.
	if options.ShutdownSendRetryAfter {
		go s.closeIdle(closing, closed)
	}
	last, cancelLast := context.WithTimeout(ctx, lastFrames)
	defer cancelLast()
	waitFor(last, closed)
	logger.Info("Drained")
	return s.Close()
}

// lastFrames bounds the time in which connections without requests close.
const lastFrames = 2 * time.Second

// closeIdle closes the port, then each connection when it becomes idle, and finally the channel closed.
func (s *Server) closeIdle(ctx context.Context, closed chan<- struct{}) {
	defer close(closed)
	if err := s.http.Shutdown(ctx); err != nil && ctx.Err() == nil {
		s.options.Logger.Error(err, "Failed to close the port")
	}
}

// minWatchesPerSecond is the minimum rate at which watches are ended.
const minWatchesPerSecond = 200

// endWatches ends all watches, spread over --shutdown-watch-termination-grace-period if it is positive, so that not all
// clients reconnect to another replica at the same time.
func (s *Server) endWatches(ctx context.Context, ended <-chan struct{}) {
	const tick = 50 * time.Millisecond
	grace := s.options.Config.ShutdownWatchTerminationGrace
	each := s.options.Drain.Watches.Count()
	if grace > 0 {
		each = max(minWatchesPerSecond*int(tick)/int(time.Second), each*int(tick)/int(grace)+1)
	}
	for s.options.Drain.Watches.End(each) > 0 {
		timer := s.options.Clock.NewTimer(tick)
		select {
		case <-timer.C():
		case <-ended:
		case <-ctx.Done():
		}
		timer.Stop()
	}
}

// pause waits until the time length has passed, cut is closed or ctx ends.
func (s *Server) pause(ctx context.Context, length time.Duration, cut <-chan struct{}) {
	if length <= 0 {
		return
	}
	timer := s.options.Clock.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-cut:
	case <-ctx.Done():
	}
}

func waitFor(ctx context.Context, done <-chan struct{}) {
	select {
	case <-done:
	case <-ctx.Done():
	}
}
