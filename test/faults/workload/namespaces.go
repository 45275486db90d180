package workload

import (
	"context"
	"fmt"

	core "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
)

// namespaces creates namespaces with objects, deletes the namespaces, and tries to create more objects during the
// deletion. The check requires that a namespace exists while any object in it has a finalizer, and that no object
// remains in it after it is deleted.
type namespaces struct {
	crew
	all []*space
}

// space is a namespace. Like a pod with a finalizer, it goes through the stages created, deleted and gone.
type space struct {
	stage
	name string
	held bool // an object in the namespace has a finalizer that no client has tried to remove
}

const namespaceClients = 2

func (w *namespaces) Start(ctx context.Context) error {
	for id := range namespaceClients {
		generation := 0
		w.work(ctx, id, func(ctx context.Context, c *client) {
			generation++
			w.live(ctx, c, fmt.Sprintf("deleted-%d-%d", id, generation))
		})
	}
	w.work(ctx, namespaceClients, func(ctx context.Context, c *client) {
		if s := w.choose(c); s != nil {
			_ = w.read(ctx, c.any(), s) // Check reads the final state, so an error here is ignored
		}
	})
	return nil
}

// live creates a namespace with objects, deletes it, and removes the finalizer of its object. It stops if the namespace
// is not created.
func (w *namespaces) live(ctx context.Context, c *client, name string) {
	_, err := request(ctx, func(ctx context.Context) (*core.Namespace, error) {
		return c.any().CoreV1().Namespaces().Create(ctx, &core.Namespace{ObjectMeta: meta.ObjectMeta{Name: name}},
			meta.CreateOptions{})
	})
	if err != nil {
		return
	}
	s := &space{name: name, stage: stage{created, created}}
	s.held = w.fill(ctx, c, name, "held", finalizer)
	w.mu.Lock()
	w.all = append(w.all, s)
	w.mu.Unlock()
	w.fill(ctx, c, name, "free")
	w.delete(ctx, c, s)
	w.fill(ctx, c, name, "late")
	_ = c.pause(ctx)
	w.release(ctx, c, s)
}

// fill tries to create an object, and reports whether the creation was acknowledged.
func (w *namespaces) fill(ctx context.Context, c *client, namespace, name string, finalizers ...string) bool {
	object := &core.ConfigMap{ObjectMeta: meta.ObjectMeta{Name: name, Finalizers: finalizers}}
	_, err := request(ctx, func(ctx context.Context) (*core.ConfigMap, error) {
		return c.any().CoreV1().ConfigMaps(namespace).Create(ctx, object, meta.CreateOptions{})
	})
	return err == nil
}

func (w *namespaces) delete(ctx context.Context, c *client, s *space) {
	w.mu.Lock()
	s.tried = deleted
	if !s.held {
		s.tried = gone
	}
	w.mu.Unlock()
	_, err := request(ctx, func(ctx context.Context) (any, error) {
		return nil, c.any().CoreV1().Namespaces().Delete(ctx, s.name, meta.DeleteOptions{})
	})
	if err != nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	s.known = max(s.known, deleted)
}

// release removes the finalizer. From then on, the namespace may be gone.
func (w *namespaces) release(ctx context.Context, c *client, s *space) {
	w.mu.Lock()
	if s.tried == deleted {
		s.tried = gone
	}
	w.mu.Unlock()
	_, _ = request(ctx, func(ctx context.Context) (any, error) { // Check retries
		return nil, removeFinalizer(ctx, c.any(), s.name)
	})
}

func removeFinalizer(ctx context.Context, server kubernetes.Interface, namespace string) error {
	_, err := server.CoreV1().ConfigMaps(namespace).Patch(ctx, "held", types.MergePatchType,
		[]byte(`{"metadata":{"finalizers":null}}`), meta.PatchOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// choose returns a random namespace among the newest, or nil without namespaces.
func (w *namespaces) choose(c *client) *space {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.all) == 0 {
		return nil
	}
	return w.all[len(w.all)-1-c.random.IntN(min(len(w.all), 4*namespaceClients))]
}

// read reads a namespace and records a fault if its stage is impossible.
func (w *namespaces) read(ctx context.Context, server kubernetes.Interface, s *space) error {
	w.mu.Lock()
	atLeast := s.begin()
	w.mu.Unlock()
	object, err := request(ctx, func(ctx context.Context) (*core.Namespace, error) {
		return server.CoreV1().Namespaces().Get(ctx, s.name, meta.GetOptions{})
	})
	got := gone
	switch {
	case err == nil && object.DeletionTimestamp == nil:
		got = created
	case err == nil:
		got = deleted
	case !apierrors.IsNotFound(err):
		return err
	}
	w.mu.Lock()
	err = s.end(atLeast, got)
	w.mu.Unlock()
	if err != nil {
		err = fmt.Errorf("namespaces: %s %w", s.name, err)
	}
	w.observe(err)
	return nil
}

// Check removes the remaining finalizers, waits until all deleted namespaces are gone, and returns a fault for each
// object that remains in them.
func (w *namespaces) Check(ctx context.Context) []error {
	terminating := map[string]bool{}
	for _, s := range w.all {
		if s.known < deleted {
			continue
		}
		terminating[s.name] = true
		s.tried = gone
		if err := eventually(
			ctx, func(ctx context.Context) error { return removeFinalizer(ctx, w.clients[0], s.name) },
		); err != nil {
			return append(w.found(), fmt.Errorf("namespaces: remove the finalizer in %s: %w", s.name, err))
		}
	}
	failures := w.everyServer(ctx, func(ctx context.Context, server kubernetes.Interface) error {
		return left(ctx, server, terminating)
	})
	failures = append(failures, w.everyServer(ctx, func(ctx context.Context, server kubernetes.Interface) error {
		objects, err := server.CoreV1().ConfigMaps(meta.NamespaceAll).List(ctx, meta.ListOptions{})
		if err != nil {
			return err
		}
		for _, object := range objects.Items {
			if terminating[object.Namespace] {
				w.observe(fmt.Errorf("namespaces: %s is gone, and its object %s is not", object.Namespace, object.Name))
			}
		}
		return nil
	})...)
	return append(w.found(), failures...)
}

// left returns an error if any of the namespaces in names exists.
func left(ctx context.Context, server kubernetes.Interface, names map[string]bool) error {
	list, err := server.CoreV1().Namespaces().List(ctx, meta.ListOptions{})
	if err != nil {
		return err
	}
	for _, namespace := range list.Items {
		if names[namespace.Name] {
			return fmt.Errorf("namespaces: the deleted namespace %s still exists: %v", namespace.Name,
				namespace.Status.Conditions)
		}
	}
	return nil
}
