// Package addresses divides a sandbox's loopback network, 127.n.0.0/16, among the management API server, the
// node, the resolver, Services and Pods.
package addresses

import (
	"errors"
	"hash/fnv"
	"net/netip"
	"sync"
)

// Networks are the second octets a sandbox may use. 127.0.0.0/16 is left to the machine.
const (
	FirstNetwork Network = 64
	LastNetwork  Network = 126
)

// Network is one sandbox's 127.n.0.0/16, named by n.
type Network byte

func (n Network) address(third, fourth byte) netip.Addr {
	return netip.AddrFrom4([4]byte{127, byte(n), third, fourth})
}

// Server is the address of the management API server.
func (n Network) Server() netip.Addr { return n.address(0, 1) }

// Node is the address of the one node.
func (n Network) Node() netip.Addr { return n.address(0, 2) }

// Resolver is the address of the DNS server.
func (n Network) Resolver() netip.Addr { return n.address(0, 3) }

// Operator is the address on which the operator serves health and metrics.
func (n Network) Operator() netip.Addr { return n.address(0, 4) }

// Services is the range of cluster IPs.
func (n Network) Services() netip.Prefix { return netip.PrefixFrom(n.address(128, 0), 17) }

// Pods is the range of Pod addresses.
func (n Network) Pods() netip.Prefix { return netip.PrefixFrom(n.address(64, 0), 18) }

// ErrExhausted says that every Pod address is taken.
var ErrExhausted = errors.New("no Pod address left")

// Pool hands out the addresses of a range. It may be used by several goroutines.
type Pool struct {
	prefix netip.Prefix

	mu     sync.Mutex
	owners map[netip.Addr]string
}

// NewPool returns a pool of all addresses of an IPv4 prefix but its first and last.
func NewPool(prefix netip.Prefix) *Pool {
	return &Pool{prefix: prefix.Masked(), owners: map[netip.Addr]string{}}
}

// Allocate gives owner the address it has, else the first free one at or after the place that name hashes to, so
// that a Pod made again under its old name usually gets its old address.
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

// Reserve gives owner a certain address, which it had before a restart. It reports whether the address was free
// and of this range.
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

// Release takes back the address of owner, if it has one.
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
