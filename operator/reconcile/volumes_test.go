package reconcile

import (
	"context"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"quorate.dev/operator/api/v1alpha1"
)

// TestVolumesThatCannotGrow checks that the condition has the reason of the rejection, and that no pod restarts with a
// quota that exceeds its volume.
func TestVolumesThatCannotGrow(t *testing.T) {
	c := newCluster(t)
	c.execute([]string{"create", "replicas=1"})
	c.execute([]string{"settle"})
	forbid := true
	c.reconciler.Client = interceptor.NewClient(c.client.(client.WithWatch), interceptor.Funcs{Patch: func(
		ctx context.Context, inner client.WithWatch, object client.Object, patch client.Patch, options ...client.PatchOption,
	) error {
		if _, ok := object.(*corev1.PersistentVolumeClaim); ok && forbid {
			return apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, object.GetName(), nil)
		}
		return inner.Patch(ctx, object, patch, options...)
	}})
	expanded := c.get()
	expanded.Spec.Storage.Size = resource.MustParse("12Gi")
	c.must(c.client.Update(t.Context(), expanded))
	c.execute([]string{"reconcile"})
	degraded := meta.FindStatusCondition(c.get().Status.Conditions, v1alpha1.Degraded)
	if degraded.Reason != "VolumeExpansionFailed" || !strings.Contains(degraded.Message, "claim demo-0 to 12Gi") {
		t.Errorf("%+v", degraded)
	}
	arguments := func() string {
		pod := &corev1.Pod{}
		c.must(c.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-0"}, pod))
		return strings.Join(pod.Spec.Containers[0].Args, " ")
	}
	before := arguments()
	c.execute([]string{"settle"})
	if arguments() != before {
		t.Error("the pod has restarted with the quota of a larger volume")
	}
	forbid = false
	c.execute([]string{"settle"})
	if arguments() == before {
		t.Error("the pod still has the quota of the smaller volume")
	}
}
