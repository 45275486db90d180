package builtintest

import (
	"context"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Etcd wraps a client of etcd. With its hooks, a test can act between two steps of the code under test; Hold delays
// watch events. The hooks must be set before the client is used.
type Etcd struct {
	clientv3.KV
	clientv3.Watcher
	// BeforeRead is called before each Get; optional.
	BeforeRead func(key string)
	// AfterWrite is called for each key of a transaction that has succeeded; optional.
	AfterWrite func(key string)

	mu sync.Mutex
	// held is nil if watch events are delivered. Otherwise they are delivered when it is closed.
	held chan struct{}
}

// Client returns a client that sends requests through o.
func (o *Etcd) Client(t *testing.T, of *clientv3.Client) *clientv3.Client {
	t.Helper()
	o.KV, o.Watcher = of.KV, of.Watcher
	client := clientv3.NewCtxClient(t.Context())
	client.KV, client.Watcher, client.Lease, client.Cluster, client.Maintenance =
		o, o, of.Lease, of.Cluster, of.Maintenance
	return client
}

// Hold delays watch events until Release.
func (o *Etcd) Hold() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = make(chan struct{})
}

// Release delivers the watch events delayed by Hold.
func (o *Etcd) Release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held != nil {
		close(o.held)
		o.held = nil
	}
}

// delayed returns the channel whose closing ends the delay of watch events, or nil if they are not delayed.
func (o *Etcd) delayed() chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.held
}

// Close implements clientv3.Watcher. It does nothing, because the wrapped client has another owner.
func (*Etcd) Close() error { return nil }

// Get implements clientv3.KV.
func (o *Etcd) Get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if o.BeforeRead != nil {
		o.BeforeRead(key)
	}
	return o.KV.Get(ctx, key, options...)
}

// Txn implements clientv3.KV.
func (o *Etcd) Txn(ctx context.Context) clientv3.Txn {
	return &etcdTxn{Txn: o.KV.Txn(ctx), etcd: o}
}

type etcdTxn struct {
	clientv3.Txn
	etcd *Etcd
	keys []string
}

// If implements clientv3.Txn.
func (x *etcdTxn) If(comparisons ...clientv3.Cmp) clientv3.Txn {
	x.Txn = x.Txn.If(comparisons...)
	return x
}

// Then implements clientv3.Txn.
func (x *etcdTxn) Then(operations ...clientv3.Op) clientv3.Txn {
	for _, operation := range operations {
		x.keys = append(x.keys, string(operation.KeyBytes()))
	}
	x.Txn = x.Txn.Then(operations...)
	return x
}

// Else implements clientv3.Txn.
func (x *etcdTxn) Else(operations ...clientv3.Op) clientv3.Txn {
	x.Txn = x.Txn.Else(operations...)
	return x
}

// Commit implements clientv3.Txn.
func (x *etcdTxn) Commit() (*clientv3.TxnResponse, error) {
	response, err := x.Txn.Commit()
	if err == nil && response.Succeeded && x.etcd.AfterWrite != nil {
		for _, key := range x.keys {
			x.etcd.AfterWrite(key)
		}
	}
	return response, err
}

// Watch implements clientv3.Watcher.
func (o *Etcd) Watch(ctx context.Context, key string, options ...clientv3.OpOption) clientv3.WatchChan {
	arriving, passed := o.Watcher.Watch(ctx, key, options...), make(chan clientv3.WatchResponse)
	go func() {
		defer close(passed)
		for response := range arriving {
			if held := o.delayed(); held != nil {
				select {
				case <-held:
				case <-ctx.Done():
					return
				}
			}
			select {
			case passed <- response:
			case <-ctx.Done():
				return
			}
		}
	}()
	return passed
}
