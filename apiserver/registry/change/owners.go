package change

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/warning"
)

// Warnings about duplicate owner references, as in kube-apiserver. Bodies of creates and updates are checked before
// and after mutating admission, patched objects only after it.
const (
	duplicateOwners         = duplicateEntries + duplicateOwnersAdvice
	duplicateOwnersAdmitted = duplicateEntries + " after mutating admission happens" + duplicateOwnersAdvice

	duplicateEntries      = ".metadata.ownerReferences contains duplicate entries"
	duplicateOwnersAdvice = "; API server dedups owner references in 1.20+, and may reject such requests as early as " +
		"1.24; please fix your requests; duplicate UID(s) observed: %v"
)

// RemoveDuplicateOwners removes duplicate owner references from the body of a create or an update, and warns the
// client.
func RemoveDuplicateOwners(ctx context.Context, object runtime.Object) {
	removeDuplicateOwners(ctx, object, duplicateOwners)
}

// RemoveDuplicateOwnersAdmitted is RemoveDuplicateOwners after mutating admission.
func RemoveDuplicateOwnersAdmitted(ctx context.Context, object runtime.Object) {
	removeDuplicateOwners(ctx, object, duplicateOwnersAdmitted)
}

// removeDuplicateOwners removes duplicate owner references and sends a warning of the given format. It keeps the first
// of equal references, in their order, like dedupOwnerReferencesAndAddWarning, but takes O(n).
func removeDuplicateOwners(ctx context.Context, object runtime.Object, warningFormat string) {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return
	}
	owners := accessor.GetOwnerReferences()
	if len(owners) < 2 {
		return
	}
	kept := make([]metav1.OwnerReference, 0, len(owners))
	seen := make(map[ownerKey]bool, len(owners))
	var duplicates []string
	for _, owner := range owners {
		key := newOwnerKey(owner)
		if seen[key] {
			duplicates = append(duplicates, string(owner.UID))
			continue
		}
		seen[key] = true
		kept = append(kept, owner)
	}
	if len(duplicates) == 0 {
		return
	}
	accessor.SetOwnerReferences(kept)
	warning.AddWarning(ctx, "", fmt.Sprintf(warningFormat, strings.Join(duplicates, ", ")))
}

// ownerKey is an owner reference that can be compared: equal references have equal keys. Comparing each reference with
// all others would take seconds for ten thousand.
type ownerKey struct {
	reference                  metav1.OwnerReference // without pointers
	controller, blocksDeletion optionalBool
}

// optionalBool is the value of a *bool.
type optionalBool struct{ isSet, value bool }

func newOptionalBool(value *bool) optionalBool {
	return optionalBool{isSet: value != nil, value: value != nil && *value}
}

func newOwnerKey(owner metav1.OwnerReference) ownerKey {
	key := ownerKey{
		reference: owner, controller: newOptionalBool(owner.Controller),
		blocksDeletion: newOptionalBool(owner.BlockOwnerDeletion),
	}
	key.reference.Controller, key.reference.BlockOwnerDeletion = nil, nil
	return key
}
