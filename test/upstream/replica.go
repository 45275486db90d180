package upstream

import (
	"context"
	"errors"
	"net"
	"net/url"
	"sync/atomic"
)

// Launch starts an API server: StartQuorate or StartKubernetes.
type Launch func(context.Context, Options) (*APIServer, error)

// Replica is an API server that may be killed and started again, at another port then.
type Replica struct {
	Launch  Launch
	Options Options

	server  atomic.Pointer[APIServer] // of the last start that became ready
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

// Server is the process that was last started, nil before the first start.
func (r *Replica) Server() *APIServer { return r.server.Load() }

// Dial is how rest.Config connects. The address that it is given is ignored.
type Dial = func(ctx context.Context, network, address string) (net.Conn, error)

// DialReplicas returns how clients connect to the preferred one of several replicas, or to another when that does not
// run.
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
