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

// Value is a stored key-value pair.
type Value struct {
	Path     string
	Data     []byte // immutable, because the watch cache and its readers share it
	Revision int64  // etcd's ModRevision: the revision of the last write to this path
	Created  int64  // etcd's CreateRevision: the revision of the path's creation
	// Stale is set if a write would encrypt the value differently. An update then writes the value even if it changes
	// nothing.
	Stale bool
	// Err is set in lists with ListOptions.Unreadable if the value cannot be decrypted.
	Err error
}

// Store reads and writes all keys below one prefix of an etcd. All methods are safe for concurrent use, except those
// that must be called before the first use.
//
// leases, revisions and inFlight each have a mutex of their own. No method holds two of them.
type Store struct {
	client    *clientv3.Client
	prefix    string // ends in a slash
	leases    *leases
	revisions revisionReader
	inFlight  inFlight
	barrier   atomic.Int64  // last known ModRevision of barrierKey; 0: the key does not exist
	observed  atomic.Int64  // greatest revision of a response of etcd, a lower bound of the current revision
	metrics   *storeMetrics // nil: not measured. Set before first use.
	// encryption is nil if all values are plain. Set before first use.
	encryption *Encryption

	streams rangeStreams

	// progressSupported may return to false when the version of another member becomes known.
	progressSupported atomic.Bool
	// shim is set once a member has turned out not to be etcd.
	shim          atomic.Bool
	featuresKnown chan struct{} // closed by featuresOnce
	featuresOnce  sync.Once
	shimTimeout   time.Duration // set before first use
}

// New returns a store of the keys below prefix. "/registry" and "registry/" are the same prefix. The client may
// connect to a remote etcd or to the member in this process.
func New(client *clientv3.Client, prefix string) *Store {
	s := &Store{
		client: client,
		prefix: strings.TrimSuffix(path.Join("/", prefix), "/") + "/", // as etcd3.New does
		leases: &leases{granter: client, clock: clock.RealClock{}, maxReuse: leaseMaxReuse},

		featuresKnown: make(chan struct{}), shimTimeout: shimTimeout,
	}
	s.revisions.read = s.readRevision
	if len(client.Endpoints()) == 0 { // the member in this process has this module's version
		s.setProgressSupported(true)
	}
	return s
}

// Key returns the full key of a path in etcd.
func (s *Store) Key(path string) string { return s.prefix + path }

func (s *Store) value(kv *mvccpb.KeyValue) Value {
	return Value{
		Path:     string(kv.Key[len(s.prefix):]),
		Data:     kv.Value,
		Revision: kv.ModRevision,
		Created:  kv.CreateRevision,
	}
}

// seconds returns a TTL in whole seconds, rounded down, and at least 1.
func seconds(ttl time.Duration) int64 { return max(int64(ttl/time.Second), 1) }
