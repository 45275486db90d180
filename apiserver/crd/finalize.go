package crd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"

	"quorate.dev/apiserver/resource"
)

// recheck is the interval at which finalize looks for remaining custom resources of a deleted definition, for example
// objects with finalizers.
const recheck = time.Second

type internalDefinition = apiextensions.CustomResourceDefinition

// finalize deletes the custom resources of a deleted definition, then removes the definition's finalizer. The condition
// Terminating is set to true before the first deletion, so that no objects are created afterwards. If a deletion fails,
// the condition keeps the reason InstanceDeletionFailed until a later attempt succeeds.
//
// It mirrors CRDFinalizer.sync and differs in three ways. It does not wait for objects with finalizers, which would
// block its goroutine for up to a minute, but looks again after recheck. It also deletes the objects of definitions
// that were never established, because they may be left from an earlier definition of the name. And objects that are
// created during the deletion cannot be missed (permission.go); upstream has a TODO for them.
//
// Every replica may run finalize for the same definition at the same time. All steps can be repeated, and the last one
// happens only while the definition still has its UID and the finalizer (setTerminating).
func (c *Controller) finalize(ctx context.Context, name string) error {
	held, err := c.Objects.Get(ctx, resource.Key{GroupResource: Resource, Name: name}, resource.ReadOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("get CustomResourceDefinition %s: %w", name, err)
	}
	definition := held.(*internalDefinition)
	if !awaitsCleanup(definition) {
		return nil
	}
	if !hasFailed(definition) {
		if err := c.setTerminating(ctx, definition, inProgress, keepFinalizer); err != nil {
			return err
		}
	}
	if err := c.awaitPublished(ctx); err != nil {
		return err
	}
	outcome, failure := c.deleteInstances(ctx, definition)
	switch {
	case failure != nil:
		return errors.Join(failure, c.setTerminating(ctx, definition, outcome, keepFinalizer))
	case outcome.Status == apiextensions.ConditionTrue:
		c.queue.AddAfter(name, recheck)
		return c.setTerminating(ctx, definition, outcome, keepFinalizer)
	}
	return c.setTerminating(ctx, definition, outcome, removeFinalizer)
}

// awaitsCleanup reports whether a definition waits for the deletion of its custom resources.
func awaitsCleanup(definition *internalDefinition) bool {
	return !definition.DeletionTimestamp.IsZero() &&
		apiextensions.CRDHasFinalizer(definition, apiextensions.CustomResourceCleanupFinalizer)
}

type internalCondition = apiextensions.CustomResourceDefinitionCondition

// terminating returns a condition Terminating.
func terminating(status apiextensions.ConditionStatus, reason, message string) internalCondition {
	return internalCondition{Type: apiextensions.Terminating, Status: status, Reason: reason, Message: message}
}

func deletionFailed(err error) internalCondition {
	return terminating(apiextensions.ConditionTrue, failedReason, err.Error())
}

// hasFailed reports whether the latest attempt to delete the custom resources of a definition has failed.
func hasFailed(definition *internalDefinition) bool {
	current := apiextensions.FindCRDCondition(definition, apiextensions.Terminating)
	return current != nil && current.Status == apiextensions.ConditionTrue && current.Reason == failedReason
}

const failedReason = "InstanceDeletionFailed"

var inProgress = terminating(
	apiextensions.ConditionTrue, "InstanceDeletionInProgress", "CustomResource deletion is in progress")

// keepFinalizer is the argument of setTerminating while custom resources may remain.
func keepFinalizer(*internalDefinition) {}

// removeFinalizer is the argument of setTerminating once no custom resources remain. The definition is removed from
// storage by the same update if it has no other finalizers.
func removeFinalizer(definition *internalDefinition) {
	apiextensions.CRDRemoveFinalizer(definition, apiextensions.CustomResourceCleanupFinalizer)
}

// setTerminating sets the condition Terminating of a definition and applies finalizer in one update. It changes nothing
// if another replica has finalized the definition since it was read, even if a new definition has the same name.
func (c *Controller) setTerminating(
	ctx context.Context, of *internalDefinition, condition internalCondition, finalizer func(*internalDefinition),
) error {
	key := resource.Key{GroupResource: Resource, Subresource: "status", Name: of.Name}
	_, err := c.Objects.Update(ctx, key, func(object runtime.Object) error {
		definition := object.(*internalDefinition)
		if definition.UID != of.UID || !awaitsCleanup(definition) {
			return errUnchanged
		}
		current := apiextensions.FindCRDCondition(definition, apiextensions.Terminating)
		finalizers := len(definition.Finalizers)
		finalizer(definition)
		if apiextensions.IsCRDConditionEquivalent(current, &condition) && finalizers == len(definition.Finalizers) {
			return errUnchanged
		}
		apiextensions.SetCRDCondition(definition, condition)
		return nil
	}, resource.WriteOptions{})
	if err != nil && !errors.Is(err, errUnchanged) && !apierrors.IsNotFound(err) {
		return fmt.Errorf("update status of CustomResourceDefinition %s: %w", of.Name, err)
	}
	return nil
}

// deleteInstances deletes all custom resources. The returned condition has the status True while custom resources
// remain. Objects that are already being deleted wait for the controllers that remove their finalizers. The list after
// the deletions, not their success, decides: a deletion of an object with finalizers only marks it.
func (c *Controller) deleteInstances(ctx context.Context, definition *internalDefinition) (internalCondition, error) {
	if c.BuiltIn(schema.GroupResource{Group: definition.Spec.Group, Resource: definition.Spec.Names.Plural}) {
		const message = "instances overlap with built-in resources in storage"
		return terminating(apiextensions.ConditionFalse, "OverlappingBuiltInResource", message), nil
	}
	instances := schema.GroupResource{Group: definition.Spec.Group, Resource: definition.Spec.Names.Plural}
	left, err := c.instances(ctx, instances)
	if err == nil && len(left) > 0 {
		if err := c.deleteAll(ctx, instances, left); err != nil {
			err = fmt.Errorf("could not issue all deletes: %w", err)
			return deletionFailed(err), err
		}
		left, err = c.instances(ctx, instances)
	}
	switch {
	case err != nil:
		err = fmt.Errorf("could not list instances: %w", err)
		return deletionFailed(err), err
	case len(left) > 0:
		return inProgress, nil
	case !apiextensions.IsCRDConditionTrue(definition, apiextensions.Established):
		return terminating(apiextensions.ConditionFalse, "NeverEstablished", "resource was never established"), nil
	}
	return terminating(apiextensions.ConditionFalse, "InstanceDeletionCompleted", "removed all instances"), nil
}

// instances lists custom resources from storage. A stale list from the watch cache may lack some, which would then
// outlive their definition.
func (c *Controller) instances(ctx context.Context, of schema.GroupResource) ([]runtime.Object, error) {
	return c.Objects.List(ctx, resource.Key{GroupResource: of, Stored: true}, resource.ReadOptions{})
}

// deleteAll deletes objects one after the other, with admission, and goes on after errors. It returns all errors.
func (c *Controller) deleteAll(ctx context.Context, instances schema.GroupResource, objects []runtime.Object) error {
	var errs []error
	for _, object := range objects {
		accessor, err := meta.Accessor(object)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		if accessor.GetDeletionTimestamp() != nil {
			continue
		}
		err = c.Objects.Delete(ctx,
			resource.Key{GroupResource: instances, Stored: true, Namespace: accessor.GetNamespace(), Name: accessor.GetName()},
			&metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return utilerrors.NewAggregate(errs)
}
