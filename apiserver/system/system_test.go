package system_test

import (
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/apis/apps"
	_ "k8s.io/kubernetes/pkg/apis/apps/install"

	"quorate.dev/apiserver/system"
)

// TestServerUser: the server's own writes have the user of kube-apiserver's loopback client.
func TestServerUser(t *testing.T) {
	t.Parallel()
	got, ok := request.UserFrom(system.WithServerUser(t.Context()))
	if !ok || got.GetName() != "system:apiserver" || len(got.GetGroups()) != 1 || got.GetGroups()[0] != "system:masters" {
		t.Errorf("got the user %+v", got)
	}
}

// TestToInternal: the internal version has defaults, and the argument is not changed.
func TestToInternal(t *testing.T) {
	t.Parallel()
	external := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "web"}}
	object, err := system.ToInternal(external)
	if err != nil {
		t.Fatal(err)
	}
	internal := object.(*apps.Deployment)
	if internal.Name != "web" || internal.Spec.Replicas != 1 ||
		internal.Spec.Strategy.Type != apps.RollingUpdateDeploymentStrategyType {
		t.Errorf("got %+v", internal)
	}
	if external.Spec.Replicas != nil {
		t.Errorf("the argument was changed: %+v", external.Spec)
	}
}

func TestToInternalRejectsUnknownTypes(t *testing.T) {
	t.Parallel()
	if object, err := system.ToInternal(&metav1.PartialObjectMetadata{}); err == nil {
		t.Errorf("got %T for a type that is not in the scheme", object)
	}
}
