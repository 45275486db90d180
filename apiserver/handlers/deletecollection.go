package handlers

import (
	"context"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"quorate.dev/apiserver/registry"
)

// deleteCollection serves DELETE of a collection.
func (c *call) deleteCollection(ctx context.Context) error {
	list, selection, err := c.listOptions()
	if err != nil {
		return err
	}
	options, err := c.deleteOptions()
	if err != nil {
		return err
	}
	if ignoresReadErrors(options) {
		return invalidOptions("DeleteOptions", field.ErrorList{field.Invalid(
			field.NewPath("ignoreStoreReadErrorWithClusterBreakingPotential"), true,
			"is not allowed with DELETECOLLECTION, try again after removing the option")})
	}
	c.warnOnDelete(ctx, options)
	page, err := c.Registry.DeleteCollection(ctx, c.target, registry.DeleteCollectionOptions{
		List: registry.ListOptions{
			Selection:       selection,
			ResourceVersion: list.ResourceVersion,
			Match:           list.ResourceVersionMatch,
			Limit:           list.Limit,
			Continue:        list.Continue,
		},
		Delete:  options,
		Write:   registry.WriteOptions{DryRun: len(options.DryRun) > 0},
		Workers: c.DeleteWorkers,
	})
	if err != nil {
		return err
	}
	defer page.Close()
	// kube-apiserver also rejects the Accept header only after it has deleted the objects.
	if err := c.checkList(true); err != nil {
		return err
	}
	return c.sendPage(page)
}
