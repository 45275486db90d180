// Package native is the first admission station: those of this server's own who change or refuse a write before it
// is validated. Upstream's plugins stand beside them (admission.Upstream).
package native

import (
	"context"
	"fmt"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	upstream "k8s.io/apiserver/pkg/admission"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/resource"
)

var namespaces = schema.GroupResource{Resource: "namespaces"}

// NamespaceLifecycle refuses to write objects in namespaces that do not exist, to create them in namespaces that are
// on their way out, and to delete the namespaces the system needs. It is upstream's plugin without its pause for
// namespaces that the cache has not seen yet: storage is asked at once.
type NamespaceLifecycle struct {
	Namespaces corelisters.NamespaceLister
	Objects    resource.Client
	Clock      clock.PassiveClock

	mu         sync.Mutex
	staleUntil map[string]time.Time // names of namespaces that were deleted through this server, until when to distrust the cache
}

var protected = map[string]bool{metav1.NamespaceDefault: true, metav1.NamespaceSystem: true, metav1.NamespacePublic: true}

// distrust is how long the cache is not believed that a deleted namespace is active.
const staleTime = 30 * time.Second

// Plugin is the place in the order of admission.
func (l *NamespaceLifecycle) Plugin() admission.Plugin {
	return admission.Plugin{
		Name:       "NamespaceLifecycle",
		Operations: []admission.Operation{admission.Create, admission.Update, admission.Delete},
		Mutator:    l,
		Internal:   true,
	}
}

// Admit implements admission.Mutator.
func (l *NamespaceLifecycle) Admit(ctx context.Context, a *admission.Attributes) error {
	isNamespace := a.Kind.Group == "" && a.Kind.Kind == "Namespace"
	switch {
	case a.Operation == admission.Delete && isNamespace && protected[a.Name]:
		return apierrors.NewForbidden(a.Definition.GroupResource(), a.Name, fmt.Errorf("this namespace may not be deleted"))
	case a.Operation == admission.Delete && isNamespace:
		l.markStale(a.Name)
		return nil
	case isNamespace, a.Namespace == "", a.Operation == admission.Delete, isAccessReview(a.Definition):
		return nil
	case a.Internal && a.Operation == admission.Update:
		return nil
	}
	return l.admit(ctx, a)
}

// isAccessReview exempts questions about namespaces that need not exist.
func isAccessReview(d *resource.Definition) bool {
	return d.Group == "authorization.k8s.io" && d.Plural == "localsubjectaccessreviews"
}

func (l *NamespaceLifecycle) admit(ctx context.Context, a *admission.Attributes) error {
	active, err := l.active(ctx, a.Namespace)
	if err != nil {
		return err
	}
	if active || a.Operation != admission.Create {
		return nil
	}
	return terminating(a)
}

// active reports whether a namespace is there to stay. One that does not exist is an error.
func (l *NamespaceLifecycle) active(ctx context.Context, name string) (bool, error) {
	namespace, err := l.Namespaces.Get(name)
	if err == nil && (namespace.Status.Phase == corev1.NamespaceTerminating || !l.isStale(name)) {
		return namespace.Status.Phase != corev1.NamespaceTerminating, nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return false, apierrors.NewInternalError(err)
	}
	// The cache may not have seen its creation or deletion yet.
	stored, err := l.Objects.Get(ctx, resource.Key{GroupResource: namespaces, Name: name}, resource.ReadOptions{})
	if err != nil {
		return false, err
	}
	accessor, err := meta.Accessor(stored)
	if err != nil {
		return false, apierrors.NewInternalError(err)
	}
	return accessor.GetDeletionTimestamp() == nil, nil
}

func (l *NamespaceLifecycle) markStale(name string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.Clock.Now()
	for known, until := range l.staleUntil {
		if now.After(until) {
			delete(l.staleUntil, known)
		}
	}
	if l.staleUntil == nil {
		l.staleUntil = map[string]time.Time{}
	}
	l.staleUntil[name] = now.Add(staleTime)
}

func (l *NamespaceLifecycle) isStale(name string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	until, ok := l.staleUntil[name]
	return ok && l.Clock.Now().Before(until)
}

// terminating is the refusal, with the cause that clients look for.
func terminating(a *admission.Attributes) error {
	err := upstream.NewForbidden(a, fmt.Errorf(
		"unable to create new content in namespace %s because it is being terminated", a.Namespace))
	if refusal, ok := err.(*apierrors.StatusError); ok {
		refusal.ErrStatus.Details.Causes = append(refusal.ErrStatus.Details.Causes, metav1.StatusCause{
			Type:    corev1.NamespaceTerminatingCause,
			Message: fmt.Sprintf("namespace %s is being terminated", a.Namespace),
			Field:   "metadata.namespace",
		})
	}
	return err
}
