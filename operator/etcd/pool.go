package etcd

import (
	"crypto/sha256"
	"fmt"
	"sync"
)

// Pool caches one client per cluster while the members' addresses and credentials do not change, so that
// reconciliations reuse connections. It is safe for concurrent use; the clients are not.
type Pool struct {
	mutex            sync.Mutex
	clients          map[string]pooled
	defragmentations map[string]*Defragmentation // by cluster; a value does not change
	acknowledged     map[string]map[uint64]Acknowledged
}

type pooled struct {
	client    *Client
	signature [sha256.Size]byte // of the arguments of Get
}

// NewPool returns an empty pool.
func NewPool() *Pool {
	return &Pool{clients: map[string]pooled{}, defragmentations: map[string]*Defragmentation{}, acknowledged: map[string]map[uint64]Acknowledged{}}
}

// Get returns the client of a cluster. It belongs to the pool: the caller must not close it.
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

// Drop closes and removes the client of a cluster, if it has one.
func (p *Pool) Drop(cluster string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.drop(cluster)
}

// Forget drops the client and the defragmentation of a deleted cluster, even one in progress: a new cluster may have
// the same name.
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
