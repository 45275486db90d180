package filters

import (
	"cmp"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// BodyLimits bound the bytes of request bodies in memory, and how slowly bodies may arrive. Fields that are 0 have
// defaults.
type BodyLimits struct {
	// Total is the number of bytes of the bodies of all requests together.
	Total int64
	// PerUser is the number of bytes of the bodies of one user's requests.
	PerUser int64
	// Reserved is the number of bytes in addition to Total that only essential requests and administrators can use.
	Reserved int64
	// In each Window after the one in which it starts, a body must be completed or grow by Progress bytes. All bodies
	// share the same windows.
	Window   time.Duration
	Progress int64
}

// defaultBodyLimits allow about forty bodies of the maximum size at the same time, ten of one user.
var defaultBodyLimits = BodyLimits{
	Total: 128 << 20, PerUser: 32 << 20, Reserved: 32 << 20, Window: 10 * time.Second, Progress: 64 << 10,
}

// Within returns the default limits, or smaller limits if an eighth of limit, the memory of the process in bytes, is
// less.
func (BodyLimits) Within(limit int64) BodyLimits {
	// part is the reciprocal of the share of the memory that bodies may take.
	const part = 8
	d := defaultBodyLimits
	if total := limit / part; total < d.Total {
		return BodyLimits{Total: total, PerUser: max(total/4, request.MaxBody), Reserved: max(total/4, request.MaxBody)}
	}
	return d
}

func (l BodyLimits) withDefaults() BodyLimits {
	d := defaultBodyLimits
	return BodyLimits{
		Total: cmp.Or(l.Total, d.Total), PerUser: cmp.Or(l.PerUser, d.PerUser), Reserved: cmp.Or(l.Reserved, d.Reserved),
		Progress: cmp.Or(l.Progress, d.Progress), Window: cmp.Or(l.Window, d.Window),
	}
}

// awaitedBody is the number of unread bytes of a body up to which net/http reads the rest of the body before it sends a
// response that exceeds its buffer. The request would hold its slot during this read; full duplex disables the read.
const awaitedBody = 256 << 10

// seatedBody is how long a request holds the seat of its priority level while its body arrives. Nearly all bodies
// arrive with their headers. Without priority and fairness there are no queues for a second seat, and a request
// releases its slot before its body is read.
const seatedBody = 50 * time.Millisecond

// bodies reads the body of a write before its handler runs. A slow upload releases its seat until the body is complete,
// and holds only memory for the bytes that have arrived, which BodyLimits bound. The filter follows authorization, so
// that users without write access hold no memory. The handler reports errors of reading in kube-apiserver's order.
type bodies struct {
	next    http.Handler
	catalog *resource.CatalogHolder
	metrics *Metrics
	limits  BodyLimits
	// queued is set if a request that has released its seat can wait for another seat in a queue.
	queued bool

	mu sync.Mutex
	// total is the number of reserved bytes. Invariant: total is the sum of byUser.
	total int64
	// byUser has the reserved bytes of each user. Invariant: no entry is 0.
	byUser map[string]int64
	// arriving has the bodies that are being read.
	arriving map[*upload]struct{}
	// checking is set while the timer of check runs. Invariant: checking is true if arriving is not empty.
	checking bool
}

func newBodies(next http.Handler, options Options) *bodies {
	return &bodies{
		next: next, catalog: options.Catalog, metrics: options.Metrics, limits: options.Bodies.withDefaults(),
		queued: options.Fairness != nil,
		byUser: map[string]int64{}, arriving: map[*upload]struct{}{},
	}
}

func (f *bodies) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	if !f.reads(record, r) {
		if !awaited(record, r) || http.NewResponseController(w).EnableFullDuplex() != nil {
			f.next.ServeHTTP(w, r)
			return
		}
		f.next.ServeHTTP(w, r)
		record.ReleaseSeat()
		f.discard(w, r, record)
		return
	}
	u := f.begin(w, r, record)
	defer u.release()
	if f.queued {
		defer time.AfterFunc(seatedBody, u.releaseSeat).Stop()
	} else {
		record.ReleaseSeat()
	}
	err := record.ReadBody(u, r.ContentLength, u.reserve)
	switch tooSlow := u.end(); {
	case tooSlow:
		f.metrics.terminated(record, r, http.StatusRequestTimeout)
		refuseSlow(w, r)
	case err != nil || !record.RetakeSeat():
		f.metrics.dropped(record, r)
		refuseTooMany(w, "1")
	default:
		f.next.ServeHTTP(w, r)
	}
}

// awaited reports whether net/http would read the rest of the body before it sends the response. net/http instead
// closes the connection if the body is longer, or if the client sends the body only after a 100 Continue.
func awaited(record *request.Record, r *http.Request) bool {
	return r.ProtoMajor == 1 && r.ContentLength != 0 && r.ContentLength <= awaitedBody && !record.LongRunning &&
		!strings.EqualFold(r.Header.Get("Expect"), "100-continue")
}

