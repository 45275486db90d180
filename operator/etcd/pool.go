package etcd

import (
	"crypto/sha256"
	"fmt"
	"sync"
)

// Pool keeps a client per cluster for as long as its members' addresses and credentials stay the same, so that looking
// again costs no handshakes.
type Pool struct {
	mutex   sync.Mutex
	clients map[string]pooled
}

type pooled struct {
	client    *Client
	signature [sha256.Size]byte // of all that it was made from
}

// NewPool makes an empty pool.
func NewPool() *Pool { return &Pool{clients: map[string]pooled{}} }

// Get returns the client of a cluster. The pool closes it.
func (p *Pool) Get(cluster string, endpoints []Endpoint, port string, credentials Credentials) (*Client, error) {
	signature := sha256.Sum256(fmt.Append(nil, endpoints, port, credentials))
	p.mutex.Lock()
	defer p.mutex.Unlock()
	if known, ok := p.clients[cluster]; ok && known.signature == signature {
		return known.client, nil
	}
	client, err := Dial(endpoints, port, credentials)
	if err != nil {
		return nil, err
	}
	p.drop(cluster)
	p.clients[cluster] = pooled{client, signature}
	return client, nil
}

// Drop closes the client of a cluster, if there is one.
func (p *Pool) Drop(cluster string) {
	p.mutex.Lock()
	defer p.mutex.Unlock()
	p.drop(cluster)
}

func (p *Pool) drop(cluster string) {
	if known, ok := p.clients[cluster]; ok {
		known.client.Close()
		delete(p.clients, cluster)
	}
}
