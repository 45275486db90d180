package core

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/persistentvolumeclaim"
	api "k8s.io/kubernetes/pkg/apis/core"
)

// decorateClaim completes a PersistentVolumeClaim in which only dataSource or only dataSourceRef is set: it copies the
// value to the other field, like upstream's storage.
func decorateClaim(internal runtime.Object) {
	if claim, ok := internal.(*api.PersistentVolumeClaim); ok {
		persistentvolumeclaim.NormalizeDataSources(&claim.Spec)
	}
}
