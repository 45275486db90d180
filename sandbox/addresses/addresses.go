// Package addresses allocates the addresses of a sandbox: the management API server, the node, the DNS server, Services
// and Pods have addresses in the sandbox's loopback network 127.n.0.0/16.
package addresses

import (
	"errors"
	"hash/fnv"
	"net/netip"
	"sync"
)

// Range of the networks of sandboxes. The machine itself uses 127.0.0.0/16.
const (
	FirstNetwork Network = 64
	LastNetwork  Network = 126
)

// Network is the second octet, n, of the loopback network 127.n.0.0/16 of a sandbox.
type Network byte

func (n Network) address(third, fourth byte) netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(n), third, fourth})
}

// Server returns the address of the management API server.
func (n Network) Server() netip.Addr { return n.address(0, 1) }

// Node returns the address of the node.
func (n Network) Node() netip.Addr { return n.address(0, 2) }

// Resolver returns the address of the DNS server.
func (n Network) Resolver() netip.Addr { return n.address(0, 3) }

// Operator returns the address on which the operator serves health and metrics.
func (n Network) Operator() netip.Addr { return n.address(0, 4) }

// Page returns the address of the status page.
func (n Network) Page() netip.Addr { return n.address(0, 5) }

// Services returns the range of the Services' cluster IPs.
func (n Network) Services() netip.Prefix { return netip.PrefixFrom(n.address(128, 0), 17) }

// Pods returns the range of the Pods' addresses.
func (n Network) Pods() netip.Prefix { return netip.PrefixFrom(n.address(64, 0), 18) }

// ErrExhausted is returned when all Pod addresses are allocated.
var ErrExhausted = errors.New("all Pod addresses are allocated")

// Pool allocates the addresses of a range. It is safe for concurrent use.
type Pool struct {
	prefix netip.Prefix

	mu     sync.Mutex
	owners map[netip.Addr]string
}

// NewPool returns a pool of all addresses of an IPv4 prefix except the first and the last.
func NewPool(prefix netip.Prefix) *Pool {
	return &Pool{prefix: prefix.Masked(), owners: map[netip.Addr]string{}}
}

// Allocate returns the address of owner. If owner has none, Allocate assigns the first free address, beginning at the
// hash of name, so that a Pod that is created again usually keeps its address.
func (p *Pool) Allocate(owner, name string) (netip.Addr, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, holder := range p.owners {
		if holder == owner {
			return address, nil
		}
	}
	size := uint32(1)<<(32-p.prefix.Bits()) - 2
	start := hash(name)
	for offset := range size {
		address := p.at(1 + (start+offset)%size)
		if _, taken := p.owners[address]; !taken {
			p.owners[address] = owner
			return address, nil
		}
	}
	return netip.Addr{}, ErrExhausted
}

// Reserve assigns owner the address that it had before a restart, and reports whether owner has the address now. It
// fails if the address has another owner or is not in the range.
func (p *Pool) Reserve(owner string, address netip.Addr) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if holder, taken := p.owners[address]; taken {
		return holder == owner
	}
	if !p.prefix.Contains(address) {
		return false
	}
	p.owners[address] = owner
	return true
}

// Release frees the address of owner, if it has one.
func (p *Pool) Release(owner string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for address, holder := range p.owners {
		if holder == owner {
			delete(p.owners, address)
		}
	}
}

func (p *Pool) at(index uint32) netip.Addr {
	b := p.prefix.Addr().As4()
	number := uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
	number += index
	return netip.AddrFrom4([4]byte{byte(number >> 24), byte(number >> 16), byte(number >> 8), byte(number)})
}

func hash(name string) uint32 {
	h := fnv.New32a()
	h.Write([]byte(name))
	return h.Sum32()
}
