package watches

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// TestSourceMetadata checks that the cache keeps nothing of an object except what identifies it and its version.
func TestSourceMetadata(t *testing.T) {
	object := &metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "audit", UID: "u", ResourceVersion: "7", Labels: map[string]string{"a": "b"},
		Annotations: map[string]string{"c": "d"},
	}}
	kept, err := SourceMetadata(object)
	if m, ok := kept.(*metav1.PartialObjectMetadata); err != nil || !ok || m.Labels != nil || m.Annotations != nil ||
		m.ResourceVersion != "7" || m.Name != "audit" {
		t.Errorf("%+v, %v", kept, err)
	}
	if other, err := SourceMetadata("tombstone"); err != nil || other != "tombstone" {
		t.Errorf("%v, %v", other, err)
	}
}

// TestSources checks that a changed ConfigMap causes a reconciliation of the clusters that refer to it.
func TestSources(t *testing.T) {
	named := func(name, configMap string) *v1alpha1.ApiServerCluster {
		return ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
			c.Name = name
			c.Spec.Audit = &v1alpha1.Audit{
				ConfigurationFiles: v1alpha1.ConfigurationFiles{ConfigMapRef: &corev1.LocalObjectReference{Name: configMap}},
			}
		})
	}
	h := ownedtest.NewHost(t, named("demo", "audit"), named("other", "another"))
	audit := client.ObjectKey{Namespace: "ns", Name: "audit"}
	if requests := clustersOf(t.Context(), h.Client, "ConfigMap", audit); len(requests) != 1 ||
		requests[0].Name != "demo" {
		t.Errorf("requests %v", requests)
	}
	if requests := clustersOf(t.Context(), h.Client, "Secret", audit); len(requests) != 0 {
		t.Errorf("requests for a Secret with the name: %v", requests)
	}
	h.Refuse = func(string) error { return ownedtest.ErrUnavailable }
	if requests := clustersOf(t.Context(), h.Client, "ConfigMap", audit); requests != nil {
		t.Errorf("requests without a list: %v", requests)
	}
	if len(sources(h.Client, nil)) != 0 || len(sources(h.Client, struct{ cache.Cache }{})) != 2 {
		t.Error("sources do not follow from the cache")
	}
}

// TestClusters checks to which cluster an object without an owner reference, or a backup schedule, belongs.
func TestClusters(t *testing.T) {
	cluster := ownedtest.NewCluster()
	claim := func(owned bool, labels map[string]string) client.Object {
		c := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-0", Labels: labels}}
		if owned {
			c.OwnerReferences = []metav1.OwnerReference{
				*metav1.NewControllerRef(cluster, v1alpha1.GroupVersion.WithKind("ApiServerCluster")),
			}
		}
		return c
	}
	for name, test := range map[string]struct {
		object client.Object
		want   int
	}{
		"detached":         {claim(false, desired.Labels(cluster)), 1},
		"owned":            {claim(true, desired.Labels(cluster)), 0}, // the watch of owned objects finds it
		"of another owner": {claim(false, nil), 0},
	} {
		requests := clusterOfDetached(t.Context(), test.object)
		if len(requests) != test.want || test.want > 0 && requests[0].String() != "ns/demo" {
			t.Errorf("%s: requests %v", name, requests)
		}
	}
	schedule := &v1alpha1.ApiServerBackupSchedule{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "nightly"}}
	schedule.Spec.Template.ClusterName = "demo"
	if requests := clusterOfSchedule(t.Context(), schedule); len(requests) != 1 || requests[0].String() != "ns/demo" {
		t.Errorf("requests %v", requests)
	}
	if requests := clusterOfSchedule(t.Context(), cluster); requests != nil {
		t.Errorf("requests for another kind: %v", requests)
	}
}
