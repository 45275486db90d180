package etcd

import (
	"crypto/sha256"
	"fmt"
	"sync"
)

// Pool caches one client per cluster for as long as the addresses and credentials of the members do not change, so that
// reconciliations reuse connections. It also runs defragmentations and remembers acknowledged states, both of which
// outlive a reconciliation. Pool is safe for concurrent use. A client that it returns is not: only one reconciliation
// of a cluster runs at a time.
type Pool struct {
	mutex            sync.Mutex
	clients          map[string]pooled
	defragmentations map[string]*Defragmentation // by cluster; the values are immutable
	// acknowledged has the newest known state of each member, by cluster and member ID.
	acknowledged map[string]map[uint64]Acknowledged
}

type pooled struct {
	client    *Client
	signature [sha256.Size]byte // hash of the arguments of Get
}

// NewPool returns an empty pool.
func NewPool() *Pool {
	return &Pool{
		clients: map[string]pooled{}, defragmentations: map[string]*Defragmentation{},
		acknowledged: map[string]map[uint64]Acknowledged{},
	}
}

// Get returns the client of a cluster, whose name is any unique string. The client belongs to the pool: callers must
// not close it.
func (p *Pool) Get(cluster string, endpoints []Endpoint, port string, credentials Credentials) (*Client, error) {
	signature := sha256.Sum256(fmt.Append(nil, endpoints, port, credentials))
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if cached, ok := p.clients[cluster]; ok && cached.signature == signature {
		return cached.client, nil
	}
	client, err := NewClient(endpoints, port, credentials)
	if err != nil {
		return nil, err
	}
	p.drop(cluster)
	p.clients[cluster] = pooled{client, signature}
	return client, nil
}

// Drop closes and removes the client of a cluster, if there is one. Results of defragmentations and acknowledged states
// are kept.
func (p *Pool) Drop(cluster string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.drop(cluster)
}

// Forget drops everything about a deleted cluster, including a defragmentation in progress: a new cluster may have the
// same name.
func (p *Pool) Forget(cluster string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.drop(cluster)
	delete(p.defragmentations, cluster)
	delete(p.acknowledged, cluster)
}

func (p *Pool) drop(cluster string) {
	if cached, ok := p.clients[cluster]; ok {
		cached.client.Close()
		delete(p.clients, cluster)
	}
}
