package registry

import (
	"context"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/registry/rest"
)

// collectionFinalizers returns an object's finalizers with those of the garbage collector set according to the
// propagation policy. It mirrors kube-apiserver's deletionFinalizersForGarbageCollection.
func collectionFinalizers(
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

// propagation returns the policy of the client's options, else that of the existing finalizers, else the kind's
// default.
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
	case options.OrphanDependents != nil && *options.OrphanDependents: //nolint:staticcheck // still sent by old clients
		return metav1.DeletePropagationOrphan
	case options.OrphanDependents != nil: //nolint:staticcheck // still sent by old clients
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
