package storage_test

import (
	"context"
	"errors"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/storage"
)

// oneCondition is a client of a shim: like kine, it rejects transactions with several conditions.
type oneCondition struct {
	clientv3.KV
	created func() // called after each creation
}

func (c *oneCondition) Txn(ctx context.Context) clientv3.Txn {
	return &conditionCounter{Txn: c.KV.Txn(ctx), created: c.created}
}

type conditionCounter struct {
	clientv3.Txn
	conditions int
	deletes    bool
	created    func()
}

func (c *conditionCounter) If(conditions ...clientv3.Cmp) clientv3.Txn {
	c.Txn, c.conditions = c.Txn.If(conditions...), len(conditions)
	return c
}

func (c *conditionCounter) Then(operations ...clientv3.Op) clientv3.Txn {
	c.Txn, c.deletes = c.Txn.Then(operations...), operations[0].IsDelete()
	return c
}

func (c *conditionCounter) Else(operations ...clientv3.Op) clientv3.Txn {
	c.Txn = c.Txn.Else(operations...)
	return c
}

func (c *conditionCounter) Commit() (*clientv3.TxnResponse, error) {
	if c.conditions > 1 {
		return nil, status.Error(codes.InvalidArgument, "etcdserver: unsupported operations in txn request")
	}
	response, err := c.Txn.Commit()
	if err == nil && !c.deletes {
		c.created()
	}
	return response, err
}

// TestGuardedCreations creates an object that depends on another one, in etcd and in a shim.
func TestGuardedCreations(t *testing.T) {
	const key = "/registry/pods/a"
	for name, c := range map[string]struct {
		shim     bool
		guard    int64  // added to the revision of the other object
		existing bool   // the object exists
		then     string // what another client writes after the creation in a shim
		want     error
		isStored bool
	}{
		"etcd":                           {isStored: true},
		"etcd, the guard has changed":    {guard: -1, want: storage.ErrGuard},
		"etcd, the object exists":        {existing: true, want: storage.ErrExists, isStored: true},
		"etcd, both":                     {existing: true, guard: -1, want: storage.ErrExists, isStored: true},
		"a shim":                         {shim: true, isStored: true},
		"a shim, the guard has changed":  {shim: true, guard: -1, want: storage.ErrGuard},
		"a shim, the object exists":      {shim: true, existing: true, want: storage.ErrExists, isStored: true},
		"a shim, the object has changed": {shim: true, guard: -1, then: "2", want: storage.ErrUncertain, isStored: true},
	} {
		t.Run(name, func(t *testing.T) {
			client := etcdtest.Client(t)
			etcd := client.KV
			put := func(value string) {
				if _, err := etcd.Put(t.Context(), key, value); err != nil {
					t.Error(err)
				}
			}
			if c.existing {
				put("0")
			}
			guard, err := etcd.Put(t.Context(), "/registry/namespaces/a", "1")
			if err != nil {
				t.Fatal(err)
			}
			if c.shim {
				client.KV = &oneCondition{KV: etcd, created: func() {
					if c.then != "" {
						put(c.then)
					}
				}}
			}
			store := storage.New(client, "/registry")
			_, err = store.CreateGuarded(t.Context(), "pods/a", []byte("1"), 0,
				storage.Guard{Path: "namespaces/a", Revision: guard.Header.Revision + c.guard})
			if !errors.Is(err, c.want) {
				t.Errorf("got the error %v, want %v", err, c.want)
			}
			if _, err := store.Get(t.Context(), "pods/a"); (err == nil) != c.isStored {
				t.Errorf("stored: %v, want %t", err, c.isStored)
			}
		})
	}
}

// TestGuardsAreAtomic: the member in this process is etcd. A remote server may be a shim until it has responded.
func TestGuardsAreAtomic(t *testing.T) {
	remote, err := clientv3.New(clientv3.Config{Endpoints: []string{"127.0.0.1:1"}, Context: t.Context()})
	if err != nil {
		t.Fatal(err)
	}
	defer remote.Close()
	if storage.New(remote, "/registry").GuardsAreAtomic() {
		t.Error("the guards of a server that has not responded are atomic")
	}
	if !storage.New(clientv3.NewCtxClient(t.Context()), "/registry").GuardsAreAtomic() {
		t.Error("the guards of the member in this process are not atomic")
	}
}
