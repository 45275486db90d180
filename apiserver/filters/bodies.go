package filters

import (
	"errors"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// BodyLimits bound the bodies that are held in memory, in bytes, and how slowly they may arrive. Fields that are zero
// have defaults.
type BodyLimits struct {
	Total    int64 // of all requests together
	PerUser  int64
	Reserved int64 // besides Total, for essential requests and for administrators
	// In each Window, but for the one in which it begins, a body must complete or grow by Progress bytes. The windows are
	// the same for all bodies.
	Window   time.Duration
	Progress int64
}

// defaultBodyLimits are forty bodies of the greatest size at once, and ten by one user.
var defaultBodyLimits = BodyLimits{
	Total: 128 << 20, PerUser: 32 << 20, Reserved: 32 << 20, Window: 10 * time.Second, Progress: 64 << 10,
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

// awaitedBody is the greatest length of a body that no handler reads for which net/http waits, up to as many bytes,
// before it sends an answer that does not fit its buffer. It would do so while the handler has a slot.
const awaitedBody = 256 << 10

// bodies reads the body of a write before the request takes a slot of those in flight: an upload, however slow, takes
// nothing but memory for what has arrived, which is bounded. It comes after authorization, so that a user without the
// right to write holds none. Errors in a body are for the handler to answer, in its order: it may find others first.
type bodies struct {
	next    http.Handler
	catalog *resource.CatalogHolder
	metrics *Metrics
	limits  BodyLimits

	mu       sync.Mutex
	total    int64                // invariant: the sum of byUser
	byUser   map[string]int64     // without users that hold nothing
	arriving map[*upload]struct{} // that are being read
	checking bool                 // the timer of check runs; invariant: true while there are any
}

func newBodies(next http.Handler, options Options) *bodies {
	return &bodies{
		next: next, catalog: options.Catalog, metrics: options.Metrics, limits: options.Bodies.withDefaults(),
		byUser: map[string]int64{}, arriving: map[*upload]struct{}{},
	}
}

func (f *bodies) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	if !f.reads(record, r) {
		if r.ProtoMajor == 1 && r.ContentLength != 0 && r.ContentLength <= awaitedBody && !record.LongRunning {
			_ = http.NewResponseController(w).EnableFullDuplex()
		}
		f.next.ServeHTTP(w, r)
		return
	}
	u := f.begin(w, r, record)
	defer u.release()
	err := record.ReadBody(u, r.ContentLength, u.reserve)
	switch tooSlow := u.end(); {
	case tooSlow:
		f.metrics.terminated(record, r, http.StatusRequestTimeout)
		refuseSlow(w, r)
	case err != nil:
		f.metrics.dropped(record, r)
		refuseTooMany(w)
	default:
		f.next.ServeHTTP(w, r)
	}
}

// reads reports whether a handler will read the request's body whole. Streams are none of these, nor is what is not
// served or too large to be read at all.
func (f *bodies) reads(record *request.Record, r *http.Request) bool {
	info := &record.Info
	if r.ContentLength == 0 || r.ContentLength > request.MaxBody || record.LongRunning || !info.IsResourceRequest {
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

// refuseSlow ends a request whose body does not come.
func refuseSlow(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close") // nothing more can be read from it
	}
	request.WriteError(w, r, request.BodyTooSlow())
}

// errBodies ends the reading of a body for which there is no memory.
var errBodies = errors.New("too many bytes in request bodies")

// upload is one body while it arrives and is held.
type upload struct {
	filter  *bodies
	body    io.Reader
	user    string
	most    int64 // that all bodies together may have for this one to grow
	control *http.ResponseController

	received atomic.Int64

	// Guarded by the filter's mutex:
	reserved int64
	before   int64 // received at the last check; -1 before the first
	tooSlow  bool
}

// begin notes that a body arrives from now on. end must be called when it has, and release when it is needed no more.
func (f *bodies) begin(w http.ResponseWriter, r *http.Request, record *request.Record) *upload {
	u := &upload{
		filter: f, body: r.Body, user: record.User.GetName(), most: f.limits.Total, before: -1,
		control: http.NewResponseController(w),
	}
	if essential(record) || privileged(record) {
		u.most += f.limits.Reserved
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.arriving[u] = struct{}{}
	if !f.checking { // one timer for all: the usual body is there before a timer of its own had been set
		f.checking = true
		time.AfterFunc(f.limits.Window, f.check)
	}
	return u
}

// Read reads from the body.
func (u *upload) Read(p []byte) (int, error) {
	n, err := u.body.Read(p)
	u.received.Add(int64(n))
	return n, err
}

// reserve makes room for more bytes, if there is any.
func (u *upload) reserve(bytes int64) error {
	f := u.filter
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.total+bytes > u.most || f.byUser[u.user]+bytes > f.limits.PerUser {
		return errBodies
	}
	u.reserved += bytes
	f.byUser[u.user] += bytes
	f.total += bytes
	f.metrics.bodyBytes.Set(float64(f.total))
	return nil
}

// release gives back what was reserved.
func (u *upload) release() {
	f := u.filter
	f.mu.Lock()
	defer f.mu.Unlock()
	f.total -= u.reserved
	f.metrics.bodyBytes.Set(float64(f.total))
	if f.byUser[u.user] -= u.reserved; f.byUser[u.user] == 0 {
		delete(f.byUser, u.user)
	}
}

// check ends the reading of bodies of which too little has arrived in the last window.
func (f *bodies) check() {
	f.mu.Lock()
	defer f.mu.Unlock()
	for u := range f.arriving {
		now := u.received.Load()
		if u.before >= 0 && now-u.before < f.limits.Progress {
			// Under the lock: once end has returned, what comes by the connection is not for this upload.
			u.tooSlow = true
			_ = u.control.SetReadDeadline(time.Unix(1, 0))
		}
		u.before = now
	}
	if f.checking = len(f.arriving) > 0; f.checking {
		time.AfterFunc(f.limits.Window, f.check)
	}
}

// end must be called when the body has been read. It reports whether that was cut off.
func (u *upload) end() (tooSlow bool) {
	f := u.filter
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.arriving, u)
	return u.tooSlow
}
