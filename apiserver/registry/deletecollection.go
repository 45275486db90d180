package registry

import (
	"context"
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/apiserver/watchcache"
)

// DeleteCollection deletes every selected object and returns them as they were, in a list that the caller must close. It
// is not atomic: after an error some objects are gone.
func (r *Registry) DeleteCollection(ctx context.Context, t Target, list ListOptions, options *metav1.DeleteOptions, write WriteOptions, workers int) (*List, error) {
	page, err := r.List(ctx, t, list)
	if err != nil {
		return nil, err
	}
	write.Collection = true
	work := make(chan *watchcache.Entry)
	failures := make([]error, max(workers, 1))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var group sync.WaitGroup
	for worker := range failures {
		group.Go(func() {
			for entry := range work {
				if failures[worker] = r.deleteEntry(ctx, t, entry, options, write); failures[worker] != nil {
					cancel()
					return
				}
			}
		})
	}
	hand(ctx, work, page.Entries)
	group.Wait()
	if err := errors.Join(failures...); err != nil {
		page.Close()
		return nil, err
	}
	return page, nil
}

// hand gives entries to the workers until all are given or ctx ends.
func hand(ctx context.Context, work chan<- *watchcache.Entry, entries []*watchcache.Entry) {
	defer close(work)
	for _, entry := range entries {
		select {
		case work <- entry:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Registry) deleteEntry(ctx context.Context, t Target, entry *watchcache.Entry, options *metav1.DeleteOptions, write WriteOptions) error {
	one := t.named(entry.Name())
	one.Namespace = entry.Namespace()
	_, err := r.Delete(ctx, one, options, write)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
