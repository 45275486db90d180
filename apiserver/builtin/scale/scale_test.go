package scale_test

import (
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/apis/apps"
	"k8s.io/kubernetes/pkg/apis/autoscaling"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/builtin/scale"
)

func parents() map[string]runtime.Object {
	one := int32(1)
	metadata := metav1.ObjectMeta{Name: "web", Namespace: "default", UID: "id", ResourceVersion: "7"}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}}
	return map[string]runtime.Object{
		"deployment": &apps.Deployment{
			ObjectMeta: metadata, Spec: apps.DeploymentSpec{Replicas: 1, Selector: selector},
			Status: apps.DeploymentStatus{Replicas: 2},
		},
		"replica set": &apps.ReplicaSet{
			ObjectMeta: metadata, Spec: apps.ReplicaSetSpec{Replicas: 1, Selector: selector},
			Status: apps.ReplicaSetStatus{Replicas: 2},
		},
		"stateful set": &apps.StatefulSet{
			ObjectMeta: metadata, Spec: apps.StatefulSetSpec{Replicas: 1, Selector: selector},
			Status: apps.StatefulSetStatus{Replicas: 2},
		},
		"replication controller": &core.ReplicationController{
			ObjectMeta: metadata, Spec: core.ReplicationControllerSpec{Replicas: &one, Selector: selector.MatchLabels},
			Status: core.ReplicationControllerStatus{Replicas: 2},
		},
	}
}

func TestViewShowsAndSetsReplicas(t *testing.T) {
	for name, parent := range parents() {
		view := get(t, parent)
		if view.Name != "web" || view.UID != "id" || view.ResourceVersion != "7" || view.Spec.Replicas != 1 ||
			view.Status.Replicas != 2 || view.Status.Selector != "app=web" {
			t.Errorf("%s: %+v", name, view)
		}
		view.Spec.Replicas, view.ResourceVersion = 5, "8"
		if err := (scale.View{}).Set(parent, view); err != nil {
			t.Fatal(err)
		}
		if again := get(t, parent); again.Spec.Replicas != 5 || again.ResourceVersion != "8" {
			t.Errorf("%s after set: %+v", name, again)
		}
		view.UID = "another"
		if err := (scale.View{}).Set(parent, view); !apierrors.IsConflict(err) {
			t.Errorf("%s: another UID: %v", name, err)
		}
	}
}

func get(t *testing.T, parent runtime.Object) *autoscaling.Scale {
	t.Helper()
	view, err := scale.View{}.Get(parent)
	if err != nil {
		t.Fatal(err)
	}
	return view.(*autoscaling.Scale)
}

func TestViewRejectsOtherKinds(t *testing.T) {
	if _, err := (scale.View{}).Get(&core.Pod{}); err == nil {
		t.Error("a pod has a scale")
	}
	ctx := request.WithRequestInfo(t.Context(), &request.RequestInfo{
		APIGroup: "apps", APIVersion: "v1", Resource: "deployments", Subresource: "scale",
	})
	if err := (scale.View{}).Validate(
		ctx, &autoscaling.Scale{Spec: autoscaling.ScaleSpec{Replicas: -1}}, &autoscaling.Scale{},
	); !apierrors.IsInvalid(err) {
		t.Errorf("negative replicas: %v", err)
	}
}
