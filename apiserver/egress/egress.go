// Package egress connects to other servers through the proxies in the file of --egress-selector-config-file. Upstream's
// library reads the file and implements the protocols of the proxies.
package egress

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/egressselector"
)

// dialTimeout bounds the time in which a proxy must connect. It is the timeout of Go's default transport.
const dialTimeout = 30 * time.Second

// Dialers connect to servers by the network in which the servers are. A nil dialer means that connections are direct.
type Dialers struct {
	// ControlPlane connects to webhooks with URLs, audit webhooks and other replicas.
	ControlPlane utilnet.DialFunc
	Etcd         utilnet.DialFunc
	// Cluster connects to nodes, pods and Services.
	Cluster utilnet.DialFunc
	// Lookup returns the dialers for upstream's code. It is nil if no proxy is configured.
	Lookup egressselector.Lookup
}

// Load reads an EgressSelectorConfiguration. Its errors have kube-apiserver's texts. If file is empty, all connections
// are direct.
func Load(file string) (Dialers, error) {
	content, err := egressselector.ReadEgressSelectorConfiguration(file)
	if err != nil {
		return Dialers{}, fmt.Errorf("failed to read egress selector config: %w", err)
	}
	if errs := egressselector.ValidateEgressSelectorConfiguration(content); len(errs) > 0 {
		return Dialers{}, fmt.Errorf("failed to validate egress selector configuration: %w", errs.ToAggregate())
	}
	if err := checkTLS(content); err != nil {
		return Dialers{}, fmt.Errorf("failed to setup egress selector: %w", err)
	}
	selector, err := egressselector.NewEgressSelector(content)
	switch {
	case err != nil:
		return Dialers{}, fmt.Errorf("failed to setup egress selector: %w", err)
	case selector == nil:
		return Dialers{}, nil
	}
	return newDialers(selector), nil
}

// errPlaintext prevents a panic: upstream's validation accepts URLs without TLS, but the library dereferences a nil
// TLSConfig.
var errPlaintext = errors.New("a proxy with a TCP transport must have an https:// URL")

func checkTLS(content *apiserver.EgressSelectorConfiguration) error {
	if content == nil {
		return nil
	}
	for _, selection := range content.EgressSelections {
		transport := selection.Connection.Transport
		if transport != nil && transport.TCP != nil && transport.TCP.TLSConfig == nil {
			return fmt.Errorf("egressSelection %q: %w", selection.Name, errPlaintext)
		}
	}
	return nil
}

func newDialers(selector *egressselector.EgressSelector) Dialers {
	lookup := func(network egressselector.NetworkContext) (utilnet.DialFunc, error) {
		dial, err := selector.Lookup(network)
		return bounded(dial), err
	}
	dialer := func(of egressselector.EgressType) utilnet.DialFunc {
		// Lookup never returns an error.
		dial, _ := lookup(of.AsNetworkContext())
		return dial
	}
	return Dialers{
		ControlPlane: dialer(egressselector.ControlPlane), Etcd: dialer(egressselector.Etcd),
		Cluster: dialer(egressselector.Cluster), Lookup: lookup,
	}
}

// bounded returns a dialer that fails when ctx ends or after dialTimeout. The library itself waits without limit for
// the response of a proxy that has accepted the connection.
func bounded(dial utilnet.DialFunc) utilnet.DialFunc {
	if dial == nil {
		return nil
	}
	type result struct {
		conn net.Conn
		err  error
	}
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithTimeout(ctx, dialTimeout)
		defer cancel()
		results := make(chan result, 1)
		go func() {
			conn, err := dial(ctx, network, address)
			results <- result{conn, err}
		}()
		select {
		case r := <-results:
			return r.conn, r.err
		case <-ctx.Done():
			go func() {
				if r := <-results; r.conn != nil {
					r.conn.Close()
				}
			}()
			return nil, fmt.Errorf("connect to %s through the egress proxy: %w", address, ctx.Err())
		}
	}
}

// DialEtcd is the dialer Etcd for gRPC, whose addresses may be URLs.
func (d Dialers) DialEtcd(ctx context.Context, address string) (net.Conn, error) {
	if strings.Contains(address, "//") {
		parsed, err := url.Parse(address)
		if err != nil {
			return nil, err
		}
		address = parsed.Host
	}
	return d.Etcd(ctx, "tcp", address)
}
