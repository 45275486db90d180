package filters

import (
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

// BodyLimits bound the request bodies held in memory, in bytes, and how slowly they may arrive. Zero fields have
// defaults.
type BodyLimits struct {
	Total    int64 // all requests together
	PerUser  int64
	Reserved int64 // in addition to Total, for essential requests and administrators
	// In each Window after the one in which it starts, a body must complete or grow by Progress bytes. All bodies share
	// the same windows.
	Window   time.Duration
	Progress int64
}

// defaultBodyLimits allow about forty bodies of the maximum size at once, ten of them by one user.
var defaultBodyLimits = BodyLimits{
	Total: 128 << 20, PerUser: 32 << 20, Reserved: 32 << 20, Window: 10 * time.Second, Progress: 64 << 10,
}

// Within returns the default limits, or smaller ones if the process has only so many bytes of memory.
func (BodyLimits) Within(limit int64) BodyLimits {
	const part = 8 // of the memory is for bodies
	d := defaultBodyLimits
	if total := limit / part; total < d.Total {
		return BodyLimits{Total: total, PerUser: max(total/4, request.MaxBody), Reserved: max(total/4, request.MaxBody)}
	}
	return d
}

func (l BodyLimits) withDefaults() BodyLimits {
	for _, field := range []struct{ value, byDefault *int64 }{
		{&l.Total, &defaultBodyLimits.Total}, {&l.PerUser, &defaultBodyLimits.PerUser},
		{&l.Reserved, &defaultBodyLimits.Reserved}, {&l.Progress, &defaultBodyLimits.Progress},
	} {
		if *field.value == 0 {
			*field.value = *field.byDefault
		}
	}
	if l.Window == 0 {
		l.Window = defaultBodyLimits.Window
	}
	return l
}

// awaitedBody is net/http's limit of unread body bytes for which it waits before it sends a response that exceeds its
// buffer. The request would hold its slot meanwhile; full duplex turns the wait off.
const awaitedBody = 256 << 10

// seatedBody is how long a request holds the seat of its priority level while its body arrives. Nearly all bodies arrive
// with their headers. A slot in flight, for which there are no queues and which costs less, is not held meanwhile.
const seatedBody = 50 * time.Millisecond

// bodies reads the body of a write before its handler runs. A slow upload releases its seat until the body is complete,
// and holds only memory for the bytes that have arrived, which BodyLimits bound. It comes after authorization, so that users
// without write access hold none. Read errors are left to the handler, which reports them in kube-apiserver's order.
type bodies struct {
	next    http.Handler
	catalog *resource.CatalogHolder
	metrics *Metrics
	limits  BodyLimits
	// queued is set if a request that has released its seat can wait for another one in a queue.
	queued bool

	mu       sync.Mutex
	total    int64                // Invariant: the sum of byUser.
	byUser   map[string]int64     // Invariant: no entry is 0.
	arriving map[*upload]struct{} // the bodies that are being read
	checking bool                 // The timer of check runs. Invariant: true while arriving is not empty.
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

// awaited reports whether net/http would wait for the rest of the body. It closes the connection instead if the body is
// longer, or if the client sends it only after a 100 Continue.
func awaited(record *request.Record, r *http.Request) bool {
	return r.ProtoMajor == 1 && r.ContentLength != 0 && r.ContentLength <= awaitedBody && !record.LongRunning &&
		!strings.EqualFold(r.Header.Get("Expect"), "100-continue")
}

// discard reads what the handler has left of a body, after the request has given its seat back. In full duplex,
// net/http must find the end of the body before the handler returns; it otherwise reads the connection's next request
// in two goroutines at once. A body that is too long, or that has been closed before its end, closes the connection.
func (f *bodies) discard(w http.ResponseWriter, r *http.Request, record *request.Record) {
	u := f.begin(w, r, record)
	defer u.release()
	_, err := io.CopyN(io.Discard, u, awaitedBody)
	if err == nil || errors.Is(err, io.EOF) {
		err = r.Body.Close()
	}
	tooSlow := u.end()
	if tooSlow || err != nil && !errors.Is(err, http.ErrBodyReadAfterClose) {
		// The rest must not be taken for a request.
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

// reads reports whether a handler of this server will read the whole body. It is false for streams, for resources that
// are not served, for extension API servers, to which the body is streamed, and for bodies over the size limit.
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

// refuseSlow ends a request whose body arrives too slowly.
func refuseSlow(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close") // the read deadline makes the connection unusable
	}
	request.WriteError(w, r, request.BodyTooSlow())
}

// errBodies ends the reading of a body that would exceed the limits.
var errBodies = errors.New("too many bytes in request bodies")

// upload is one body, from its first byte until the handler has returned.
type upload struct {
	filter  *bodies
	body    io.Reader
	record  *request.Record
	max     int64 // this body may grow while all bodies together are smaller
	control *http.ResponseController

	received atomic.Int64

	// Guarded by the filter's mutex:
	reserved int64
	before   int64 // received at the last check; -1 before the first
	tooSlow  bool
	ended    bool
}

func (u *upload) user() string { return u.record.User.GetName() }

// begin registers a body that is about to be read. The caller must call end when it has been read, and release when it
// is no longer needed.
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
	if !f.checking { // One timer for all, because most bodies arrive before a timer of their own could be set.
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

// reserve counts more bytes of the body, or returns errBodies if they exceed a limit.
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

// release returns the reserved bytes.
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

// check stops reading bodies that have grown too little in the last window.
func (f *bodies) check() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for u := range f.arriving {
		now := u.received.Load()
		if u.before >= 0 && now-u.before < f.limits.Progress {
			// Under the lock, because after end has returned the connection may serve another request.
			u.tooSlow = true
			_ = u.control.SetReadDeadline(time.Unix(1, 0))
		}
		u.before = now
	}
	if f.checking = len(f.arriving) > 0; f.checking {
		time.AfterFunc(f.limits.Window, f.check)
	}
}

// releaseSeat releases the seat of a request whose body has not arrived yet. It does nothing after end.
func (u *upload) releaseSeat() {
	u.filter.mu.Lock()
	defer u.filter.mu.Unlock()
	if !u.ended {
		u.record.ReleaseSeat()
	}
}

// end unregisters the body. It reports whether check stopped the reading.
func (u *upload) end() (tooSlow bool) {
	f := u.filter
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.arriving, u)
	u.ended = true
	return u.tooSlow
}
