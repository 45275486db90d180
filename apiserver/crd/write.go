package crd

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"

	"quorate.dev/apiserver/resource"
)

// errUnchanged aborts an update without changes.
var errUnchanged = errors.New("unchanged")

// write writes the conditions of a definition, or finalizes it if it is deleted. The names of the other definitions are
// a copy: the lock is not held during the write, in which another definition may be observed. That the definition has
// been built (defined) is the precondition of Established.
func (c *Controller) write(ctx context.Context, name string) error {
	c.lock.Lock()
	r, ok := c.records[name]
	if !ok {
		c.lock.Unlock()
		delete(c.checked, name)
		return nil
	}
	defined, deleting := r.definition != nil, r.deleting
	others := c.claimedByOthers(r.group, name)
	c.lock.Unlock()
	if deleting {
		return c.finalize(ctx, name)
	}
	return c.updateStatus(ctx, name, func(
		outline *apiextensionsv1.CustomResourceDefinition, object runtime.Object,
	) (apiextensionsv1.CustomResourceDefinitionStatus, error) {
		problem, err := c.nonStructural(outline, object)
		return conditions(outline, others, defined, problem), err
	})
}

// nonStructural returns the NonStructuralSchema condition of a definition, which is checked once per revision.
func (c *Controller) nonStructural(
	outline *apiextensionsv1.CustomResourceDefinition, object runtime.Object,
) (*condition, error) {
	revision := revisionOf(outline)
	if known, ok := c.checked[outline.Name]; ok && known.revision == revision {
		return known.problem, nil
	}
	crd, err := external(object)
	if err != nil {
		return nil, err
	}
	problem := nonStructural(crd)
	c.checked[outline.Name] = checkedSchemas{revision: revision, problem: problem}
	return problem, nil
}

// claimedByOthers returns the accepted names of the other definitions of a group. The caller holds the lock.
func (c *Controller) claimedByOthers(group, except string) Claimed {
	var accepted []apiextensionsv1.CustomResourceDefinitionNames
	for name, r := range c.records {
		if r.group == group && name != except {
			accepted = append(accepted, r.names)
		}
	}
	return Claim(accepted...)
}

// updateStatus writes the status that decide returns, if it differs from the stored status. decide is called once for
// each attempt, with the stored definition, so that the status follows from the definition that it is written to even
// if the watch lags. An unchanged status is not written: the events of such writes would queue the definition again
// without end.
func (c *Controller) updateStatus(
	ctx context.Context, name string,
	decide func(
		outline *apiextensionsv1.CustomResourceDefinition, object runtime.Object,
	) (apiextensionsv1.CustomResourceDefinitionStatus, error),
) error {
	unchanged := false
	key := resource.Key{GroupResource: Resource, Subresource: "status", Name: name}
	_, err := c.Objects.Update(ctx, key, func(object runtime.Object) error {
		crd, err := outline(object)
		if err != nil {
			return err
		}
		status, err := decide(crd, object)
		if err != nil {
			return err
		}
		if unchanged = apiequality.Semantic.DeepEqual(status, crd.Status); unchanged {
			return errUnchanged
		}
		internal := object.(*apiextensions.CustomResourceDefinition)
		internal.Status = apiextensions.CustomResourceDefinitionStatus{}
		return apiextensionsv1.Convert_v1_CustomResourceDefinitionStatus_To_apiextensions_CustomResourceDefinitionStatus(
			&status, &internal.Status, nil,
		)
	}, resource.WriteOptions{})
	if err != nil && !unchanged && !apierrors.IsNotFound(err) {
		return fmt.Errorf("update status of CustomResourceDefinition %s: %w", name, err)
	}
	return nil
}
