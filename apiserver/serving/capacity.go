package serving

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// capacity limits the number of open connections of a process whose file descriptors are limited. The embedded etcd
// member exits the process when it cannot open a file; therefore connections must leave enough descriptors for etcd.
type capacity struct {
	// connections is the maximum number of open connections, perSource the maximum from one source address; 0 means no
	// limit.
	connections, perSource int
	// descriptor is a file descriptor: a connection is also refused if its own file descriptor has this or a higher
	// number. The kernel assigns the lowest free number, so that this limit takes all open files into account, and the
	// server's own connections, for example to kubelets.
	descriptor int
}

const (
	// minReserve and maxReserve are the bounds of the number of descriptors that are not available to clients. They are
	// reserved for etcd's database, write-ahead log and snapshots, for connections to its peers, for logs, and for
	// connections to webhooks, kubelets and extension API servers.
	minReserve, maxReserve = 128, 4096
	// reservedPart is the reciprocal of the share of the descriptors that is reserved, within these bounds. At most
	// half of the descriptors are reserved.
	reservedPart = 4
)

// capacityOf returns the capacity of a process that may open the given number of file descriptors.
func capacityOf(descriptors int) capacity {
	reserve := min(max(descriptors/reservedPart, minReserve), maxReserve, descriptors/2)
	connections := descriptors - reserve
	// A source can be a load balancer for all clients; therefore its share is three quarters.
	return capacity{connections: connections, perSource: connections - connections/4, descriptor: descriptors - reserve/2}
}

// processCapacity returns the capacity of this process. The Go runtime has raised the soft limit of file descriptors to
// the hard limit.
func processCapacity() capacity {
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil || limit.Cur > 1<<30 {
		return capacity{}
	}
	return capacityOf(int(limit.Cur))
}

// allows reports whether another connection may be accepted. open is the number of open connections, and fromSource the
// number of open connections from the same source. descriptor is the file descriptor of the connection, or -1 if it is
// unknown.
func (c capacity) allows(open, fromSource, descriptor int) bool {
	return c.connections == 0 ||
		open < c.connections && fromSource < c.perSource && (descriptor < 0 || descriptor < c.descriptor)
}

// rank is the order in which connections are closed to make room for others: the lowest rank first.
type rank int

const (
	// unusedRank is a connection that never authenticated and has no running request.
	unusedRank rank = iota
	// anonymousRank is a connection that never authenticated and has a running request.
	anonymousRank
	// idleRank is an authenticated connection without a running request.
	idleRank
	// busyRank is an authenticated connection with a running request. It is never closed to make room.
	busyRank
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

// candidate is an open connection that may be closed to make room for another one.
type candidate struct {
	rank   rank
	source netip.Addr
	// fromSource is the number of open connections from the same source.
	fromSource int
	// number numbers connections in the order in which they were accepted.
	number uint64
}

// before reports whether c is closed before other. The lower rank is closed first, then the source with more
// connections, then the older connection.
func (c candidate) before(other candidate) bool {
	switch {
	case c.rank != other.rank:
		return c.rank < other.rank
	case c.fromSource != other.fromSource:
		return c.fromSource > other.fromSource
	}
	return c.number < other.number
}

// yields reports whether a candidate may be closed to make room for a new connection from source. An idle connection of
// a user yields only to a source with fewer connections, so that two clients do not close each other's connections in
// turn. If the source itself has reached its share (full), only its own connections yield.
func (c candidate) yields(source netip.Addr, fromSource int, full bool) bool {
	switch {
	case full && c.source != source:
		return false
	case c.rank == idleRank:
		return c.fromSource > fromSource+1
	}
	return c.rank < busyRank
}
