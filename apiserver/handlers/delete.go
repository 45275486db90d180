package handlers

import (
	"context"
	"net/http"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/resource"
)

// delete serves DELETE of one object.
func (c *call) delete(ctx context.Context) error {
	options, err := c.deleteOptions()
	if err != nil {
		return err
	}
	if ignoresReadErrors(options) {
		return c.deleteUnreadable(ctx, len(options.DryRun) > 0)
	}
	c.warnOnDelete(ctx, options)
	c.span.Event(eventDeleting)
	result, err := c.Registry.Delete(ctx, c.target, options, registry.WriteOptions{DryRun: len(options.DryRun) > 0})
	if err != nil {
		return err
	}
	c.span.Event(eventDeleted)
	code := http.StatusOK
	// kube-apiserver still evaluates the deprecated OrphanDependents.
	if !result.Outcome.Deleted() && options.OrphanDependents != nil && !*options.OrphanDependents {
		code = http.StatusAccepted
	}
	if !result.Outcome.Deleted() || result.Outcome == registry.DeletedEmpty || c.target.Version.ReturnsDeleted {
		return c.sendResult(code, result)
	}
	return c.sendDeleted(code, result)
}

// ignoresReadErrors reports whether the object is deleted even if it cannot be decrypted or decoded. deleteOptions
// drops the option unless the feature gate AllowUnsafeMalformedObjectDeletion is enabled.
func ignoresReadErrors(options *metav1.DeleteOptions) bool {
	return ptr.Deref(options.IgnoreStoreReadErrorWithClusterBreakingPotential, false)
}

// deleteUnreadable serves a DELETE for which ignoresReadErrors is true. The Status has no UID, because the object may
// be unreadable.
func (c *call) deleteUnreadable(ctx context.Context, dryRun bool) error {
	audit.AddAuditAnnotation(c.record, "apiserver.k8s.io/unsafe-delete-ignore-read-error", "")
	if err := c.Registry.DeleteUnreadable(ctx, c.target, c.Authorizer, dryRun); err != nil {
		return err
	}
	return c.sendStatus(http.StatusOK, &metav1.Status{
		Status: metav1.StatusSuccess, Code: http.StatusOK,
		Details: &metav1.StatusDetails{Name: c.target.Name, Kind: c.target.Version.Kind.Kind},
	})
}

// warnOnDelete adds the warnings of the endpoint's deletion strategy about the options.
func (c *call) warnOnDelete(ctx context.Context, options *metav1.DeleteOptions) {
	warner, ok := c.target.Endpoint.Delete.(resource.DeletionWarner)
	if !ok {
		return
	}
	for _, text := range warner.WarningsOnDelete(ctx, options) {
		c.record.Warnings.AddWarning("", text)
	}
}

// sendDeleted responds with a Status that names the deleted object.
func (c *call) sendDeleted(code int, result *registry.Result) error {
	accessor, err := meta.Accessor(result.Object)
	if err != nil {
		return err
	}
	return c.sendStatus(code, &metav1.Status{
		Status: metav1.StatusSuccess,
		Details: &metav1.StatusDetails{
			Name:  accessor.GetName(),
			Group: c.target.Group,
			Kind:  c.target.Plural,
			UID:   accessor.GetUID(),
		},
	})
}
