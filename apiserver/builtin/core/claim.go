package core

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/persistentvolumeclaim"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// decorateClaim fills in the one of dataSource and dataSourceRef that a claim was stored without.
func decorateClaim(internal runtime.Object) {
	if claim, ok := internal.(*api.PersistentVolumeClaim); ok {
		persistentvolumeclaim.NormalizeDataSources(&claim.Spec)
	}
}
