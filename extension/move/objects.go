package move

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

const (
	// pageSize is the number of objects in one page of a list.
	pageSize = 500
	// writers bounds the number of concurrent writes.
	writers = 16
	// reportInterval is the number of copied objects between two reports of progress.
	reportInterval = 1000
)

// collection accesses the objects of a resource in one cluster.
type collection struct {
	client   dynamic.Interface
	resource schema.GroupVersionResource
	scoped   bool // namespaced
}

func (c collection) in(namespace string) dynamic.ResourceInterface {
	if c.scoped {
		return c.client.Resource(c.resource).Namespace(namespace)
	}
	return c.client.Resource(c.resource)
}

// each calls do for all objects of a list at one revision, and returns the revision. If the list expires, each returns
// the error, because do has already been called for a part of the objects.
func (c collection) each(ctx context.Context, do func(*unstructured.Unstructured) error) (revision string, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := c.client.Resource(c.resource).List(ctx, options)
		if err != nil {
			return "", fmt.Errorf("list %s: %w", c.resource, err)
		}
		for i := range page.Items {
			if err := do(&page.Items[i]); err != nil {
				return "", err
			}
		}
		if options.Continue = page.GetContinue(); options.Continue == "" {
			return page.GetResourceVersion(), nil
		}
	}
}

// digests returns the digests of all objects by their keys.
func (c collection) digests(ctx context.Context, direction Direction) (map[string]digest, error) {
	found := map[string]digest{}
	_, err := c.each(ctx, func(object *unstructured.Unstructured) error {
		d, err := digestOf(direction, object)
		found[key(object)] = d
		return err
	})
	return found, err
}

// source returns the collection from which the objects of a resource are copied, as long as it serves clients.
func (m *Mover) source(direction Direction, r resource) collection {
	if direction == ToExtension {
		return collection{m.host.objects, r.in(r.Version), r.Namespaced}
	}
	return m.inExtension(r)
}

// destination returns the collection with the copies of a resource's objects.
func (m *Mover) destination(direction Direction, r resource) collection {
	if direction == ToExtension {
		return m.inExtension(r)
	}
	return m.inHost(r)
}

func (m *Mover) inExtension(r resource) collection {
	return collection{m.extension.transfer, r.in(r.Version), r.Namespaced}
}

// inHost returns the collection in the host's etcd, independent of which server the APIServices refer to.
func (m *Mover) inHost(r resource) collection {
	return collection{m.host.objects, r.in(accessVersion), r.Namespaced}
}

// changes counts the objects that a pass over a resource has read, written and deleted.
type changes struct {
	objects, written, deleted atomic.Int64
}

// copyOnce makes the destination equal to one state of the source, and returns the resourceVersion of that state.
func (m *Mover) copyOnce(
	ctx context.Context, direction Direction, r resource, did *changes,
) (revision string, err error) {
	copies, err := m.destination(direction, r).digests(ctx, direction)
	if err != nil {
		return "", err
	}
	group, writing := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	revision, err = m.source(direction, r).each(writing, func(object *unstructured.Unstructured) error {
		if n := did.objects.Add(1); n%reportInterval == 0 {
			m.report("  %s: %d objects", r.definition(), n)
		}
		source, err := digestOf(direction, object)
		if err != nil {
			return err
		}
		name := key(object)
		copied, found := copies[name]
		delete(copies, name)
		equal := found && copied.content == source.content
		if equal && (source.managed || !copied.managed) {
			return nil
		}
		if !equal { // an equal copy lacks only the second write of writeToHost, because an earlier run ended before it
			did.written.Add(1)
		}
		group.Go(func() error {
			if err := m.write(writing, direction, r, object, copied); err != nil {
				return fmt.Errorf("copy %s %s: %w", r.definition(), name, err)
			}
			return nil
		})
		return nil
	})
	if err := errors.Join(group.Wait(), err); err != nil {
		return "", err
	}
	did.deleted.Add(int64(len(copies)))
	return revision, m.deleteCopies(ctx, direction, r, copies)
}

