package strategy

import (
	"context"
	"slices"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
)

// CollectionFinalizers returns the finalizers that an object has after a deletion with a propagation policy: the
// finalizers "orphan" and "foregroundDeletion" are added or removed as the policy requires, all others stay. It mirrors
// kube-apiserver's deletionFinalizersForGarbageCollection.
func CollectionFinalizers(
	ctx context.Context, strategy rest.RESTDeleteStrategy, finalizers []string, options *metav1.DeleteOptions,
) []string {
	policy := propagation(ctx, strategy, finalizers, options)
	has := func(finalizer string) bool { return slices.Contains(finalizers, finalizer) }
	orphan, foreground := policy == metav1.DeletePropagationOrphan, policy == metav1.DeletePropagationForeground
	if has(metav1.FinalizerOrphanDependents) == orphan && has(metav1.FinalizerDeleteDependents) == foreground {
		return finalizers
	}
	kept := make([]string, 0, len(finalizers)+1)
	for _, finalizer := range finalizers {
		if finalizer != metav1.FinalizerOrphanDependents && finalizer != metav1.FinalizerDeleteDependents {
			kept = append(kept, finalizer)
		}
	}
	if orphan {
		kept = append(kept, metav1.FinalizerOrphanDependents)
	}
	if foreground {
		kept = append(kept, metav1.FinalizerDeleteDependents)
	}
	return kept
}

// propagation returns the policy of the client's options or, without one, the policy that the existing finalizers stand
// for or, without them, the default of the kind. It combines kube-apiserver's shouldOrphanDependents and
// shouldDeleteDependents, which are never both true. OrphanDependents is the former name of two of the policies.
func propagation(
	ctx context.Context, strategy rest.RESTDeleteStrategy, finalizers []string, options *metav1.DeleteOptions,
) metav1.DeletionPropagation {
	byDefault := rest.DeleteDependents
	if s, ok := strategy.(rest.GarbageCollectionDeleteStrategy); ok {
		byDefault = s.DefaultGarbageCollectionPolicy(ctx)
	}
	switch {
	case byDefault == rest.Unsupported:
		return metav1.DeletePropagationBackground
	case options.OrphanDependents != nil && *options.OrphanDependents: // old clients still send it
		return metav1.DeletePropagationOrphan
	case options.OrphanDependents != nil:
		return metav1.DeletePropagationBackground
	case options.PropagationPolicy != nil:
		return *options.PropagationPolicy
	}
	for _, finalizer := range finalizers {
		switch finalizer {
		case metav1.FinalizerOrphanDependents:
			return metav1.DeletePropagationOrphan
		case metav1.FinalizerDeleteDependents:
			return metav1.DeletePropagationForeground
		}
	}
	if byDefault == rest.OrphanDependents {
		return metav1.DeletePropagationOrphan
	}
	return metav1.DeletePropagationBackground
}

// MarkDeleting sets the deletion timestamp of an object of a kind without grace periods, and a grace period of zero.
// The first deletion increments the generation; a timestamp in the future becomes now. It mirrors kube-apiserver's
// markAsDeleting.
func MarkDeleting(object metav1.Object, now metav1.Time) {
	if object.GetDeletionTimestamp() == nil && object.GetGeneration() > 0 {
		object.SetGeneration(object.GetGeneration() + 1)
	}
	if timestamp := object.GetDeletionTimestamp(); timestamp == nil || timestamp.After(now.Time) {
		object.SetDeletionTimestamp(&now)
	}
	zero := int64(0)
	object.SetDeletionGracePeriodSeconds(&zero)
}

// DeletionComplete reports whether an update removed the last finalizer of an object that is being deleted, so that the
// object is removed instead of stored. It mirrors ShouldDeleteDuringUpdate of kube-apiserver's generic registry.
func DeletionComplete(object, old runtime.Object) bool {
	after, err := meta.Accessor(object)
	if err != nil {
		return false
	}
	before, err := meta.Accessor(old)
	if err != nil || len(after.GetFinalizers()) > 0 || after.GetDeletionTimestamp() == nil {
		return false
	}
	// A running grace period ends with a second DELETE, by the kubelet for instance.
	return before.GetDeletionGracePeriodSeconds() == nil || *before.GetDeletionGracePeriodSeconds() == 0
}
