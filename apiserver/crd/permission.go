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

// permission implements resource.Permission. All definitions of one CustomResourceDefinition share it.
type permission struct {
	name     string
	uid      apitypes.UID
	revision atomic.Int64
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

// permissionOf returns the permission of a definition, that of the previous record if it is the same definition.
func permissionOf(crd *apiextensionsv1.CustomResourceDefinition, previous *record) *permission {
	if previous != nil && previous.permission.uid == crd.UID {
		return previous.permission
	}
	return &permission{name: crd.Name, uid: crd.UID}
}

// observe notes the latest known state of the definition.
func (p *permission) observe(crd *apiextensionsv1.CustomResourceDefinition, permits bool) {
	var revision int64
	if permits {
		revision, _ = strconv.ParseInt(crd.ResourceVersion, 10, 64) // 0 for one that is not stored
	}
	p.revision.Store(revision)
}
