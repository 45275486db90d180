package filters

import (
	"net/http"

	"quorate.dev/apiserver/memory"
	"quorate.dev/apiserver/request"
)

// overload rejects requests while the memory of the process is nearly full, expensive requests first. Clients retry
// after overloadRetry, with another replica if possible; a process that the kernel kills loses all requests and its
// caches.
type overload struct {
	next    http.Handler
	level   func() memory.Level
	metrics *Metrics
}

func newOverload(next http.Handler, options Options) http.Handler {
	if options.MemoryLevel == nil {
		return next
	}
	return &overload{next: next, level: options.MemoryLevel, metrics: options.Metrics}
}

// overloadRetry is the number of seconds after which clients retry.
const overloadRetry = "3"

func (f *overload) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	level := f.level()
	if level == memory.Normal {
		f.next.ServeHTTP(w, r)
		return
	}
	record := request.From(r.Context())
	if !isShed(level, record, r.ContentLength) {
		f.next.ServeHTTP(w, r)
		return
	}
	f.metrics.shedRequests.WithLabelValues(level.String()).Inc()
	f.metrics.dropped(record, r)
	refuseTooMany(w, overloadRetry)
}

// largeBody is the size in bytes from which a request body makes a write expensive.
const largeBody = 64 << 10

// isShed reports whether a request is rejected at a memory level. Requests of administrators, health checks, metrics,
// leases, which are the heartbeats of nodes and elect leaders, and deletions of single objects, which free memory, are
// always served. Requests of nodes and the control plane are rejected only at memory.Critical.
func isShed(level memory.Level, record *request.Record, length int64) bool {
	info := &record.Info
	switch {
	case level == memory.Normal, privileged(record), isProbe(info.Path), info.Verb == "delete",
		info.APIGroup == "coordination.k8s.io" && info.Resource == "leases" && !isCostly(record, length):
		return false
	case level == memory.Critical:
		return true
	}
	return isCostly(record, length) && !essential(record)
}

// isCostly reports whether a request may need much memory: lists, watches, which start with a list, and large bodies.
func isCostly(record *request.Record, length int64) bool {
	switch record.Info.Verb {
	case "list", "watch", "deletecollection":
		return true
	}
	return length >= largeBody || length < 0
}
