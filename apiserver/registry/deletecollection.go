package registry

import (
	"context"
	"errors"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/apiserver/watchcache"
)

// DeleteCollectionOptions are the options of DeleteCollection.
type DeleteCollectionOptions struct {
	List   ListOptions           // which objects
	Delete *metav1.DeleteOptions // of each of them
	Write  WriteOptions
	// Workers is how many objects are deleted concurrently; at least one.
	Workers int
}

// DeleteCollection deletes the selected objects. It returns the list of them from before, which the caller must
// close. It is not atomic: after an error, some of the objects are deleted.
func (r *Registry) DeleteCollection(ctx context.Context, t Target, options DeleteCollectionOptions) (*List, error) {
	options.List.deletion = true
	page, err := r.List(ctx, t, options.List)
	if err != nil {
		return nil, err
	}
	options.Write.Collection = true
	entries := make(chan *watchcache.Entry)
	failures := make([]error, max(options.Workers, 1))
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var workers sync.WaitGroup
	for worker := range failures {
		workers.Go(func() {
			for entry := range entries {
				if failures[worker] = r.deleteEntry(ctx, t, entry, options); failures[worker] != nil {
					cancel()
					return
				}
			}
		})
	}
	feed(ctx, entries, page.Entries)
	workers.Wait()
	if err := errors.Join(failures...); err != nil {
		page.Close()
		return nil, err
	}
	return page, nil
}

// feed sends entries to the workers until all are sent or ctx ends, and closes the channel.
func feed(ctx context.Context, to chan<- *watchcache.Entry, entries []*watchcache.Entry) {
	defer close(to)
	for _, entry := range entries {
		select {
		case to <- entry:
		case <-ctx.Done():
			return
		}
	}
}

func (r *Registry) deleteEntry(
	ctx context.Context, t Target, entry *watchcache.Entry, options DeleteCollectionOptions,
) error {
	object := t.named(entry.Name())
	object.Namespace = entry.Namespace()
	_, err := r.Delete(ctx, object, options.Delete, options.Write)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
