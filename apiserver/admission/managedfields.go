package admission

import (
	"context"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/managedfields"
	"k8s.io/apiserver/pkg/warning"
)

// invalidManagedFields is the text of kube-apiserver's warning.
const invalidManagedFields = ".metadata.managedFields was in an invalid state after admission; this could be caused " +
	"by an outdated mutating admission controller; please fix your requests: "

// managedFields records the managed fields of a write's object before admission, so that they can be restored.
type managedFields struct {
	object  metav1.Object // nil: the object has no metadata
	entries []metav1.ManagedFieldsEntry
}

func managedFieldsOf(a *Attributes) managedFields {
	if a.Object == nil || a.Operation != Create && a.Operation != Update {
		return managedFields{}
	}
	accessor, err := meta.Accessor(a.Object)
	if err != nil {
		return managedFields{}
	}
	return managedFields{accessor, accessor.GetManagedFields()}
}

// restore sets the recorded managed fields again if a plugin has made them invalid, and warns the client. Validation
// decodes all entries. It is skipped if the object still has the same slice, because only webhooks and policies replace
// the slice.
func (m managedFields) restore(ctx context.Context) {
	if m.object == nil {
		return
	}
	after := m.object.GetManagedFields()
	if len(after) == len(m.entries) && (len(after) == 0 || &after[0] == &m.entries[0]) {
		return
	}
	if err := managedfields.ValidateManagedFields(after); err != nil {
		m.object.SetManagedFields(m.entries)
		warning.AddWarning(ctx, "", invalidManagedFields+err.Error())
	}
}
