package admission

import (
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	upstream "k8s.io/apiserver/pkg/admission"
)

// NewNamespaceTerminatingError returns the error of a creation in a terminating namespace, with the cause that clients
// check.
func NewNamespaceTerminatingError(a *Attributes) error {
	err := upstream.NewForbidden(a, fmt.Errorf(
		"unable to create new content in namespace %s because it is being terminated", a.Namespace))
	if refusal, ok := errors.AsType[*apierrors.StatusError](err); ok {
		refusal.ErrStatus.Details.Causes = append(refusal.ErrStatus.Details.Causes, metav1.StatusCause{
			Type:    corev1.NamespaceTerminatingCause,
			Message: fmt.Sprintf("namespace %s is being terminated", a.Namespace),
			Field:   "metadata.namespace",
		})
	}
	return err
}
