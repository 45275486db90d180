package move

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/metadata"
)

// uidsOf returns the UIDs of the copies by the UIDs of their sources.
func (m *Mover) uidsOf(ctx context.Context, s *state) (map[types.UID]types.UID, error) {
	uids := map[types.UID]types.UID{}
	for _, r := range s.Resources {
		copies, err := m.destination(s.Direction, r).digests(ctx, s.Direction)
		if err != nil {
			return nil, err
		}
		_, err = m.hidden(s.Direction, r).each(ctx, func(object *unstructured.Unstructured) error {
			if copied, found := copies[key(object)]; found {
				uids[object.GetUID()] = copied.uid
			}
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return uids, nil
}

// rewriteOwners replaces the UIDs of the sources by the UIDs of their copies in the owner references of all objects of
// the host. The garbage collector would delete a dependent whose owner has another UID, but cannot read the owners
// while the group responds with 503.
func (m *Mover) rewriteOwners(ctx context.Context, s *state) error {
	uids, err := m.uidsOf(ctx, s)
	if err != nil {
		return err
	}
	kinds, err := m.dependentKinds(s)
	if err != nil {
		return err
	}
	changed := 0
	for _, kind := range kinds {
		n, err := m.rewriteOwnersOf(ctx, kind, uids)
		if err != nil {
			return fmt.Errorf("rewrite owner references in %s: %w", kind.GroupResource(), err)
		}
		changed += n
	}
	m.report("  %d objects have new owner references", changed)
	return nil
}

// dependentKinds returns all resources of the host whose objects can have owners: those that can be listed and patched,
// and the copies in accessVersion.
func (m *Mover) dependentKinds(s *state) ([]schema.GroupVersionResource, error) {
	lists, err := m.host.typed.Discovery().ServerPreferredResources()
	if err != nil { // a resource that is not discovered could have dependents
		return nil, fmt.Errorf("discover the resources of the host: %w", err)
	}
	var kinds []schema.GroupVersionResource
	for _, list := range lists {
		version, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			return nil, err
		}
		for i := range list.APIResources {
			one := &list.APIResources[i]
			verbs := []string(one.Verbs)
			if version.Group != m.Group && !strings.Contains(one.Name, "/") &&
				slices.Contains(verbs, "list") && slices.Contains(verbs, "patch") {
				kinds = append(kinds, version.WithResource(one.Name))
			}
		}
	}
	for _, r := range s.Resources {
		kinds = append(kinds, r.in(accessVersion))
	}
	return kinds, nil
}

func (m *Mover) rewriteOwnersOf(
	ctx context.Context, kind schema.GroupVersionResource, uids map[types.UID]types.UID,
) (changed int, err error) {
	options := metav1.ListOptions{Limit: pageSize}
	for {
		page, err := m.host.metadata.Resource(kind).List(ctx, options)
		if apierrors.IsNotFound(err) || apierrors.IsMethodNotSupported(err) {
			return changed, nil
		}
		if err != nil {
			return changed, err
		}
		for i := range page.Items {
			if !refersTo(page.Items[i].OwnerReferences, uids) {
				continue
			}
			if err := m.rewriteOwner(ctx, kind, &page.Items[i], uids); err != nil {
				return changed, err
			}
			changed++
		}
		if options.Continue = page.Continue; options.Continue == "" {
			return changed, nil
		}
	}
}

func refersTo(references []metav1.OwnerReference, uids map[types.UID]types.UID) bool {
	return slices.ContainsFunc(references, func(reference metav1.OwnerReference) bool {
		_, found := uids[reference.UID]
		return found
	})
}

// rewritten returns a copy of owner references with the UIDs of the copies.
func rewritten(references []metav1.OwnerReference, uids map[types.UID]types.UID) []metav1.OwnerReference {
	next := slices.Clone(references)
	for i := range next {
		if uid, found := uids[next[i].UID]; found {
			next[i].UID = uid
		}
	}
	return next
}

// rewriteOwner patches the owner references of one dependent. It retries conflicts.
func (m *Mover) rewriteOwner(
	ctx context.Context, kind schema.GroupVersionResource, object *metav1.PartialObjectMetadata,
	uids map[types.UID]types.UID,
) error {
	at := metadata.ResourceInterface(m.host.metadata.Resource(kind))
	if object.Namespace != "" {
		at = m.host.metadata.Resource(kind).Namespace(object.Namespace)
	}
	for refersTo(object.OwnerReferences, uids) {
		patch, err := json.Marshal(map[string]any{"metadata": map[string]any{
			"resourceVersion": object.ResourceVersion, "ownerReferences": rewritten(object.OwnerReferences, uids),
		}})
		if err != nil {
			return err
		}
		_, err = at.Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: manager})
		if err == nil || apierrors.IsNotFound(err) {
			return nil
		}
		if !apierrors.IsConflict(err) {
			return fmt.Errorf("%s/%s: %w", object.Namespace, object.Name, err)
		}
		if object, err = at.Get(ctx, object.Name, metav1.GetOptions{}); err != nil {
			return ignoreNotFound(err)
		}
	}
	return nil
}

// deleteAsBefore deletes the copies of objects that are being deleted in the extension server, so that the copies are
// being deleted, too. The finalizers of the objects keep the copies.
func (m *Mover) deleteAsBefore(ctx context.Context, s *state) error {
	for _, r := range s.Resources {
		copies := m.destination(s.Direction, r)
		_, err := m.hidden(s.Direction, r).each(ctx, func(object *unstructured.Unstructured) error {
			if object.GetDeletionTimestamp() == nil {
				return nil
			}
			policy := propagation(object.GetFinalizers())
			err := copies.in(object.GetNamespace()).Delete(ctx, object.GetName(),
				metav1.DeleteOptions{PropagationPolicy: &policy})
			return ignoreNotFound(err)
		})
		if err != nil {
			return errors.Join(fmt.Errorf("delete copies of %s that are being deleted", r.definition()), err)
		}
	}
	return nil
}

// propagation returns the propagation policy that gave an object its finalizers.
func propagation(finalizers []string) metav1.DeletionPropagation {
	switch {
	case slices.Contains(finalizers, metav1.FinalizerOrphanDependents):
		return metav1.DeletePropagationOrphan
	case slices.Contains(finalizers, metav1.FinalizerDeleteDependents):
		return metav1.DeletePropagationForeground
	}
	return metav1.DeletePropagationBackground
}
