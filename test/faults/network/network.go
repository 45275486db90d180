// Package network connects nodes so that a test can cut, delay and reset the traffic from one node to another. There
// are two implementations:
//
// A Switch forwards the packets of network namespaces in which the processes of nodes run. It can also lose, duplicate
// and reorder packets. It does not need the kernel's netem.
//
// A Network connects nodes through proxies in this process, and is used where namespaces are not permitted. The two
// directions of a connection are independent: a cut in one direction holds back its bytes, as TCP does while packets
// are lost.
package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Rule is the state of the path from one node to another. The zero value is a path without faults.
type Rule struct {
	Cut   bool
	Delay time.Duration
	// Lose, Duplicate and Reorder are the probabilities with which a Switch loses a packet, delivers it twice, and
	// delays it by up to Lag, so that later packets overtake it.
	Lose, Duplicate, Reorder float64
	Lag                      time.Duration
}

// pair is the path from one node to another, or a set of two nodes.
type pair struct{ from, to int }

// rules are the rules of all paths. Paths without an entry have no faults.
type rules struct {
	lock    sync.Mutex
	paths   map[pair]Rule
	changed chan struct{} // closed when a rule changes
}

func newRules() *rules {
	return &rules{paths: map[pair]Rule{}, changed: make(chan struct{})}
}

// Set changes the rule of the path from one node to another.
func (r *rules) Set(from, to int, change func(*Rule)) {
	r.lock.Lock()
	defer r.lock.Unlock()
	rule := r.paths[pair{from, to}]
	change(&rule)
	r.paths[pair{from, to}] = rule
	close(r.changed)
	r.changed = make(chan struct{})
}

func (r *rules) rule(from, to int) (Rule, chan struct{}) {
	r.lock.Lock()
	defer r.lock.Unlock()
	return r.paths[pair{from, to}], r.changed
}

// Heal removes the faults of all paths.
func (r *rules) Heal() {
	r.lock.Lock()
	defer r.lock.Unlock()
	clear(r.paths)
	close(r.changed)
	r.changed = make(chan struct{})
}

// Network connects nodes by proxied connections.
type Network struct {
	*rules
	mu   sync.Mutex
	open map[*connection]bool
}

// New returns a network without faults.
func New() *Network { return &Network{rules: newRules(), open: map[*connection]bool{}} }

// Reset closes all connections between two nodes.
func (n *Network) Reset(a, b int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.open {
		if c.pair == (pair{a, b}) || c.pair == (pair{b, a}) {
			c.close()
		}
	}
}

// Close closes all connections.
func (n *Network) Close() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.open {
		c.close()
	}
}

// connection is a proxied connection. The node from of the pair has opened it.
type connection struct {
	pair
	near, far net.Conn
	ended     chan struct{}
	once      sync.Once
}

func (c *connection) close() {
	c.once.Do(func() {
		close(c.ended)
		c.near.Close()
		c.far.Close()
	})
}

// join forwards bytes between two connections in both directions until either of them ends.
func (n *Network) join(from, to int, near, far net.Conn) {
	c := &connection{pair: pair{from, to}, near: near, far: far, ended: make(chan struct{})}
	n.mu.Lock()
	n.open[c] = true
	n.mu.Unlock()
	var both sync.WaitGroup
	both.Go(func() { n.forward(c, from, to, near, far) })
	both.Go(func() { n.forward(c, to, from, far, near) })
	go func() {
		both.Wait()
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.open, c)
	}()
}

// parcel is data that was read from a connection, with the time of the read.
type parcel struct {
	data []byte
	read time.Time
}

// forward forwards bytes in one direction until the source or the target ends, and then closes both.
func (n *Network) forward(c *connection, from, to int, source, target net.Conn) {
	defer c.close()
	parcels := make(chan parcel, 64)
	go func() {
		defer close(parcels)
		for {
			buffer := make([]byte, 16<<10)
			length, err := source.Read(buffer)
			if length > 0 {
				select {
				case parcels <- parcel{buffer[:length], time.Now()}:
				case <-c.ended:
					return
				}
			}
			if err != nil {
				return
			}
		}
	}()
	for p := range parcels {
		if !n.pass(c, from, to, p.read) {
			return
		}
		if _, err := target.Write(p.data); err != nil {
			return
		}
	}
}

// pass waits until data that was read at the time read may be delivered under the present rule of the path. It returns
// false if the connection ends first.
func (n *Network) pass(c *connection, from, to int, read time.Time) bool {
	for {
		rule, changed := n.rule(from, to)
		left := rule.Delay - time.Since(read)
		if !rule.Cut && left <= 0 {
			return true
		}
		var due <-chan time.Time
		if !rule.Cut {
			due = time.After(left)
		}
		select {
		case <-due:
		case <-changed:
		case <-c.ended:
			return false
		}
	}
}

// Dial opens a connection from node from, which runs in this process, to node to.
func (n *Network) Dial(ctx context.Context, from, to int, address string) (net.Conn, error) {
	far, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	near, ours := net.Pipe()
	n.join(from, to, ours, far)
	return near, nil
}

// Listen accepts connections at an address of node to and forwards them to the node's backend. identify returns the
// node that has opened a connection; if it returns false, the connection is closed.
func (n *Network) Listen(address, backend string, to int, identify func(net.Conn) (int, bool)) (io.Closer, error) {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			near, err := listener.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue
			}
			go func() {
				from, ok := identify(near)
				if !ok {
					near.Close()
					return
				}
				far, err := net.Dial("tcp", backend)
				if err != nil {
					near.Close()
					return
				}
				n.join(from, to, near, far)
			}()
		}
	}()
	return listener, nil
}

// Owner returns the process among processes that has opened the connection accepted. It reads Linux' table of TCP
// connections.
func Owner(accepted net.Conn, processes []int) (process int, err error) {
	inode, err := inodeOf(accepted.RemoteAddr().(*net.TCPAddr))
	if err != nil {
		return 0, err
	}
	want := "socket:[" + inode + "]"
	for _, process := range processes {
		files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", process))
		if err != nil {
			return 0, err
		}
		for _, file := range files {
			if target, err := os.Readlink(file); err == nil && target == want {
				return process, nil
			}
		}
	}
	return 0, fmt.Errorf("no process has opened the connection from %s", accepted.RemoteAddr())
}

// inodeOf returns the inode of the socket with a local address.
func inodeOf(local *net.TCPAddr) (string, error) {
	table, err := os.ReadFile("/proc/net/tcp")
	if err != nil {
		return "", err
	}
	ip := local.IP.To4()
	want := fmt.Sprintf("%02X%02X%02X%02X:%04X", ip[3], ip[2], ip[1], ip[0], local.Port)
	for line := range strings.Lines(string(table)) {
		fields := strings.Fields(line)
		if len(fields) > 9 && fields[1] == want {
			if _, err := strconv.ParseUint(fields[9], 10, 64); err == nil && fields[9] != "0" {
				return fields[9], nil
			}
		}
	}
	return "", fmt.Errorf("no socket has the address %s", local)
}
