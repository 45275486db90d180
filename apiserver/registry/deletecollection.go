package registry

import (
	"cmp"
	"context"
	"errors"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
	"quorate.dev/panics"
)

// DeleteCollectionOptions are the options of DeleteCollection.
type DeleteCollectionOptions struct {
	List   ListOptions           // selects the objects to delete
	Delete *metav1.DeleteOptions // options of the deletion of each object; not nil, and not changed
	Write  WriteOptions
	// Workers is how many objects are deleted concurrently (--delete-collection-workers); less than one means one.
	Workers int
}

// DeleteCollection deletes the selected objects. It returns the list of these objects from before the deletion, which
// the caller must close. It is not atomic: after an error, some of the objects are deleted; objects that are created
// during the call are not. Each deletion is admitted with its object but without its name (Attributes.Name).
//
// kube-apiserver's Store.DeleteCollection lists page after page; here the list usually is one snapshot of the watch
// cache. The first error of a worker ends the context of all deletions. A panic of a worker is passed to the caller.
func (r *Registry) DeleteCollection(
	ctx context.Context, t resource.Target, options DeleteCollectionOptions,
) (*List, error) {
	options.List.deletion = true
	page, err := r.List(ctx, t, options.List)
	if err != nil {
		return nil, err
	}
	if err := r.convertDeleted(ctx, t, page); err != nil {
		page.Close()
		return nil, err
	}
	options.Write.Collection = true
	entries := make(chan *watchcache.Entry)
	failures := make([]error, max(options.Workers, 1))
	running, cancel := context.WithCancel(ctx)
	defer cancel()
	var workers panics.Group
	for worker := range failures {
		workers.Start(func() {
			completed := false
			defer func() {
				if !completed { // an error or a panic
					cancel()
				}
			}()
			for entry := range entries {
				if failures[worker] = r.deleteEntry(running, t, entry, options); failures[worker] != nil {
					return
				}
			}
			completed = true
		})
	}
	fed := feed(running, entries, page.Entries)
	workers.Wait()
	if err := errors.Join(failures...); err != nil || !fed {
		page.Close()
		return nil, cmp.Or(err, status(ctx.Err(), t))
	}
	return page, nil
}

// convertDeleted converts the objects of a page if a webhook has to, and returns the error that names all objects
// that it cannot convert. As in kube-apiserver, whose list fails then, none of the others is deleted.
func (r *Registry) convertDeleted(ctx context.Context, t resource.Target, page *List) error {
	if !r.deletesUnreadable || !t.ConvertsRemotely {
		return nil
	}
	_, err := watchcache.Convert(ctx, t.Match, page.Entries)
	return r.ListError(ctx, t, page, err)
}

// feed sends entries to the workers until all are sent or ctx ends, and closes the channel. It reports whether all are
// sent.
func feed(ctx context.Context, to chan<- *watchcache.Entry, entries []*watchcache.Entry) bool {
	defer close(to)
	for _, entry := range entries {
		select {
		case to <- entry:
		case <-ctx.Done():
			return false
		}
	}
	return true
}

// deleteEntry deletes the object of an entry, at whatever revision it is now. An object that no longer exists is no
// error.
func (r *Registry) deleteEntry(
	ctx context.Context, t resource.Target, entry *watchcache.Entry, options DeleteCollectionOptions,
) error {
	object := t.Named(entry.Name())
	object.Namespace = entry.Namespace()
	_, err := r.Delete(ctx, object, options.Delete, options.Write)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
