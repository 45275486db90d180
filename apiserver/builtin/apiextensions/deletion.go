package apiextensions

import (
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
)

// deletion keeps a CustomResourceDefinition until its custom resources are deleted. It implements resource.Terminator.
type deletion struct {
	runtime.ObjectTyper
	clock clock.PassiveClock
}

// PreconditionFailed implements resource.Terminator.
func (deletion) PreconditionFailed() string { return "precondition failed" }

// Terminate implements resource.Terminator. It adds the finalizer that keeps the definition, and the condition
// Terminating.
func (d deletion) Terminate(object runtime.Object, _ *metav1.DeleteOptions) (pending bool) {
	definition := object.(*apiextensions.CustomResourceDefinition)
	if !definition.DeletionTimestamp.IsZero() {
		return false
	}
	now := metav1.NewTime(d.clock.Now())
	definition.DeletionTimestamp = &now
	if !apiextensions.CRDHasFinalizer(definition, apiextensions.CustomResourceCleanupFinalizer) {
		definition.Finalizers = append(definition.Finalizers, apiextensions.CustomResourceCleanupFinalizer)
	}
	apiextensions.SetCRDCondition(definition, apiextensions.CustomResourceDefinitionCondition{
		Type:    apiextensions.Terminating,
		Status:  apiextensions.ConditionTrue,
		Reason:  "InstanceDeletionPending",
		Message: "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
	})
	return false
}
