// Package hollow simulates the clients of a cluster: kubelets with kube-proxy, and clients that watch everything. It
// measures the delay of events and the latency of requests that these clients observe, and counts the watches that they
// lose.
//
// Each client has one connection, on which it holds its watches. A watch begins with the initial state of its objects
// (WatchList), and is then in sync. When it ends, it is resumed at the last revision that it has received, as
// reflectors of client-go do, but after at most longestBackoff.
package hollow

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"quorate.dev/test/measure"
	"quorate.dev/test/scale/wire"
)

const (
	connectTimeout  = 30 * time.Second
	requestTimeout  = 30 * time.Second
	shortestBackoff = 400 * time.Millisecond
	longestBackoff  = 5 * time.Second
)

// Target is the server that clients connect to. A server that is restarted has another address.
type Target struct {
	server      *measure.Server
	authorities *x509.CertPool
	address     atomic.Pointer[string]
}

// NewTarget returns the target for a running server.
func NewTarget(server *measure.Server) (*Target, error) {
	t := &Target{server: server, authorities: x509.NewCertPool()}
	if !t.authorities.AppendCertsFromPEM(server.Admin.CAData) {
		return nil, errors.New("the authority of the server's certificate cannot be parsed")
	}
	return t, t.Update()
}

// Update makes clients connect to the present address of the server.
func (t *Target) Update() error {
	host, err := url.Parse(t.server.Admin.Host)
	if err != nil {
		return err
	}
	t.address.Store(&host.Host)
	return nil
}

// Admin returns the configuration of a connection with the administrator's certificate.
func (t *Target) Admin() (*tls.Config, error) { return t.configuration(t.server.Admin) }

// User returns the configuration of a connection with a new certificate for a user.
func (t *Target) User(name string, groups ...string) (*tls.Config, error) {
	client, err := t.server.PKI.As(t.server.Admin, name, groups...)
	if err != nil {
		return nil, fmt.Errorf("issue a certificate for %s: %w", name, err)
	}
	return t.configuration(client)
}

func (t *Target) configuration(client *rest.Config) (*tls.Config, error) {
	pair, err := tls.X509KeyPair(client.CertData, client.KeyData)
	if err != nil {
		return nil, err
	}
	return &tls.Config{
		RootCAs: t.authorities, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"},
		ServerName: "127.0.0.1", MinVersion: tls.VersionTLS12,
	}, nil
}

// Dial connects to the server.
func (t *Target) Dial(ctx context.Context, configuration *tls.Config) (*wire.Connection, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	return wire.Dial(ctx, *t.address.Load(), configuration)
}

// backoff returns the time before an attempt to send a request again. It is random, so that clients spread.
func backoff(attempt int) time.Duration {
	limit := min(shortestBackoff<<min(attempt, 10), longestBackoff)
	return limit/2 + rand.N(limit/2)
}

// pause waits, and reports whether the context has not ended.
func pause(ctx context.Context, duration time.Duration) bool {
	timer := time.NewTimer(duration)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}
