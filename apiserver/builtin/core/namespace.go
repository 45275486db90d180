package core

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/registry/rest"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/clock"
)

// namespaceDeletion keeps a namespace until its content is deleted. It implements resource.Terminator.
type namespaceDeletion struct {
	rest.RESTDeleteStrategy
	clock clock.PassiveClock
}

// PreconditionFailed implements resource.Terminator.
func (namespaceDeletion) PreconditionFailed() string { return "Precondition failed" }

// Terminate implements resource.Terminator. Pending are the finalizers in spec.finalizers.
func (d namespaceDeletion) Terminate(object runtime.Object, options *metav1.DeleteOptions) (pending bool) {
	namespace := object.(*api.Namespace)
	if namespace.DeletionTimestamp.IsZero() {
		now := metav1.NewTime(d.clock.Now())
		namespace.DeletionTimestamp = &now
		namespace.Status.Phase = api.NamespaceTerminating
		namespace.Finalizers = collectionFinalizers(namespace.Finalizers, options)
	}
	return len(namespace.Spec.Finalizers) > 0
}

// collectionFinalizers returns finalizers with the garbage collector's finalizers for the requested propagation policy.
func collectionFinalizers(finalizers []string, options *metav1.DeleteOptions) []string {
	var orphan, foreground bool
	switch {
	case options == nil:
		return finalizers
	case options.OrphanDependents != nil: // old clients still send it
		orphan, foreground = *options.OrphanDependents, !*options.OrphanDependents
	case options.PropagationPolicy != nil:
		orphan = *options.PropagationPolicy == metav1.DeletePropagationOrphan
		foreground = *options.PropagationPolicy == metav1.DeletePropagationForeground
	default:
		return finalizers
	}
	finalizers = withFinalizer(finalizers, metav1.FinalizerOrphanDependents, orphan)
	return withFinalizer(finalizers, metav1.FinalizerDeleteDependents, foreground)
}

// withFinalizer returns finalizers with or without one finalizer. It does not change its argument.
func withFinalizer(finalizers []string, finalizer string, wanted bool) []string {
	if slices.Contains(finalizers, finalizer) == wanted {
		return finalizers
	}
	if wanted {
		return append(slices.Clone(finalizers), finalizer)
	}
	return slices.DeleteFunc(slices.Clone(finalizers), func(f string) bool { return f == finalizer })
}
