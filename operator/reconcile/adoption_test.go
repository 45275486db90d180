package reconcile

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
)

// TestHostileRetention deletes a cluster that retains its data and creates it again, while the operator crashes after
// each possible write of both. The new cluster has the members, the data and the keys of the former one.
func TestHostileRetention(t *testing.T) {
	w := newSimulation(t, 1)
	w.launch(3)
	uid, keys := types.UID("demo"), w.secret("demo-service-account").Data["service-account.key"]
	for n := range crashes(t, 0, 2, 6, 11, 17) {
		w.change(withDeletion(v1alpha1.Deletion{Policy: v1alpha1.RetainData}))
		w.settle()
		members := fmt.Sprint(w.etcd.list())
		committed := w.etcd.committed
		w.must(w.raw.Delete(t.Context(), w.get()))
		recovered := w.crash(n)
		w.operate(0)
		more := recovered()
		w.deleted(uid)
		w.expectObjects("= PersistentVolumeClaim demo-0 demo-1 demo-2\n= Secret demo-client-ca demo-etcd-client-ca " +
			"demo-etcd-peer-ca demo-front-proxy-ca demo-retained demo-service-account demo-serving-ca")
		former := uid
		uid = types.UID(fmt.Sprint("demo-", n))
		object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: uid}}
		object.Spec.Replicas, object.Spec.Adopt = ptr.To[int32](3), &v1alpha1.Adoption{ClusterUID: string(former)}
		w.must(w.raw.Create(t.Context(), object))
		recovered = w.crash(n)
		w.operate(1)
		more = recovered() || more
		w.settle()
		if got := fmt.Sprint(w.etcd.list()); got != members || w.etcd.committed < committed {
			t.Fatalf("crash after %d writes: members %s at %d, want %s at %d or later", n, got, w.etcd.committed,
				members, committed)
		}
		if got := w.secret("demo-service-account").Data["service-account.key"]; string(got) != string(keys) {
			t.Fatalf("crash after %d writes: the key of service accounts was replaced", n)
		}
		w.check()
		record := client.ObjectKey{Namespace: "ns", Name: "demo-retained"}
		for i := 0; w.raw.Get(t.Context(), record, &corev1.Secret{}) == nil && i < 10; i++ {
			w.operate(0) // its cache may be stale
		}
		if err := w.raw.Get(t.Context(), record, &corev1.Secret{}); !apierrors.IsNotFound(err) {
			t.Errorf("the record of the deleted cluster still exists: %v", err)
		}
		if !more {
			return
		}
	}
}

// retained returns a simulation in which a cluster with a volume was deleted and retained its data.
func retained(t *testing.T) *simulation {
	w := newSimulation(t, 1)
	w.launch(1)
	w.change(withDeletion(v1alpha1.Deletion{Policy: v1alpha1.RetainData}))
	w.settle()
	w.must(w.raw.Delete(t.Context(), w.get()))
	w.deleted("demo")
	return w
}

// TestAdoptionOnPurposeOnly checks that a new cluster uses no retained object unless spec.adopt names the deleted
// cluster and all keys exist, and that the status says what to do.
func TestAdoptionOnPurposeOnly(t *testing.T) {
	w := retained(t)
	object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "second"}}
	object.Spec.Replicas = ptr.To[int32](1)
	w.must(w.raw.Create(t.Context(), object))
	refused := func(parts ...string) {
		t.Helper()
		for range 4 {
			w.operate(0)
		}
		got := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.Degraded)
		for _, part := range parts {
			if got == nil || !strings.Contains(got.Message, part) {
				t.Errorf("Degraded is %+v, want %q", got, part)
			}
		}
		if pods := w.members(); len(pods) > 0 {
			t.Errorf("members run: %v", pods)
		}
	}
	adopt := func(uid string) {
		w.change(func(c *v1alpha1.ApiServerCluster) { c.Spec.Adopt = &v1alpha1.Adoption{ClusterUID: uid} })
	}
	refused("was retained from a deleted cluster", "set spec.adopt.clusterUID to demo")
	adopt("other")
	refused("spec.adopt.clusterUID is other, but Secret demo-retained was retained from demo")
	key := w.secret("demo-service-account")
	w.must(w.raw.Delete(t.Context(), key))
	adopt("demo")
	refused("Secret demo-service-account is missing", "quorate.dev/retained-from=demo", "quorate.dev/replace-secrets")
	key.ResourceVersion = ""
	w.must(w.raw.Create(t.Context(), key))
	w.settle()
	w.check()
}