// write creates or replaces the copy of an object. copied is the digest of the current copy, or zero if there is none.
func (m *Mover) write(
	ctx context.Context, direction Direction, r resource, source *unstructured.Unstructured, copied digest,
) error {
	at := m.destination(direction, r).in(source.GetNamespace())
	if direction == ToHost {
		return m.writeToHost(ctx, at, source, copied)
	}
	if copied.uid != "" && copied.uid != source.GetUID() { // the object was deleted and created again
		if err := expunge(ctx, at, source.GetName(), copied); err != nil {
			return err
		}
	}
	imported := source.DeepCopy()
	imported.SetResourceVersion("")
	stored, err := at.Update(ctx, imported, metav1.UpdateOptions{})
	if err != nil {
		return err
	}
	if lost := differences(direction, source, stored); len(lost) > 0 {
		return fmt.Errorf("the extension server stores it differently: %s", strings.Join(lost, ", "))
	}
	return nil
}

// writeToHost creates or replaces the copy of an object in the host. A second write restores managedFields, as far as
// the host accepts the entries.
func (m *Mover) writeToHost(
	ctx context.Context, at dynamic.ResourceInterface, source *unstructured.Unstructured, copied digest,
) error {
	wanted := forHost(source, m.Group)
	var stored *unstructured.Unstructured
	var err error
	if copied.uid == "" {
		stored, err = at.Create(ctx, wanted, metav1.CreateOptions{FieldManager: manager})
	} else {
		wanted.SetUID(copied.uid)
		wanted.SetResourceVersion(copied.revision)
		stored, err = at.Update(ctx, wanted, metav1.UpdateOptions{FieldManager: manager})
	}
	if err != nil {
		return err
	}
	if lost := differences(ToHost, source, stored); len(lost) > 0 {
		return fmt.Errorf("admission of the host changes %s; exempt the user of the move", strings.Join(lost, ", "))
	}
	stored.SetManagedFields(source.GetManagedFields())
	if len(source.GetManagedFields()) == 0 {
		stored.SetManagedFields([]metav1.ManagedFieldsEntry{{}}) // removes all; without an entry the server keeps them
	}
	stored, err = at.Update(ctx, stored, metav1.UpdateOptions{FieldManager: manager})
	if err != nil || !isManaged(stored) {
		return err
	}
	// Since Kubernetes 1.37, a host that cannot use the managed fields in a write keeps the managed fields of the
	// stored object, here the entry of the move's first write. A list with one empty entry removes all managed fields.
	stored.SetManagedFields([]metav1.ManagedFieldsEntry{{}})
	_, err = at.Update(ctx, stored, metav1.UpdateOptions{FieldManager: manager})
	return err
}

// deleteCopies deletes objects of the destination that the source does not have.
func (m *Mover) deleteCopies(ctx context.Context, direction Direction, r resource, copies map[string]digest) error {
	return m.deleteEach(ctx, m.destination(direction, r), copies)
}

func (m *Mover) deleteEach(ctx context.Context, c collection, objects map[string]digest) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(writers)
	for name, d := range objects {
		group.Go(func() error { return m.deleteFrom(ctx, c, name, d) })
	}
	return group.Wait()
}

// deleteFrom deletes an object if it still has the UID and revision of the digest. Its finalizers do not delay the
// deletion.
func (m *Mover) deleteFrom(ctx context.Context, c collection, name string, d digest) error {
	namespace, plain, scoped := strings.Cut(name, "/")
	if !scoped {
		namespace, plain = "", name
	}
	remove := expunge
	if c.client == m.host.objects {
		remove = stripAndDelete
	}
	if err := remove(ctx, c.in(namespace), plain, d); err != nil {
		return fmt.Errorf("delete %s %s: %w", c.resource.GroupResource(), name, err)
	}
	return nil
}

// expunge deletes an object of the extension server, which deletes objects of a transfer regardless of finalizers.
func expunge(ctx context.Context, at dynamic.ResourceInterface, name string, d digest) error {
	return ignoreNotFound(at.Delete(ctx, name, metav1.DeleteOptions{
		Preconditions: &metav1.Preconditions{UID: &d.uid, ResourceVersion: &d.revision},
	}))
}

