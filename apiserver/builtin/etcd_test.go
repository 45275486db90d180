package builtin_test

import (
	"context"
	"sync"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// observedEtcd is a client of an etcd that others use too. It tells what it does, so that a test can do something in a
// certain moment, and can be made to learn of changes late. Whom it tells is set before the client is used.
type observedEtcd struct {
	clientv3.KV
	clientv3.Watcher
	read    func(key string) // before a key is read; nil: nobody is told
	written func(key string) // after a key was written

	mu   sync.Mutex
	held chan struct{} // open: what is watched arrives when it is closed
}

// client returns one that works through o.
func (o *observedEtcd) client(t *testing.T, of *clientv3.Client) *clientv3.Client {
	t.Helper()
	o.KV, o.Watcher = of.KV, of.Watcher
	client := clientv3.NewCtxClient(t.Context())
	client.KV, client.Watcher, client.Lease, client.Cluster, client.Maintenance = o, o, of.Lease, of.Cluster, of.Maintenance
	return client
}

// hold makes what is watched arrive only after release.
func (o *observedEtcd) hold() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.held = make(chan struct{})
}

func (o *observedEtcd) release() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.held != nil {
		close(o.held)
		o.held = nil
	}
}

// mayArrive is closed when what is watched may arrive; nil: it may.
func (o *observedEtcd) mayArrive() chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.held
}

// Close implements clientv3.Watcher. The client is another's.
func (*observedEtcd) Close() error { return nil }

// Get implements clientv3.KV.
func (o *observedEtcd) Get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	if o.read != nil {
		o.read(key)
	}
	return o.KV.Get(ctx, key, options...)
}

// Txn implements clientv3.KV.
func (o *observedEtcd) Txn(ctx context.Context) clientv3.Txn {
	return &observedTxn{Txn: o.KV.Txn(ctx), etcd: o}
}

type observedTxn struct {
	clientv3.Txn
	etcd *observedEtcd
	keys []string
}

// If implements clientv3.Txn.
func (x *observedTxn) If(comparisons ...clientv3.Cmp) clientv3.Txn {
	x.Txn = x.Txn.If(comparisons...)
	return x
}

// Then implements clientv3.Txn.
func (x *observedTxn) Then(operations ...clientv3.Op) clientv3.Txn {
	for _, operation := range operations {
		x.keys = append(x.keys, string(operation.KeyBytes()))
	}
	x.Txn = x.Txn.Then(operations...)
	return x
}

// Else implements clientv3.Txn.
func (x *observedTxn) Else(operations ...clientv3.Op) clientv3.Txn {
	x.Txn = x.Txn.Else(operations...)
	return x
}

// Commit implements clientv3.Txn.
func (x *observedTxn) Commit() (*clientv3.TxnResponse, error) {
	response, err := x.Txn.Commit()
	if err == nil && response.Succeeded && x.etcd.written != nil {
		for _, key := range x.keys {
			x.etcd.written(key)
		}
	}
	return response, err
}

// Watch implements clientv3.Watcher.
func (o *observedEtcd) Watch(ctx context.Context, key string, options ...clientv3.OpOption) clientv3.WatchChan {
	arriving, passed := o.Watcher.Watch(ctx, key, options...), make(chan clientv3.WatchResponse)
	go func() {
		defer close(passed)
		for response := range arriving {
			if held := o.mayArrive(); held != nil {
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
