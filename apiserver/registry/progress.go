package registry

import (
	"context"
	"sync"

	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

// Progress is how far a call of FollowWithProgress has come. The zero value is ready for use; the methods of nil do
// nothing.
type Progress struct {
	lock    sync.Mutex
	watch   *Watch        // nil before the initial state is handled
	handled int64         // all changes up to this revision; it decreases when storage goes back in time
	changed chan struct{} // closed when the fields above change; nil: no caller waits for it
}

func (p *Progress) begin(w *Watch) {
	if p != nil {
		p.set(w, w.Start)
	}
}

func (p *Progress) advance(revision int64) {
	if p != nil {
		p.set(p.watch, revision) // only the following goroutine changes watch
	}
}

func (p *Progress) end() {
	if p != nil {
		p.set(nil, 0)
	}
}

func (p *Progress) set(w *Watch, handled int64) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.watch, p.handled = w, handled
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// check reports whether all changes up to a revision are handled. If not, it returns a channel that is closed when
// there is progress, which it requests.
func (p *Progress) check(revision int64) (done bool, changed <-chan struct{}) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.watch != nil && p.handled >= revision {
		return true, nil
	}
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	if p.watch != nil {
		p.watch.watcher.RequestProgress()
	}
	return false, p.changed
}

// AwaitFollowed returns when FollowWithProgress has handled every change to a resource that was stored before the call.
// Concurrent callers share the read of the current revision from etcd. With an etcd too old for progress requests, it
// waits for those changes only that have reached the watch cache.
func (c *Client) AwaitFollowed(ctx context.Context, name schema.GroupResource, p *Progress) error {
	t, err := c.target(resource.Key{GroupResource: name})
	if err != nil {
		return err
	}
	cache := c.registry.cache(t.Match)
	var snapshot *watchcache.Snapshot
	if c.registry.storageOf(t.Match).Store.SupportsProgress() {
		snapshot, err = cache.Latest(ctx)
	} else {
		snapshot, err = cache.Snapshot(ctx, 0)
	}
	if err != nil {
		return status(err, t)
	}
	for {
		done, changed := p.check(snapshot.Revision())
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}