// discard reads the part of a body that the handler has not read, after the request has released its seat. In full
// duplex, net/http must find the end of the body before the handler returns; otherwise two goroutines of net/http read
// the connection's next request concurrently. discard closes the connection if the body is too long or slow, or was
// closed before its end.
func (f *bodies) discard(w http.ResponseWriter, r *http.Request, record *request.Record) {
	u := f.begin(w, r, record)
	defer u.release()
	_, err := io.CopyN(io.Discard, u, awaitedBody)
	if err == nil || errors.Is(err, io.EOF) {
		err = r.Body.Close()
	}
	tooSlow := u.end()
	if tooSlow || err != nil && !errors.Is(err, http.ErrBodyReadAfterClose) {
		// The rest of the body must not be parsed as a request.
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// reads reports whether a handler of this server will read the whole body. It returns false for streams, for resources
// that are not served, for extension API servers, to which bodies are streamed, and for bodies over the size limit.
func (f *bodies) reads(record *request.Record, r *http.Request) bool {
	info := &record.Info
	if r.ContentLength == 0 || r.ContentLength > request.MaxBody || record.LongRunning || !info.IsResourceRequest ||
		record.Delegate != nil {
		return false
	}
	switch info.Verb {
	case "create", "update", "patch", "delete", "deletecollection":
	default:
		return false
	}
	match, ok := f.catalog.Current().Lookup(info.APIGroup, info.APIVersion, info.Resource)
	if !ok {
		return false
	}
	endpoint := match.Version.Endpoints[info.Subresource]
	return endpoint != nil && endpoint.Connect == nil
}

// refuseSlow responds with 408 to a request whose body arrives too slowly.
func refuseSlow(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		// The read deadline has made the connection unusable.
		w.Header().Set("Connection", "close")
	}
	request.WriteError(w, r, request.BodyTooSlow())
}

// errBodies is returned by reserve if a body would exceed the limits.
var errBodies = errors.New("too many bytes in request bodies")

// upload is the body of one request, from its first byte until the handler has returned.
type upload struct {
	filter *bodies
	body   io.Reader
	record *request.Record
	// max is the total size of all bodies up to which this body may grow.
	max     int64
	control *http.ResponseController

	received atomic.Int64

	// Guarded by the filter's mutex:
	reserved int64
	// before is the value of received at the last check; -1 before the first check.
	before  int64
	tooSlow bool
	ended   bool
}

func (u *upload) user() string { return u.record.User.GetName() }

// begin registers a body before it is read. The caller must call end when the body has been read, and release when the
// body is no longer needed.
func (f *bodies) begin(w http.ResponseWriter, r *http.Request, record *request.Record) *upload {
	u := &upload{
		filter: f, body: r.Body, record: record, max: f.limits.Total, before: -1,
		control: http.NewResponseController(w),
	}
	if essential(record) || privileged(record) {
		u.max += f.limits.Reserved
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.arriving[u] = struct{}{}
	// All bodies share one timer, because most bodies arrive before a timer of their own could be set.
	if !f.checking {
		f.checking = true
		time.AfterFunc(f.limits.Window, f.check)
	}
	return u
}

// Read implements io.Reader.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.body.Read(p)
	u.received.Add(int64(n))
	return n, err
}

// reserve counts bytes more of the body, or returns errBodies if they exceed a limit.
func (u *upload) reserve(bytes int64) error {
	f := u.filter
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.total+bytes > u.max || f.byUser[u.user()]+bytes > f.limits.PerUser {
		return errBodies
	}
	u.reserved += bytes
	f.byUser[u.user()] += bytes
	f.total += bytes
	f.metrics.bodyBytes.Set(float64(f.total))
	return nil
}

// release releases the memory that reserve has counted for the body.
func (u *upload) release() {
	f := u.filter
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total -= u.reserved
	f.metrics.bodyBytes.Set(float64(f.total))
	if f.byUser[u.user()] -= u.reserved; f.byUser[u.user()] == 0 {
		delete(f.byUser, u.user())
	}
}

// check ends the reading of bodies that have grown too little in the last window.
func (f *bodies) check() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for u := range f.arriving {
		now := u.received.Load()
		if u.before >= 0 && now-u.before < f.limits.Progress {
			// The lock is held, because the connection may serve another request after end has returned.
			u.tooSlow = true
			_ = u.control.SetReadDeadline(time.Unix(1, 0))
		}
		u.before = now
	}
	if f.checking = len(f.arriving) > 0; f.checking {
		time.AfterFunc(f.limits.Window, f.check)
	}
}

// releaseSeat releases the seat of a request whose body has not arrived completely. It does nothing after end.
func (u *upload) releaseSeat() {
	u.filter.mu.Lock()
	defer u.filter.mu.Unlock()
	if !u.ended {
		u.record.ReleaseSeat()
	}
}

// end unregisters the body. It reports whether check has ended its reading.
func (u *upload) end() (tooSlow bool) {
	f := u.filter
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.arriving, u)
	u.ended = true
	return u.tooSlow
}