// TestInterruptedAdoption deletes a cluster while it adopts retained objects. They stay retained from the former
// cluster, although the new one does not retain its data, and a third cluster adopts them.
func TestInterruptedAdoption(t *testing.T) {
	for n := range crashes(t, 3, 9) {
		w := retained(t)
		create := func(uid types.UID) {
			object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: uid}}
			object.Spec.Replicas, object.Spec.Adopt = ptr.To[int32](1), &v1alpha1.Adoption{ClusterUID: "demo"}
			w.must(w.raw.Create(t.Context(), object))
		}
		create("second")
		recovered := w.crash(n)
		w.operate(0)
		recovered()
		if w.get().Adopted() {
			return
		}
		w.must(w.raw.Delete(t.Context(), w.get()))
		w.deleted("second")
		w.expectObjects("= PersistentVolumeClaim demo-0\n= Secret demo-client-ca demo-etcd-client-ca " +
			"demo-etcd-peer-ca demo-front-proxy-ca demo-retained demo-service-account demo-serving-ca")
		members := fmt.Sprint(w.etcd.list())
		create("third")
		w.settle()
		if got := fmt.Sprint(w.etcd.list()); got != members {
			t.Errorf("the members are %s, want %s", got, members)
		}
	}
}

// TestInterruptedAdoptionWithoutRecord deletes a cluster while it adopts retained objects, after the user has deleted
// the record of the former cluster. The objects are kept.
func TestInterruptedAdoptionWithoutRecord(t *testing.T) {
	for _, policy := range []v1alpha1.DeletionPolicy{v1alpha1.DeleteData, v1alpha1.RetainData} {
		for n := range crashes(t, 2, 3, 8) {
			w := retained(t)
			object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "second"}}
			object.Spec.Replicas, object.Spec.Adopt = ptr.To[int32](1), &v1alpha1.Adoption{ClusterUID: "demo"}
			object.Spec.Deletion.Policy = policy
			w.must(w.raw.Create(t.Context(), object))
			recovered := w.crash(n)
			w.operate(0)
			recovered()
			if w.get().Adopted() {
				break
			}
			w.must(w.raw.Delete(t.Context(), w.secret("demo-retained")))
			w.must(w.raw.Delete(t.Context(), w.get()))
			w.deleted("second")
			for _, name := range []string{"demo-client-ca", "demo-etcd-client-ca", "demo-service-account", "demo-serving-ca"} {
				w.secret(name)
			}
			w.must(w.raw.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-0"}, &corev1.PersistentVolumeClaim{}))
		}
	}
}

// adoptedWithoutStatus returns a simulation with a cluster that has adopted the data of a deleted one, and has then
// lost its status.
func adoptedWithoutStatus(t *testing.T) *simulation {
	t.Helper()
	w := retained(t)
	object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "second"}}
	object.Spec.Replicas, object.Spec.Adopt = ptr.To[int32](1), &v1alpha1.Adoption{ClusterUID: "demo"}
	w.must(w.raw.Create(t.Context(), object))
	w.settle()
	record := client.ObjectKey{Namespace: "ns", Name: "demo-retained"}
	for i := 0; w.raw.Get(t.Context(), record, &corev1.Secret{}) == nil && i < 10; i++ {
		w.operate(0) // its cache may be stale
	}
	object = w.get()
	object.Status = v1alpha1.ApiServerClusterStatus{}
	w.must(w.raw.Status().Update(t.Context(), object))
	return w
}

