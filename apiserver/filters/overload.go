package filters

import (
	"net/http"

	"quorate.dev/apiserver/memory"
	"quorate.dev/apiserver/request"
)

// overload rejects requests while the process's memory is nearly full, costly ones first. Clients retry after a while, and
// with another replica if they can; a process that the kernel kills loses all requests and its caches.
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

// overloadRetry is how long clients wait before they retry, in seconds.
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

// largeBody is the number of bytes from which a request body makes a write costly.
const largeBody = 64 << 10

// isShed reports whether a request is rejected at a level. Administrators, health checks, metrics and leases, which are the
// heartbeats of nodes and elect leaders, are always served, and so are deletions of single objects, which free memory. Nodes
// and the control plane are rejected at the last level only.
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

// isCostly reports whether a request may take much memory: lists and watches, which begin with a list, and large bodies.
func isCostly(record *request.Record, length int64) bool {
	switch record.Info.Verb {
	case "list", "watch", "deletecollection":
		return true
	}
	return length >= largeBody || length < 0
}
