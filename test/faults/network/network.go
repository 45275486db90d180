// Package network connects nodes through proxies in this process, so that a test can cut, delay and reset what one node sends
// to another. Both directions of a connection are separate: a cut in one direction holds back the bytes in it, as TCP does
// while packets are lost.
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

// Rule is the state of the path from one node to another.
type Rule struct {
	Cut   bool
	Delay time.Duration
}

// pair is a path.
type pair struct{ from, to int }

// Network has the paths between nodes.
type Network struct {
	mu      sync.Mutex
	rules   map[pair]Rule
	changed chan struct{} // closed when a rule changes
	open    map[*connection]bool
}

// New returns a network without faults.
func New() *Network {
	return &Network{rules: map[pair]Rule{}, changed: make(chan struct{}), open: map[*connection]bool{}}
}

// Set changes the rule of the path from one node to another.
func (n *Network) Set(from, to int, change func(*Rule)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	rule := n.rules[pair{from, to}]
	change(&rule)
	n.rules[pair{from, to}] = rule
	close(n.changed)
	n.changed = make(chan struct{})
}

func (n *Network) rule(from, to int) (Rule, chan struct{}) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.rules[pair{from, to}], n.changed
}

// Heal removes all rules.
func (n *Network) Heal() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.rules = map[pair]Rule{}
	close(n.changed)
	n.changed = make(chan struct{})
}

// Reset closes the connections between two nodes.
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

// connection is a proxied connection, which the first node of the pair has opened.
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

// join forwards bytes between two connections until either ends.
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

// parcel is what was read at a time.
type parcel struct {
	data []byte
	read time.Time
}

// forward forwards bytes in one direction, and closes the connection in the end.
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

// pass waits until bytes that were read at a time may arrive. It returns false if the connection ends first.
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

// Dial opens a connection from a node of this process to another one.
func (n *Network) Dial(ctx context.Context, from, to int, address string) (net.Conn, error) {
	far, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return nil, err
	}
	near, ours := net.Pipe()
	n.join(from, to, ours, far)
	return near, nil
}

// Listen forwards connections to an address of a node to its backend. The function returns the node that has opened a
// connection, or false if the node is not known, which closes the connection.
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

// Owner returns the process, among some, that has opened a connection that this process has accepted. It reads Linux' table of
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
