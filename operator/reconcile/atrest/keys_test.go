package atrest

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/reconcile/owned"
)

// TestDecryptionIsConfirmedOnce checks that the confirmation of one change does not also confirm a later one.
func TestDecryptionIsConfirmedOnce(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "demo", Annotations: map[string]string{v1alpha1.DecryptAnnotation: "secrets", "other": "kept"},
	}}
	objects := owned.Objects{Client: fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster).Build()}
	key := client.ObjectKeyFromObject(cluster)
	read := &v1alpha1.ApiServerCluster{}
	for range 2 { // the second call has nothing to do
		if err := objects.Client.Get(t.Context(), key, read); err != nil {
			t.Fatal(err)
		}
		if err := forgetDecryption(t.Context(), objects, read); err != nil {
			t.Fatal(err)
		}
		stored := &v1alpha1.ApiServerCluster{}
		if err := objects.Client.Get(t.Context(), key, stored); err != nil {
			t.Fatal(err)
		}
		if _, found := stored.Annotations[v1alpha1.DecryptAnnotation]; found || stored.Annotations["other"] != "kept" {
			t.Errorf("got annotations %v", stored.Annotations)
		}
	}
}
