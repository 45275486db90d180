package storage

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"quorate.dev/apiserver/request"
)

// leaderChangedDelay is the delay after which a read that failed because the leader changed is repeated.
const leaderChangedDelay = 10 * time.Millisecond

// ListOptions are the options of List.
type ListOptions struct {
	Revision int64  // revision at which to read; 0: the current one, linearizable
	From     string // first path to return, inclusive; empty: the prefix
	Limit    int64  // maximum number of values; 0: no limit
	// PageSize is the maximum number of values of one request of Pages. It must be positive there; List ignores it.
	PageSize int64
	// Partial means that the caller of Pages may leave before the last value, so that no stream is worth its start.
	Partial bool
	// Unreadable makes List return values that cannot be decrypted too, with Value.Err.
	Unreadable bool
}

// Page is a part of a collection, sorted by path.
type Page struct {
	Values    []Value
	Revision  int64 // revision at which all values were read
	More      bool  // reports whether values follow the last one
	Remaining int64 // number of values that follow
	// Protection is the greatest protection of a value of the page.
	Protection Protection
}

// Get returns the value of a path. It is a linearizable read. With a TransformError, it returns the value without Data.
func (s *Store) Get(ctx context.Context, path string) (Value, error) {
	began := s.metrics.start()
	response, err := s.get(ctx, s.Key(path), clientv3.WithLimit(1))
	s.metrics.observe(ctx, "get", path, began, err)
	if err != nil {
		return Value{}, fmt.Errorf("get %s: %w", path, classify(err))
	}
	if len(response.Kvs) == 0 {
		return Value{}, fmt.Errorf("get %s: %w", path, ErrNotFound)
	}
	v, err := s.decrypted(ctx, response.Kvs[0])
	if err != nil {
		return v, fmt.Errorf("get %s: %w", path, err)
	}
	return v, nil
}

// ListKeys does the same as List, but returns Values without Data. etcd then sends little more than the keys.
func (s *Store) ListKeys(ctx context.Context, prefix string, options ListOptions) (Page, error) {
	first := s.Key(max(prefix, options.From))
	began := s.metrics.start()
	response, err := s.get(ctx, first, clientv3.WithRange(clientv3.GetPrefixRangeEnd(s.Key(prefix))),
		clientv3.WithRev(options.Revision), clientv3.WithLimit(options.Limit), clientv3.WithKeysOnly())
	s.metrics.observe(ctx, "list", prefix, began, err)
	if err != nil {
		return Page{}, fmt.Errorf("list the keys of %s: %w", prefix, classify(err))
	}
	page := Page{
		Values: make([]Value, len(response.Kvs)), Revision: cmp.Or(options.Revision, response.Header.Revision),
		More: response.More, Remaining: response.Count - int64(len(response.Kvs)),
	}
	for i, kv := range response.Kvs {
		page.Values[i] = s.value(kv)
	}
	return page, nil
}

// List returns the values whose paths begin with prefix, which ends in a slash, sorted by path.
func (s *Store) List(ctx context.Context, prefix string, options ListOptions) (Page, error) {
	ctx, span := request.StartSpan(ctx, "List(recursive=true) etcd3", "key", prefix)
	defer span.End()
	defer s.metrics.observeList(prefix, false, s.metrics.start())
	return s.list(ctx, prefix, options)
}

// list requests a page.
func (s *Store) list(ctx context.Context, prefix string, options ListOptions) (Page, error) {
	first := s.Key(prefix)
	end := clientv3.GetPrefixRangeEnd(first)
	if options.From != "" {
		first = s.Key(options.From)
	}
	began := s.metrics.start()
	response, err := s.get(ctx, first,
		clientv3.WithRange(end), clientv3.WithRev(options.Revision), clientv3.WithLimit(options.Limit))
	s.metrics.observe(ctx, "list", prefix, began, err)
	if err != nil {
		return Page{}, fmt.Errorf("list %s: %w", prefix, classify(err))
	}
	page := Page{
		Revision:  response.Header.Revision,
		More:      response.More,
		Remaining: response.Count - int64(len(response.Kvs)),
	}
	if options.Revision > 0 {
		page.Revision = options.Revision
	}
	if err := s.fill(ctx, &page, response.Kvs, options.Unreadable); err != nil {
		return Page{}, fmt.Errorf("list %s: %w", prefix, err)
	}
	return page, nil
}

// fill decrypts the values of a page.
func (s *Store) fill(ctx context.Context, page *Page, kvs []*mvccpb.KeyValue, unreadable bool) (err error) {
	for _, kv := range kvs {
		page.Protection = max(page.Protection, protectionOf(kv.Value))
	}
	page.Values, err = s.decryptedPage(ctx, kvs, unreadable)
	return err
}

// Count returns the number of values at a revision whose paths begin with prefix, which ends in a slash, and are not
// less than from.
func (s *Store) Count(ctx context.Context, prefix, from string, revision int64) (int64, error) {
	first := s.Key(prefix)
	end := clientv3.GetPrefixRangeEnd(first)
	began := s.metrics.start()
	response, err := s.get(ctx, max(first, s.Key(from)),
		clientv3.WithRange(end), clientv3.WithRev(revision), clientv3.WithCountOnly())
	s.metrics.observe(ctx, "list", prefix, began, err)
	if err != nil {
		return 0, fmt.Errorf("count %s: %w", prefix, classify(err))
	}
	return response.Count, nil
}

// get reads from etcd. It repeats a read that fails because the leader changed until the context ends, as etcd's
// remote client does; the in-process client of an embedded member does not.
func (s *Store) get(ctx context.Context, key string, options ...clientv3.OpOption) (*clientv3.GetResponse, error) {
	for {
		response, err := s.client.Get(ctx, key, options...)
		if err == nil {
			s.observe(response.Header.GetRevision())
		}
		if !errors.Is(rpctypes.Error(err), rpctypes.ErrLeaderChanged) {
			return response, err
		}
		select {
		case <-time.After(leaderChangedDelay):
		case <-ctx.Done():
			return nil, err
		}
	}
}