// stripAndDelete removes the finalizers of an object in the host's etcd, and deletes the object. An object that is
// already being deleted ends with its last finalizer.
func stripAndDelete(ctx context.Context, at dynamic.ResourceInterface, name string, d digest) error {
	patch := fmt.Sprintf(`{"metadata":{"resourceVersion":%q,"finalizers":null}}`, d.revision)
	stripped, err := at.Patch(ctx, name, types.MergePatchType, []byte(patch), metav1.PatchOptions{FieldManager: manager})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return err
	}
	if stripped.GetUID() != d.uid {
		return fmt.Errorf("its UID is %s instead of %s", stripped.GetUID(), d.uid)
	}
	if stripped.GetDeletionTimestamp() != nil {
		return nil
	}
	revision, background := stripped.GetResourceVersion(), metav1.DeletePropagationBackground
	return ignoreNotFound(at.Delete(ctx, name, metav1.DeleteOptions{
		Preconditions:     &metav1.Preconditions{UID: &d.uid, ResourceVersion: &revision},
		PropagationPolicy: &background,
	}))
}

// copyAll copies all objects once. Clients may change the objects during the copy; verifyAll copies such changes.
func (m *Mover) copyAll(ctx context.Context, s *state) error {
	for _, r := range s.Resources {
		did := &changes{}
		if _, err := m.copyOnce(ctx, s.Direction, r, did); err != nil {
			return err
		}
		m.report("  %s: %d objects, %d copied", r.definition(), did.objects.Load(), did.written.Load())
	}
	return nil
}

// maxPasses bounds the passes over a resource until source and copies are equal. Writes are blocked, so that normally
// the second pass finds no difference.
const maxPasses = 5

// verifyAll compares all objects and copies differences until there are none. It records the revisions of the source at
// which all objects were equal.
func (m *Mover) verifyAll(ctx context.Context, s *state) error {
	s.Verified = map[string]string{}
	for _, r := range s.Resources {
		equal := false
		for pass := 0; pass < maxPasses && !equal; pass++ {
			did := &changes{}
			revision, err := m.copyOnce(ctx, s.Direction, r, did)
			if err != nil {
				return err
			}
			if equal = did.written.Load()+did.deleted.Load() == 0; equal {
				s.Verified[r.Plural] = revision
				m.report("  %s: %d objects are equal", r.definition(), did.objects.Load())
			}
		}
		if !equal {
			return fmt.Errorf("%s: objects still change after %d passes", r.definition(), maxPasses)
		}
	}
	return m.save(ctx, s)
}

// errChanged reports that objects of the source have changed since the verification.
var errChanged = errors.New("objects have changed since they were verified")

// checkUnchanged returns errChanged if an object of the source is newer than the verified revision, or if source and
// copies do not have the same keys.
func (m *Mover) checkUnchanged(ctx context.Context, s *state) error {
	for _, r := range s.Resources {
		verified, err := strconv.ParseUint(s.Verified[r.Plural], 10, 64)
		if err != nil {
			return fmt.Errorf("the state has no verified revision of %s: %w", r.definition(), err)
		}
		copies, err := m.destination(s.Direction, r).digests(ctx, s.Direction)
		if err != nil {
			return err
		}
		_, err = m.hidden(s.Direction, r).each(ctx, func(object *unstructured.Unstructured) error {
			revision, err := strconv.ParseUint(object.GetResourceVersion(), 10, 64)
			if err != nil {
				return err
			}
			_, found := copies[key(object)]
			delete(copies, key(object))
			if revision > verified || !found {
				return fmt.Errorf("%s %s: %w", r.definition(), key(object), errChanged)
			}
			return nil
		})
		if err != nil {
			return err
		}
		for name := range copies {
			return fmt.Errorf("%s %s was deleted: %w", r.definition(), name, errChanged)
		}
	}
	return nil
}

// hidden returns the source of a move for the time in which the group does not serve it to clients.
func (m *Mover) hidden(direction Direction, r resource) collection {
	if direction == ToExtension {
		return m.inHost(r)
	}
	return m.inExtension(r)
}

// deleteSource deletes all objects of the source. Since the verification, only the move can write the objects.
func (m *Mover) deleteSource(ctx context.Context, s *state) error {
	for _, r := range s.Resources {
		objects := m.hidden(s.Direction, r)
		left, err := objects.digests(ctx, s.Direction)
		if apierrors.IsNotFound(err) { // the definition is already deleted
			continue
		}
		if err != nil {
			return err
		}
		if err := m.deleteEach(ctx, objects, left); err != nil {
			return err
		}
		m.report("  %s: %d objects deleted from the %s", r.definition(), len(left), s.sourceName())
	}
	return nil
}

func (s *state) sourceName() string {
	if s.Direction == ToExtension {
		return "host"
	}
	return "extension server"
}
