package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupVersion is the group and version of these types.
var GroupVersion = schema.GroupVersion{Group: "quorate.dev", Version: "v1alpha1"}

// AddToScheme registers the types.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion, &ApiServerCluster{}, &ApiServerClusterList{})
	scheme.AddKnownTypes(GroupVersion, &ApiServerBackup{}, &ApiServerBackupList{},
		&ApiServerBackupSchedule{}, &ApiServerBackupScheduleList{})
	scheme.AddKnownTypes(GroupVersion, &ApiServerKubeconfig{}, &ApiServerKubeconfigList{})
	metav1.AddToGroupVersion(scheme, GroupVersion)
	return nil
}
