package core

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/persistentvolumeclaim"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// decorateClaim sets the missing one of dataSource and dataSourceRef.
func decorateClaim(internal runtime.Object) {
	if claim, ok := internal.(*api.PersistentVolumeClaim); ok {
		persistentvolumeclaim.NormalizeDataSources(&claim.Spec)
	}
}
