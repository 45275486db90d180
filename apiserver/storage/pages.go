package storage

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/request"
)

// firstKeyAfter appended to a path is the least path after it.
const firstKeyAfter = "\x00"

// streamRetry is the time after which Pages tries again to stream from a server that lacks the call RangeStream, as in
// kube-apiserver (rangeStreamRecheckInterval).
const streamRetry = 10 * time.Minute

// rangeStreams decides whether lists use etcd's call RangeStream, which exists since etcd 3.7. kine, the proxy of etcd
// and the in-process client of an embedded member lack it.
type rangeStreams struct {
	clock clock.PassiveClock // nil: lists are never streamed. Set before first use.
	// missing is the time in Unix nanoseconds at which a server last turned out to lack the call; 0: never.
	missing atomic.Int64
}

// StreamLists makes Pages read each list as one stream, if etcd can send one. It must be called before the store is
// used. The feature gate EtcdRangeStream is the counterpart in kube-apiserver.
func (s *Store) StreamLists(clock clock.PassiveClock) { s.streams.clock = clock }

// supported reports whether to try a stream.
func (r *rangeStreams) supported() bool {
	if r.clock == nil {
		return false
	}
	missing := r.missing.Load()
	return missing == 0 || r.clock.Since(time.Unix(0, missing)) >= streamRetry
}

// isMissing reports whether an error means that a server lacks the call, and notes that.
func (r *rangeStreams) isMissing(err error) bool {
	if status.Code(err) != codes.Unimplemented {
		return false
	}
	r.missing.Store(r.clock.Now().UnixNano())
	return true
}

// Pages returns the values whose paths begin with prefix, which ends in a slash, in consecutive parts. The parts are
// sorted by path and are all read at one revision. With options.Limit, all parts together have at most that number of
// values. Without a stream, each part has options.PageSize values. With a stream, etcd chooses the size of the parts,
// near the limit of a request to etcd (1.5 MiB), and Remaining is set in the last part only. An error ends the
// sequence.
//
// If a stream fails, Pages requests the rest of the values page by page: etcd's client repeats a failed request for a
// page, but not a failed stream.
func (s *Store) Pages(ctx context.Context, prefix string, options ListOptions) iter.Seq2[Page, error] {
	return func(yield func(Page, error) bool) {
		ctx, span := request.StartSpan(ctx, "List(recursive=true) etcd3", "key", prefix)
		defer span.End()
		began, stream := s.metrics.start(), listStream{store: s, prefix: prefix, options: options}
		defer func() { s.metrics.observeList(prefix, stream.received > 0, began) }()
		if options.Partial || !s.streams.supported() || !stream.read(ctx, yield) {
			s.requestPages(ctx, prefix, stream.options, yield)
		}
	}
}

// requestPages calls yield with one page per request.
func (s *Store) requestPages(ctx context.Context, prefix string, options ListOptions, yield func(Page, error) bool) {
	limited := options.Limit > 0
	for {
		request := options
		if request.Limit = options.PageSize; limited {
			request.Limit = min(options.Limit, options.PageSize)
		}
		page, err := s.list(ctx, prefix, request)
		if !yield(page, err) || err != nil || !page.More || len(page.Values) == 0 {
			return
		}
		if options = options.after(page); limited && options.Limit == 0 {
			return
		}
	}
}

// after returns the options of the list of the values that follow a page.
func (o ListOptions) after(page Page) ListOptions {
	o.Revision, o.From = page.Revision, page.Values[len(page.Values)-1].Path+firstKeyAfter
	o.Limit = max(0, o.Limit-int64(len(page.Values)))
	return o
}

// listStream is the stream of one list.
type listStream struct {
	store    *Store
	prefix   string
	options  ListOptions // of the values that have not been received yet
	received int64       // number of values that have been received
}

// errIncompleteStream means that a stream ended before its last part, or that a part had no values.
var errIncompleteStream = errors.New("the stream of the list is incomplete")

// read calls yield with the parts of the stream. It returns false if the stream failed, so that the rest of the list
// has not been read.
func (l *listStream) read(ctx context.Context, yield func(Page, error) bool) (done bool) {
	if l.options.Revision == 0 { // only the last part has the revision of a stream
		revision, err := l.store.Revision(ctx)
		if err != nil {
			yield(Page{}, fmt.Errorf("list %s: %w", l.prefix, err))
			return true
		}
		l.options.Revision = revision
	}
	ctx, cancel := context.WithCancel(ctx)
	began := l.store.metrics.start()
	parts, err := l.open(ctx)
	defer func() {
		cancel()
		for range parts { // otherwise the sender waits forever
		}
	}()
	for err == nil && !done {
		done, err = l.next(ctx, <-parts, yield)
	}
	if !l.store.streams.isMissing(err) {
		l.store.metrics.observe(ctx, "listStream", l.prefix, began, err)
	}
	return done
}

// open requests the stream. After an error, it returns a channel that is closed.
func (l *listStream) open(ctx context.Context) (clientv3.GetStreamChan, error) {
	first := l.store.Key(l.prefix)
	end := clientv3.GetPrefixRangeEnd(first)
	if l.options.From != "" {
		first = l.store.Key(l.options.From)
	}
	parts, err := l.store.client.GetStream(ctx, first,
		clientv3.WithRange(end), clientv3.WithRev(l.options.Revision), clientv3.WithLimit(l.options.Limit))
	if err != nil {
		closed := make(chan clientv3.RangeStreamResponse)
		close(closed)
		return closed, fmt.Errorf("open the stream: %w", err)
	}
	return parts, nil
}

// next calls yield with a part of the stream, and reports whether the list has ended. Only the last part has a header.
// An error means that the stream has failed.
func (l *listStream) next(
	ctx context.Context, part clientv3.RangeStreamResponse, yield func(Page, error) bool,
) (ended bool, err error) {
	if err := part.Err(); err != nil {
		return false, fmt.Errorf("receive a part of the list: %w", err)
	}
	if part.RangeResponse == nil || part.Header == nil && len(part.Kvs) == 0 {
		return false, errIncompleteStream
	}
	l.received += int64(len(part.Kvs))
	page := Page{Revision: l.options.Revision, More: true}
	if part.Header != nil {
		l.store.observe(part.Header.Revision)
		page.More, page.Remaining = part.More, part.Count-l.received
	}
	if err := l.store.fill(ctx, &page, part.Kvs, l.options.Unreadable); err != nil {
		yield(Page{}, fmt.Errorf("list %s: %w", l.prefix, err))
		return true, nil
	}
	if !yield(page, nil) || part.Header != nil {
		return true, nil
	}
	l.options = l.options.after(page)
	return false, nil
}
