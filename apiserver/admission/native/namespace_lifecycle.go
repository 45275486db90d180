// Package native has the admission plugins and reservers that are implemented in this project. Package plugins creates
// all other plugins, which are upstream's. A native plugin either replaces a plugin of upstream (NamespaceLifecycle),
// or does at admission time what kube-apiserver's storage does for a kind (EscalationCheck, ServiceAddresses,
// CertificateRequests).
package native

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	corelisters "k8s.io/client-go/listers/core/v1"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/resource"
)

var namespaces = schema.GroupResource{Resource: "namespaces"}

// NamespaceLifecycle rejects creates in namespaces that do not exist or are terminating, and deletions of protected
// namespaces. If its cache lacks a namespace, it reads the namespace from storage immediately; upstream's
// plugin first waits for the cache to observe it.
type NamespaceLifecycle struct {
	Namespaces corelisters.NamespaceLister
	// Get reads the stored namespace. The client sees its errors.
	Get func(ctx context.Context, name string) (metav1.Object, error)
	// Remote is set if another cluster stores the namespaces.
	Remote bool
	Clock  clock.PassiveClock

	mu sync.Mutex
	// staleUntil has the namespaces deleted through this server. Until the given time the cache may lag and list them
	// as active, so that find reads storage.
	staleUntil map[string]time.Time
}

// protected namespaces cannot be deleted.
var protected = map[string]bool{
	metav1.NamespaceDefault: true, metav1.NamespaceSystem: true, metav1.NamespacePublic: true,
}

// staleTime bounds how long the cache may lag behind the deletion of a namespace.
const staleTime = 30 * time.Second

// Plugin returns the entry for the order of admission.
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
	case isNamespace, a.Namespace == "", a.Operation != admission.Create, isAccessReview(a.Definition):
		return nil
	}
	return l.admit(ctx, a)
}

// isAccessReview reports whether a resource is a LocalSubjectAccessReview, whose namespace need not exist.
func isAccessReview(d *resource.Definition) bool {
	return d.Group == "authorization.k8s.io" && d.Plural == "localsubjectaccessreviews"
}

func (l *NamespaceLifecycle) admit(ctx context.Context, a *admission.Attributes) error {
	namespace, active, err := l.find(ctx, a.Namespace)
	switch {
	case err != nil:
		return err
	case !active:
		return admission.NewNamespaceTerminatingError(a)
	case !l.Remote:
		a.NamespaceRevision, err = strconv.ParseInt(namespace.GetResourceVersion(), 10, 64)
	}
	return err
}

// find returns a namespace, and reports whether it is active, that is, not terminating. It returns an error if the
// namespace does not exist.
func (l *NamespaceLifecycle) find(ctx context.Context, name string) (namespace metav1.Object, active bool, err error) {
	cached, err := l.Namespaces.Get(name)
	if err == nil && (cached.Status.Phase == corev1.NamespaceTerminating || !l.isStale(name)) {
		return cached, cached.Status.Phase != corev1.NamespaceTerminating, nil
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, false, apierrors.NewInternalError(err)
	}
	// The cache may lag behind the creation or deletion of the namespace.
	stored, err := l.Get(ctx, name)
	if err != nil {
		return nil, false, err
	}
	return stored, stored.GetDeletionTimestamp() == nil, nil
}

// StoredNamespace returns a Get that reads this server's own namespaces.
func StoredNamespace(objects resource.Client) func(context.Context, string) (metav1.Object, error) {
	return func(ctx context.Context, name string) (metav1.Object, error) {
		stored, err := objects.Get(ctx, resource.Key{GroupResource: namespaces, Name: name}, resource.ReadOptions{})
		if err != nil {
			return nil, err
		}
		return meta.Accessor(stored)
	}
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
