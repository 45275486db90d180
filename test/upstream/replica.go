package upstream

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync/atomic"
)

// Launch is a function that starts an API server: StartQuorate or StartKubernetes.
type Launch func(context.Context, Options) (*APIServer, error)

// Replica is an API server that can be killed and restarted on another port.
type Replica struct {
	Launch  Launch
	Options Options

	server  atomic.Pointer[APIServer] // process of the last start that became ready
	address atomic.Pointer[string]
}

// Start starts the replica and returns when it is ready.
func (r *Replica) Start(ctx context.Context) error {
	server, err := r.Launch(ctx, r.Options)
	if err != nil {
		return err
	}
	host, err := url.Parse(server.Admin.Host)
	if err != nil {
		return err
	}
	r.server.Store(server)
	r.address.Store(&host.Host)
	return nil
}

// Server returns the process of the last start that became ready, or nil before the first one.
func (r *Replica) Server() *APIServer { return r.server.Load() }

// Dial has the type of rest.Config.Dial. Implementations ignore the address.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// DialReplicas returns a Dial that connects to the preferred replica, or to any other replica if the preferred one is
// not reachable.
func DialReplicas(replicas []*Replica, preferred int) Dial {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		failures := []error{errors.New("no replica can be connected to")}
		for i := range replicas {
			address := replicas[(preferred+i)%len(replicas)].address.Load()
			if address == nil {
				continue
			}
			connection, err := new(net.Dialer).DialContext(ctx, network, *address)
			if err == nil {
				return connection, nil
			}
			failures = append(failures, err)
		}
		return nil, errors.Join(failures...)
	}
}
