// Package mutating is the first admission station: those who change or refuse a write before it is validated.
package mutating

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/resource"
)

var namespaces = schema.GroupResource{Resource: "namespaces"}

// NamespaceLifecycle refuses to create objects in namespaces that do not exist or are on their way out, and to
// delete the namespaces the system needs.
type NamespaceLifecycle struct {
	Objects resource.Objects
}

var immortal = map[string]bool{metav1.NamespaceDefault: true, metav1.NamespaceSystem: true, metav1.NamespacePublic: true}

// Admit implements admission.Mutator.
func (l NamespaceLifecycle) Admit(ctx context.Context, a *admission.Attributes) error {
	isNamespace := a.Definition.GroupResource() == namespaces
	switch {
	case a.Operation == admission.Delete && isNamespace && immortal[a.Name]:
		return apierrors.NewForbidden(namespaces, a.Name, fmt.Errorf("this namespace may not be deleted"))
	case a.Operation != admission.Create || isNamespace || !a.Definition.Namespaced || a.Namespace == "":
		return nil
	case isAccessReview(a.Definition):
		return nil
	}
	return l.admitCreate(ctx, a)
}

// isAccessReview exempts questions about namespaces that need not exist.
func isAccessReview(d *resource.Definition) bool {
	return d.Group == "authorization.k8s.io" && d.Plural == "localsubjectaccessreviews"
}

func (l NamespaceLifecycle) admitCreate(ctx context.Context, a *admission.Attributes) error {
	namespace, err := l.Objects.GetCached(ctx, namespaces, "", a.Namespace)
	if apierrors.IsNotFound(err) {
		// The cache may not have seen it yet.
		namespace, err = l.Objects.Get(ctx, namespaces, "", a.Namespace)
	}
	if err != nil {
		return err
	}
	accessor, err := meta.Accessor(namespace)
	if err != nil {
		return apierrors.NewInternalError(err)
	}
	if accessor.GetDeletionTimestamp() == nil {
		return nil
	}
	return terminating(a)
}

// terminating is the refusal, with the cause that clients look for.
func terminating(a *admission.Attributes) error {
	err := apierrors.NewForbidden(a.Definition.GroupResource(), a.Name, fmt.Errorf(
		"unable to create new content in namespace %s because it is being terminated", a.Namespace))
	err.ErrStatus.Details.Causes = append(err.ErrStatus.Details.Causes, metav1.StatusCause{
		Type:    corev1.NamespaceTerminatingCause,
		Message: fmt.Sprintf("namespace %s is being terminated", a.Namespace),
		Field:   "metadata.namespace",
	})
	return err
}
