package serving

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// capacity bounds the open connections of a process whose file descriptors are limited. The embedded etcd member ends the
// process when it cannot open a file, so that connections must leave it enough descriptors.
type capacity struct {
	// connections is the number of connections that may be open, and perSource the number from one source address; 0: no
	// limit.
	connections, perSource int
	// descriptor is the file descriptor at which connections are also refused. The kernel assigns the lowest free one, so
	// that this limit counts all files and the server's own connections, for example to kubelets.
	descriptor int
}

const (
	// minReserve and maxReserve bound the number of descriptors that are not for clients: database, write-ahead log and
	// snapshots of etcd, connections to its peers, logs, and connections to webhooks, kubelets and extension API servers.
	minReserve, maxReserve = 128, 4096
	// reservedPart of the descriptors, within these bounds, is reserved, and never more than half of them.
	reservedPart = 4
)

// capacityOf returns the capacity of a process with a limit of file descriptors.
func capacityOf(descriptors int) capacity {
	reserve := min(max(descriptors/reservedPart, minReserve), maxReserve, descriptors/2)
	connections := descriptors - reserve
	// One source can be a load balancer for all clients, so that its share must be large.
	return capacity{connections: connections, perSource: connections - connections/4, descriptor: descriptors - reserve/2}
}

// processCapacity returns the capacity of this process. The Go runtime has raised the soft limit to the hard one.
func processCapacity() capacity {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<30 {
		return capacity{}
	}
	return capacityOf(int(limit.Cur))
}

// allows reports whether a connection may be accepted when the given numbers are open in total and from its source.
// descriptor is the connection's own, or -1.
func (c capacity) allows(open, fromSource, descriptor int) bool {
	return c.connections == 0 ||
		open < c.connections && fromSource < c.perSource && (descriptor < 0 || descriptor < c.descriptor)
}

// rank is the order in which connections are closed to make room: the lowest first.
type rank int

const (
	unusedRank    rank = iota // never authenticated, no request is running
	anonymousRank             // never authenticated
	idleRank                  // authenticated, no request is running
	busyRank                  // never closed
)

func rankOf(authenticated, idle bool) rank {
	switch {
	case !authenticated && idle:
		return unusedRank
	case !authenticated:
		return anonymousRank
	case idle:
		return idleRank
	}
	return busyRank
}

// candidate is an open connection that may be closed to make room for another.
type candidate struct {
	rank       rank
	source     netip.Addr
	fromSource int    // open connections from the same source
	number     uint64 // in the order of acceptance
}

// before reports whether c is closed rather than other: the lower rank, then the source with more connections, then the older.
func (c candidate) before(other candidate) bool {
	switch {
	case c.rank != other.rank:
		return c.rank < other.rank
	case c.fromSource != other.fromSource:
		return c.fromSource > other.fromSource
	}
	return c.number < other.number
}

// yields reports whether a candidate is closed to make room for a new connection from a source. An idle connection of a
// user yields only to a source with fewer connections, so that two clients do not close each other's connections in turn.
// If the source itself has reached its share (full), only its own connections yield.
func (c candidate) yields(source netip.Addr, fromSource int, full bool) bool {
	switch {
	case full && c.source != source:
		return false
	case c.rank == idleRank:
		return c.fromSource > fromSource+1
	}
	return c.rank < busyRank
}
