// Package storage keeps bytes under paths in etcd, in kube-apiserver's key layout and with kube-apiserver's
// transactions, so that both kinds of servers can work on one etcd at the same time.
//
// A path is relative to the store's prefix and has no leading slash: "pods/default/web-0"; the path of a
// collection ends in a slash: "pods/", "pods/default/". A revision is etcd's: one counter for the whole store.
package storage

import (
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/utils/clock"
)

// Value is what is stored under one path.
type Value struct {
	Path     string
	Data     []byte // never changed after it was read; the reader must not change it either
	Revision int64  // of the last write to this path
	Created  int64  // revision of the write that created it
}

// Store reads and writes everything below one prefix of an etcd. It is safe for concurrent use.
type Store struct {
	client    *clientv3.Client
	prefix    string // ends in a slash
	leases    *leases
	questions revisionReads
	metrics   *Metrics // nil: nothing is measured

	progressSupported atomic.Bool
	featuresKnown     chan struct{}
	featuresOnce      sync.Once
}

// New returns a store of the keys below prefix ("/registry"), which needs no slash at either end. The client may be
// remote or in the same process.
func New(client *clientv3.Client, prefix string) *Store {
	s := &Store{
		client: client,
		prefix: strings.TrimSuffix(path.Join("/", prefix), "/") + "/", // as etcd3.New does
		leases: &leases{granter: client, clock: clock.RealClock{}},

		featuresKnown: make(chan struct{}),
	}
	s.questions.ask = s.askRevision
	if len(client.Endpoints()) == 0 { // etcd in the same process is of this module's version
		s.foundProgress(true)
	}
	return s
}

// Key returns the key of a path in etcd.
func (s *Store) Key(path string) string { return s.prefix + path }

func (s *Store) value(kv *mvccpb.KeyValue) Value {
	return Value{
		Path:     string(kv.Key[len(s.prefix):]),
		Data:     kv.Value,
		Revision: kv.ModRevision,
		Created:  kv.CreateRevision,
	}
}

// seconds rounds a time to live down to whole seconds, at least one.
func seconds(ttl time.Duration) int64 { return max(int64(ttl/time.Second), 1) }
