package crd

import (
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/apiextensions-apiserver/pkg/apihelpers"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilerrors "k8s.io/apimachinery/pkg/util/errors"
)

// recheck is how often the custom resources of a definition being deleted are looked for again: some stay
// until their own finalizers are gone.
const recheck = time.Second

// errUnchanged ends an update that has nothing to write.
var errUnchanged = errors.New("unchanged")

// write brings one definition's stored state up to date.
func (c *Controller) write(ctx context.Context, name string) error {
	c.lock.Lock()
	r, ok := c.records[name]
	if !ok {
		c.lock.Unlock()
		return nil
	}
	published, deleting := r.published, r.deleting
	others := c.claimedByOthers(r.group, name)
	c.lock.Unlock()
	if deleting {
		return c.cleanUp(ctx, name)
	}
	return c.updateStatus(ctx, name, func(crd *apiextensionsv1.CustomResourceDefinition) apiextensionsv1.CustomResourceDefinitionStatus {
		return Conditions(crd, others, published)
	})
}

func (c *Controller) claimedByOthers(group, except string) Claimed {
	var accepted []apiextensionsv1.CustomResourceDefinitionNames
	for name, r := range c.records {
		if r.group == group && name != except {
			accepted = append(accepted, r.names)
		}
	}
	return Claim(accepted...)
}

// updateStatus writes the status that decide finds right, if it is not there already.
func (c *Controller) updateStatus(ctx context.Context, name string, decide func(*apiextensionsv1.CustomResourceDefinition) apiextensionsv1.CustomResourceDefinitionStatus) error {
	unchanged := false
	_, err := c.Objects.Update(ctx, Resource, "status", "", name, func(object runtime.Object) error {
		crd, err := external(object)
		if err != nil {
			return err
		}
		status := decide(crd)
		if unchanged = apiequality.Semantic.DeepEqual(status, crd.Status); unchanged {
			return errUnchanged
		}
		internal := object.(*apiextensions.CustomResourceDefinition)
		internal.Status = apiextensions.CustomResourceDefinitionStatus{}
		return apiextensionsv1.Convert_v1_CustomResourceDefinitionStatus_To_apiextensions_CustomResourceDefinitionStatus(&status, &internal.Status, nil)
	}, false)
	if err != nil && !unchanged {
		return fmt.Errorf("update status of CustomResourceDefinition %s: %w", name, err)
	}
	return nil
}

// cleanUp deletes the custom resources of a definition being deleted and, once none is left, lets it go.
func (c *Controller) cleanUp(ctx context.Context, name string) error {
	object, err := c.Objects.Get(ctx, Resource, "", name)
	if err != nil {
		return fmt.Errorf("get CustomResourceDefinition %s: %w", name, err)
	}
	crd, err := external(object)
	if err != nil {
		return err
	}
	if crd.DeletionTimestamp == nil || !apihelpers.CRDHasFinalizer(crd, apiextensionsv1.CustomResourceCleanupFinalizer) {
		return nil
	}
	verdict, failure := c.deleteInstances(ctx, crd)
	if err := c.setTerminating(ctx, name, verdict); err != nil {
		return err
	}
	if failure != nil {
		return failure
	}
	if verdict.Status == apiextensionsv1.ConditionTrue {
		c.queue.AddAfter(name, recheck)
		return nil
	}
	return c.release(ctx, name)
}

func terminating(status apiextensionsv1.ConditionStatus, reason, message string) condition {
	return condition{Type: apiextensionsv1.Terminating, Status: status, Reason: reason, Message: message}
}

func (c *Controller) setTerminating(ctx context.Context, name string, verdict condition) error {
	return c.updateStatus(ctx, name, func(crd *apiextensionsv1.CustomResourceDefinition) apiextensionsv1.CustomResourceDefinitionStatus {
		next := &apiextensionsv1.CustomResourceDefinition{Status: *crd.Status.DeepCopy()}
		apihelpers.SetCRDCondition(next, verdict)
		return next.Status
	})
}

// deleteInstances deletes all custom resources. The verdict stays true as long as some are left.
func (c *Controller) deleteInstances(ctx context.Context, crd *apiextensionsv1.CustomResourceDefinition) (condition, error) {
	instances := schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Status.AcceptedNames.Plural}
	if c.BuiltIn(schema.GroupResource{Group: crd.Spec.Group, Resource: crd.Spec.Names.Plural}) {
		return terminating(apiextensionsv1.ConditionFalse, "OverlappingBuiltInResource", "instances overlap with built-in resources in storage"), nil
	}
	if !apihelpers.IsCRDConditionTrue(crd, apiextensionsv1.Established) {
		return terminating(apiextensionsv1.ConditionFalse, "NeverEstablished", "resource was never established"), nil
	}
	objects, err := c.Objects.List(ctx, instances, metav1.NamespaceAll)
	if err != nil {
		err = fmt.Errorf("could not list instances: %w", err)
		return terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionFailed", err.Error()), err
	}
	if len(objects) == 0 {
		return terminating(apiextensionsv1.ConditionFalse, "InstanceDeletionCompleted", "removed all instances"), nil
	}
	if err := c.deleteAll(ctx, instances, objects); err != nil {
		err = fmt.Errorf("could not issue all deletes: %w", err)
		return terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionFailed", err.Error()), err
	}
	return terminating(apiextensionsv1.ConditionTrue, "InstanceDeletionInProgress", "CustomResource deletion is in progress"), nil
}

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
		err = c.Objects.Delete(ctx, instances, accessor.GetNamespace(), accessor.GetName(), &metav1.DeleteOptions{})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs, err)
		}
	}
	return utilerrors.NewAggregate(errs)
}

// release removes the finalizer that held the definition.
func (c *Controller) release(ctx context.Context, name string) error {
	_, err := c.Objects.Update(ctx, Resource, "", "", name, func(object runtime.Object) error {
		internal := object.(*apiextensions.CustomResourceDefinition)
		apiextensions.CRDRemoveFinalizer(internal, apiextensions.CustomResourceCleanupFinalizer)
		return nil
	}, false)
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("release CustomResourceDefinition %s: %w", name, err)
	}
	return nil
}
