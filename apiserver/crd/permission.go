package crd

import (
	"fmt"
	"strconv"
	"sync/atomic"

	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	apitypes "k8s.io/apimachinery/pkg/types"

	"quorate.dev/apiserver/resource"
)

// permission implements resource.Permission: it decides whether objects of a CustomResourceDefinition may be stored.
// All definitions that are built from the same CustomResourceDefinition share it.
//
// The known revision is a guess that storage verifies: a creation commits only if the definition still has it
// (storage.Guard), and otherwise Check decides on the stored definition. A stale guess costs a read, never a wrong
// creation. Invariant: at the revision of the creation of an object, its definition is established and not terminating.
// (A shim without such transactions undoes a creation that violates it.)
type permission struct {
	name string
	// uid distinguishes the definition from later definitions of the same name, for which the schemas, and therefore the
	// object that was validated, may be different.
	uid      apitypes.UID
	revision atomic.Int64 // latest revision observed; 0: none at which objects may be created
}

// Key implements resource.Permission.
func (p *permission) Key() resource.Key { return resource.Key{GroupResource: Resource, Name: p.name} }

// Revision implements resource.Permission.
func (p *permission) Revision() int64 { return p.revision.Load() }

// Check implements resource.Permission.
func (p *permission) Check(object runtime.Object) (int64, error) {
	definition, ok := object.(*internalDefinition)
	if !ok {
		return 0, fmt.Errorf("%T is not a CustomResourceDefinition", object)
	}
	switch {
	case definition.UID != p.uid:
		return 0, resource.ErrNotServed
	case !definition.DeletionTimestamp.IsZero(), apiextensions.IsCRDConditionTrue(definition, apiextensions.Terminating):
		return 0, resource.ErrTerminating
	case !apiextensions.IsCRDConditionTrue(definition, apiextensions.Established):
		return 0, resource.ErrNotServed
	}
	return strconv.ParseInt(definition.ResourceVersion, 10, 64)
}

// permissionOf returns the permission of a CustomResourceDefinition. It is the permission of the previous record if
// both have the same UID, so that it survives changes of the definition.
func permissionOf(crd *apiextensionsv1.CustomResourceDefinition, previous *record) *permission {
	if previous != nil && previous.permission.uid == crd.UID {
		return previous.permission
	}
	return &permission{name: crd.Name, uid: crd.UID}
}

// observe stores the latest observed revision at which objects may be stored, or 0 if the definition does not permit
// it.
func (p *permission) observe(crd *apiextensionsv1.CustomResourceDefinition, permits bool) {
	var revision int64
	if permits {
		revision, _ = strconv.ParseInt(crd.ResourceVersion, 10, 64) // 0 for a definition that is not stored
	}
	p.revision.Store(revision)
}
