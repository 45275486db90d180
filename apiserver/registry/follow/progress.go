package follow

import (
	"context"
	"sync"
)

// Progress records how far a Func has come, for goroutines that wait for it with Await. The zero value is ready for
// use. A Func calls Begin, Advance and End from one goroutine; they do nothing for a nil Progress. Await may be called
// from any goroutine, before, during and between watches.
type Progress struct {
	// lock guards the fields below. It is held during calls of request, which must not wait for the Func.
	lock    sync.Mutex
	request func()        // requests progress of the watch; nil before the initial state is handled
	handled int64         // all changes up to this revision; it decreases when storage goes back in time
	changed chan struct{} // closed when the fields above change; nil: no caller waits for it
}

// Begin records that the state at a revision has been handled, and that request makes the watch report its revision.
func (p *Progress) Begin(revision int64, request func()) {
	if p != nil {
		p.set(request, revision)
	}
}

// Advance records that all changes up to a revision have been handled.
func (p *Progress) Advance(revision int64) {
	if p != nil {
		p.set(p.request, revision) // only the following goroutine changes request
	}
}

// End records that the watch has ended.
func (p *Progress) End() {
	if p != nil {
		p.set(nil, 0)
	}
}

func (p *Progress) set(request func(), handled int64) {
	p.lock.Lock()
	defer p.lock.Unlock()
	p.request, p.handled = request, handled
	if p.changed != nil {
		close(p.changed)
		p.changed = nil
	}
}

// Await returns when all changes up to a revision have been handled. It asks the watch for its revision at the start
// and after each progress, because no event may follow the last change that it waits for.
func (p *Progress) Await(ctx context.Context, revision int64) error {
	for {
		done, changed := p.check(revision)
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

// check reports whether all changes up to a revision are handled. If not, it returns a channel that is closed when
// there is progress, which it requests.
func (p *Progress) check(revision int64) (done bool, changed <-chan struct{}) {
	p.lock.Lock()
	defer p.lock.Unlock()
	if p.request != nil && p.handled >= revision {
		return true, nil
	}
	if p.changed == nil {
		p.changed = make(chan struct{})
	}
	if p.request != nil {
		p.request()
	}
	return false, p.changed
}
