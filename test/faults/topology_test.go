package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"slices"

	"quorate.dev/test/faults/network"
)

// Nodes of the network that are no replicas. No nemesis disturbs the paths of steward.
const (
	clients = -1
	steward = -2
)

// paths are the ways between nodes.
type paths interface {
	// Dial opens a connection from a node to an address of another one.
	Dial(ctx context.Context, from, to int, address string) (net.Conn, error)
	// Set changes the rule of the path from one node to another, Heal removes all rules, and Reset resets connections.
	Set(from, to int, change func(*network.Rule))
	Heal()
	Reset(a, b int)
	Close()
}

// connect creates the network: a namespace for each node if the setting has packets, or proxies.
func (c *cluster) connect(seed uint64) (err error) {
	if !c.setting.Packets {
		c.proxies = network.New()
		c.network = c.proxies
		for c.network127 == "" || c.taken() {
			c.network127 = fmt.Sprintf("127.%d.%d", 64+rand.IntN(128), rand.IntN(256))
		}
		return nil
	}
	nodes := []int{clients, steward}
	for i := range c.setting.Replicas {
		nodes = append(nodes, i)
	}
	c.hosts, err = network.NewSwitch(seed, nodes...)
	c.network = c.hosts
	return err
}

// taken reports whether another process uses the addresses.
func (c *cluster) taken() bool {
	listener, err := net.Listen("tcp", fmt.Sprintf("%s.1:%d", c.network127, peerPort))
	if err != nil {
		return true
	}
	return listener.Close() != nil
}

// listen creates the proxy before a replica's peer address, if there are proxies.
func (c *cluster) listen(r *replica) error {
	if c.proxies == nil {
		return nil
	}
	listener, err := c.proxies.Listen(r.advertised(), fmt.Sprintf("%s:%d", r.own(), peerPort), r.index, c.identify)
	if err != nil {
		return err
	}
	c.closers = append(c.closers, listener.Close)
	return nil
}

// identify returns the replica that has opened a connection.
func (c *cluster) identify(connection net.Conn) (int, bool) {
	var pids []int
	for _, r := range c.replicas {
		pids = append(pids, r.pid())
	}
	pid, err := network.Owner(connection, slices.DeleteFunc(slices.Clone(pids), func(pid int) bool { return pid == 0 }))
	if err != nil {
		return 0, false
	}
	return slices.Index(pids, pid), true
}

// advertised is the address of the peers' proxy, or of the process if there are none.
func (r *replica) advertised() string {
	if r.proxies == nil {
		return fmt.Sprintf("%s:%d", r.own(), peerPort)
	}
	return fmt.Sprintf("%s.%d:%d", r.network127, 1+r.index, peerPort)
}

// own is the IP address of the process.
func (r *replica) own() string {
	if r.proxies == nil {
		return r.hosts.Host(r.index).Address()
	}
	return fmt.Sprintf("%s.%d", r.network127, 21+r.index)
}

// inNamespace calls a function in the namespace of the replica, if there are namespaces.
func (r *replica) inNamespace(act func() error) error {
	if r.hosts == nil {
		return act()
	}
	return r.hosts.Host(r.index).Do(act)
}
