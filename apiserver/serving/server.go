// Package serving accepts connections and ends well: listeners, certificates that reload, HTTP/2 settings, the order
// of a graceful stop, health checks, and calls from within the process.
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

// HTTP/2 settings of kube-apiserver: nearly all objects fit in one stream's window.
const (
	streamWindow      = 256 << 10
	maxStreams        = 100
	idleTimeout       = 90 * time.Second
	readHeaderTimeout = 32 * time.Second
	maxHeaderBytes    = 1 << 20
)

// Options are what a server needs.
type Options struct {
	Config   config.Serving
	Listener net.Listener // nil: listen as Config says
	Handler  http.Handler // the filter chain
	Drain    *request.Drain
	Health   *Health
	// ClientAuthorities are those of client certificates and of front proxies. Without any, clients are not asked for a
	// certificate.
	ClientAuthorities []*authentication.Authority
	// Reload names further files to reload when they change, besides the server's own certificates.
	Reload []Reloadable
	// Hosts are the names and addresses for which a certificate is made when there is none.
	Hosts []string

	Clock      clock.Clock
	Logger     logr.Logger
	Registerer prometheus.Registerer
}

// Server is one HTTPS server. Its port is open when New returns; connections wait until Serve.
type Server struct {
	options  Options
	listener *connections
	http     *http.Server
	reloader *reloader
}

// New opens the port and reads, or makes, the certificates.
func New(options Options) (*Server, error) {
	s := &Server{options: options}
	certificates, err := loadCertificates(options)
	if err != nil {
		return nil, err
	}
	tlsConfig, err := tlsConfigOf(options.Config, certificates)
	if err != nil {
		return nil, err
	}
	s.http = &http.Server{
		Handler: options.Handler, TLSConfig: tlsConfig, ConnContext: authentication.ConnContext,
		IdleTimeout: idleTimeout, ReadHeaderTimeout: readHeaderTimeout, MaxHeaderBytes: maxHeaderBytes,
		ErrorLog: log.New(newErrorLog(options.Logger, options.Registerer), "", 0),
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
	s.listener = newConnections(listener)
	return s, nil
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
		return fmt.Errorf("configuring HTTP/2: %w", err)
	}
	return nil
}

// Addr returns the address on which the server listens.
func (s *Server) Addr() net.Addr { return s.listener.Addr() }

// Serve serves until Shutdown or Close. It returns early only if the listener fails.
func (s *Server) Serve() error {
	go s.reloader.run()
	s.options.Logger.Info("Serving securely", "address", s.Addr().String())
	err := s.http.Serve(tls.NewListener(s.listener, s.http.TLSConfig))
	if errors.Is(err, http.ErrServerClosed) {
		return nil
	}
	return fmt.Errorf("serving on %s: %w", s.Addr(), err)
}

// Close ends all connections at once.
func (s *Server) Close() error {
	err := errors.Join(s.http.Close(), closeListener(s.listener), s.reloader.Close())
	s.listener.end()
	return err
}

// closeListener closes a listener that may have been closed.
func closeListener(listener net.Listener) error {
	if err := listener.Close(); !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// Shutdown stops the server in the order of kube-apiserver's RunWithContext, and returns when no connection is left, or
// ctx is done. preShutdown runs while requests are still served, and is waited for.
func (s *Server) Shutdown(ctx context.Context, preShutdown func(context.Context)) error {
	logger, options := s.options.Logger, s.options.Config

	// Load balancers see that this replica is going, and get time to act on it. What the replica itself has to give back
	// it gives back in that time.
	s.options.Health.ShutDown()
	prepared := make(chan struct{})
	go func() {
		defer close(prepared)
		preShutdown(ctx)
	}()
	s.pause(ctx, options.ShutdownDelay)
	waitFor(ctx, prepared)

	// No new work. Either clients are told to go elsewhere, or the port closes and HTTP/2 clients get GOAWAY.
	closed := make(chan struct{})
	closing, abandon := context.WithCancel(ctx)
	defer abandon()
	if options.ShutdownSendRetryAfter {
		s.options.Drain.Refuse()
	} else {
		go s.closeIdle(closing, closed)
	}

	// The work at hand is finished, watches end.
	requests, watches := s.options.Drain.Requests.Close(), s.options.Drain.Watches.Close()
	logger.Info("Draining", "requests", s.options.Drain.Requests.Count(), "watches", s.options.Drain.Watches.Count())
	s.endWatches(ctx, watches)
	finishing, cancel := context.WithTimeout(ctx, options.RequestTimeout)
	defer cancel()
	waitFor(finishing, requests)
	waitFor(finishing, watches)

	// The last frames go out, and what is left is cut off.
	if options.ShutdownSendRetryAfter {
		go s.closeIdle(closing, closed)
	}
	last, cancelLast := context.WithTimeout(ctx, lastFrames)
	defer cancelLast()
	waitFor(last, closed)
	logger.Info("Drained")
	return s.Close()
}

// lastFrames is how long connections without requests get to close.
const lastFrames = 2 * time.Second

// closeIdle closes the port and each connection when it is idle, and then the channel.
func (s *Server) closeIdle(ctx context.Context, closed chan<- struct{}) {
	defer close(closed)
	if err := s.http.Shutdown(ctx); err != nil && ctx.Err() == nil {
		s.options.Logger.Error(err, "Closing the port")
	}
}

// leastWatchesPerSecond bounds how slowly watches are ended.
const leastWatchesPerSecond = 200

// endWatches ends the watches: all at once or, if they were given time, spread over it, so that not all clients
// connect to another replica in the same moment.
func (s *Server) endWatches(ctx context.Context, ended <-chan struct{}) {
	const tick = 50 * time.Millisecond
	grace := s.options.Config.ShutdownWatchTerminationGrace
	each := s.options.Drain.Watches.Count()
	if grace > 0 {
		each = max(leastWatchesPerSecond*int(tick)/int(time.Second), each*int(tick)/int(grace)+1)
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

func (s *Server) pause(ctx context.Context, length time.Duration) {
	if length <= 0 {
		return
	}
	timer := s.options.Clock.NewTimer(length)
	defer timer.Stop()
	select {
	case <-timer.C():
	case <-ctx.Done():
	}
}

func waitFor(ctx context.Context, done <-chan struct{}) {
	select {
	case <-done:
	case <-ctx.Done():
	}
}