// TestAdoptedClusterLosesStatus checks that a cluster that has adopted data continues after the loss of its status, and
// can be deleted. If it is deleted before an operator has noticed the loss, its data is kept, and can be adopted with
// the policy Retain.
func TestAdoptedClusterLosesStatus(t *testing.T) {
	t.Run("continues", func(t *testing.T) {
		w := adoptedWithoutStatus(t)
		members, committed := fmt.Sprint(w.etcd.list()), w.etcd.committed
		w.settle()
		if got := fmt.Sprint(w.etcd.list()); got != members || w.etcd.committed < committed || !w.get().Adopted() {
			t.Errorf("members %s at %d, want %s at %d or later; status %+v", got, w.etcd.committed, members,
				committed, w.get().Status.Adoption)
		}
		w.check()
		w.must(w.raw.Delete(t.Context(), w.get()))
		w.deleted("second")
		w.expectObjects("")
	})
	t.Run("deleted at once", func(t *testing.T) {
		w := adoptedWithoutStatus(t)
		w.must(w.raw.Delete(t.Context(), w.get()))
		w.deleted("second")
		w.expectObjects(strings.Replace(retainedObjects, " demo-retained", "", 1))
	})
	t.Run("retained at once", func(t *testing.T) {
		for n := range crashes(t, 1, 4) {
			w := adoptedWithoutStatus(t)
			members := fmt.Sprint(w.etcd.list())
			w.change(withDeletion(v1alpha1.Deletion{Policy: v1alpha1.RetainData}))
			w.must(w.raw.Delete(t.Context(), w.get()))
			recovered := w.crash(n)
			w.operate(0)
			more := recovered()
			w.deleted("second")
			w.expectObjects(retainedObjects)
			object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "third"}}
			object.Spec.Replicas, object.Spec.Adopt = ptr.To[int32](1), &v1alpha1.Adoption{ClusterUID: "second"}
			w.must(w.raw.Create(t.Context(), object))
			w.settle()
			if got := fmt.Sprint(w.etcd.list()); got != members {
				t.Errorf("crash after %d writes: members %s, want %s", n, got, members)
			}
			if !more {
				return
			}
		}
	})
}

// TestAdoptionWithoutVolumes checks that retained keys are not adopted if no volume is retained.
func TestAdoptionWithoutVolumes(t *testing.T) {
	w := retained(t)
	w.must(w.raw.Delete(t.Context(), &corev1.PersistentVolumeClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-0"},
	}))
	object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "second"}}
	object.Spec.Adopt = &v1alpha1.Adoption{ClusterUID: "demo"}
	w.must(w.raw.Create(t.Context(), object))
	for range 4 {
		w.operate(0)
	}
	got := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.Degraded)
	if got == nil || !strings.Contains(got.Message, "the volumes of the deleted cluster are gone") {
		t.Errorf("Degraded is %+v", got)
	}
}

// TestAdoptionWithoutQuorum checks that the loss of most retained volumes is reported as a lost quorum, instead of
// starting a new etcd.
func TestAdoptionWithoutQuorum(t *testing.T) {
	w := newSimulation(t, 1)
	w.launch(3)
	w.change(withDeletion(v1alpha1.Deletion{Policy: v1alpha1.RetainData}))
	w.settle()
	w.must(w.raw.Delete(t.Context(), w.get()))
	w.deleted("demo")
	members := fmt.Sprint(w.etcd.list())
	for _, name := range []string{"demo-0", "demo-1"} {
		w.must(w.raw.Delete(t.Context(), &corev1.PersistentVolumeClaim{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
		}))
	}
	object := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo", UID: "second"}}
	object.Spec.Replicas, object.Spec.Adopt = ptr.To[int32](3), &v1alpha1.Adoption{ClusterUID: "demo"}
	w.must(w.raw.Create(t.Context(), object))
	for range 60 {
		w.operate(0)
	}
	quorum := meta.FindStatusCondition(w.get().Status.Conditions, v1alpha1.EtcdQuorum)
	if quorum == nil || quorum.Reason != v1alpha1.ReasonQuorumLost {
		t.Errorf("EtcdQuorum is %+v", quorum)
	}
	if got := fmt.Sprint(w.etcd.list()); got != members {
		t.Errorf("the members are %s, want %s", got, members)
	}
}
