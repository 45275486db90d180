package retention

import (
	"errors"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// retaining is a change of a cluster: its data outlives it.
func retaining(c *v1alpha1.ApiServerCluster) { c.Spec.Deletion.Policy = v1alpha1.RetainData }

// adopting is a change of a cluster: it continues with the data of the deleted cluster demo.
func adopting(c *v1alpha1.ApiServerCluster) {
	c.UID, c.Spec.Adopt = "next", &v1alpha1.Adoption{ClusterUID: "demo"}
}

// running returns a host with a cluster that has a member and key Secrets.
func running(t *testing.T, changes ...func(*v1alpha1.ApiServerCluster)) *ownedtest.Host {
	t.Helper()
	cluster := ownedtest.NewCluster(append(changes, ownedtest.Bootstrapped)...)
	h := ownedtest.NewHost(t, cluster)
	claim := desired.Claim(cluster, "demo-0")
	claim.Status.Phase = corev1.ClaimBound
	h.Must(h.Create(t.Context(), cluster, claim))
	for _, name := range desired.KeySecrets(cluster) {
		h.Must(h.Create(t.Context(), cluster, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: name, Labels: desired.Labels(cluster),
		}}))
	}
	return h
}

// retained returns a host with the data of the deleted cluster demo, and a cluster that adopts it.
func retained(t *testing.T, changes ...func(*v1alpha1.ApiServerCluster)) *ownedtest.Host {
	t.Helper()
	h := running(t, retaining)
	h.Must(Retain(t.Context(), h.Objects, h.Cluster()))
	h.Delete("demo", &v1alpha1.ApiServerCluster{})
	h.CreateAll(ownedtest.NewCluster(append([]func(*v1alpha1.ApiServerCluster){adopting}, changes...)...))
	h.Events()
	return h
}

// adopt executes Adopt on the stored cluster.
func adopt(h *ownedtest.Host) error {
	return Adopt(h.Context(), h.Objects, h.Cluster(), ownedtest.Now())
}

// owners describes how many durable objects of the cluster have an owner reference, and how many are retained.
func owners(h *ownedtest.Host) (owned, marked int) {
	objects := []metav1.Object{&corev1.PersistentVolumeClaim{}}
	h.Read("demo-0", objects[0].(*corev1.PersistentVolumeClaim))
	for _, name := range desired.KeySecrets(ownedtest.NewCluster()) {
		if secret := (&corev1.Secret{}); h.Exists(name, secret) {
			objects = append(objects, secret)
		}
	}
	for _, object := range objects {
		if metav1.GetControllerOf(object) != nil {
			owned++
		}
		if desired.RetainedFrom(object) != "" {
			marked++
		}
	}
	return owned, marked
}

// belongs reports whether the stored cluster owns the volume.
func belongs(h *ownedtest.Host) bool {
	claim := &corev1.PersistentVolumeClaim{}
	h.Read("demo-0", claim)
	return desired.Owns(h.Cluster(), claim)
}

// TestOwnership checks that durable objects have an owner reference exactly if the garbage collector may delete them,
// also after a change of the spec, and that references are removed although the cluster may not be changed.
func TestOwnership(t *testing.T) {
	h := running(t)
	all, _ := owners(h)
	for _, test := range []struct {
		policy    v1alpha1.DeletionPolicy
		mayChange bool
		want      int
	}{{v1alpha1.RetainData, false, 0}, {v1alpha1.DeleteData, false, 0}, {v1alpha1.DeleteData, true, all}} {
		cluster := h.Cluster()
		cluster.Spec.Deletion.Policy = test.policy
		claim := &corev1.PersistentVolumeClaim{}
		h.Read("demo-0", claim)
		state := &observed.State{Cluster: cluster, Claims: []corev1.PersistentVolumeClaim{*claim}}
		h.Must(EnsureOwnership(t.Context(), h.Objects, state, test.mayChange))
		if got, _ := owners(h); got != test.want {
			t.Errorf("%+v: %d objects have an owner", test, got)
		}
	}
}

// TestRetainAndAdopt follows the data of a cluster that is deleted to the cluster that adopts it.
func TestRetainAndAdopt(t *testing.T) {
	h := running(t, retaining)
	for range 2 {
		h.Must(Retain(t.Context(), h.Objects, h.Cluster()))
	}
	if _, marked := owners(h); marked == 0 || !h.Exists("demo-"+desired.RecordSecret, &corev1.Secret{}) {
		t.Errorf("%d objects are retained", marked)
	}
	if events := h.Events(); len(events) != 1 || !strings.Contains(events[0], "Retained 1 volumes") {
		t.Errorf("events %q", events)
	}
	h = retained(t)
	for range 2 {
		h.Must(adopt(h))
	}
	if _, marked := owners(h); !belongs(h) || marked != 0 {
		t.Errorf("the cluster owns the volume: %t, %d objects are retained", belongs(h), marked)
	}
	if cluster := h.Cluster(); !cluster.Adopted() || !cluster.Bootstrapped() {
		t.Errorf("status %+v", cluster.Status)
	}
	if h.Exists("demo-"+desired.RecordSecret, &corev1.Secret{}) {
		t.Error("the record was not deleted")
	}
	if events := h.Events(); len(events) != 1 || !strings.Contains(events[0], "Adopted 1 volumes") {
		t.Errorf("events %q", events)
	}
}

// TestImpossibleAdoption checks the error for data that cannot be adopted.
func TestImpossibleAdoption(t *testing.T) {
	for name, test := range map[string]struct {
		prepare func(h *ownedtest.Host)
		want    string // "": the adoption succeeds
	}{
		"complete": {func(*ownedtest.Host) {}, ""},
		"no record": {func(h *ownedtest.Host) {
			h.Delete("demo-"+desired.RecordSecret, &corev1.Secret{})
		}, "demo-" + desired.RecordSecret},
		"unreadable record": {func(h *ownedtest.Host) {
			ownedtest.Change(h, "demo-"+desired.RecordSecret, &corev1.Secret{}, func(s *corev1.Secret) { s.Data = nil })
		}, "demo-" + desired.RecordSecret},
		"record of others": {func(h *ownedtest.Host) {
			ownedtest.Change(h, "demo-"+desired.RecordSecret, &corev1.Secret{}, func(s *corev1.Secret) {
				s.Labels[desired.RetainedLabel] = "x"
			})
		}, ""},
		"volumes are gone": {func(h *ownedtest.Host) {
			h.Delete("demo-0", &corev1.PersistentVolumeClaim{})
		}, "the volumes of the deleted cluster are gone"},
		"a Secret is missing": {func(h *ownedtest.Host) {
			h.Delete("demo-client-ca", &corev1.Secret{})
		}, "Secret demo-client-ca is missing"},
		"a missing Secret may be replaced": {func(h *ownedtest.Host) {
			h.Delete("demo-client-ca", &corev1.Secret{})
			ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
				c.Annotations = map[string]string{v1alpha1.ReplaceSecretsAnnotation: "demo-client-ca"}
			})
		}, ""},
		"encryption keys are missing": {func(h *ownedtest.Host) {
			h.Delete("demo-"+desired.EncryptionSecret, &corev1.Secret{})
		}, "with which stored objects are encrypted, is missing"},
		"a Secret has another owner": {func(h *ownedtest.Host) {
			ownedtest.Change(h, "demo-client-ca", &corev1.Secret{}, func(s *corev1.Secret) {
				s.Labels, s.Annotations = nil, nil
			})
		}, "Secret demo-client-ca has another owner"},
		"another mode": {func(h *ownedtest.Host) {
			ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
				c.Spec.Mode = v1alpha1.ModeExtension
			})
		}, "another mode or kind of etcd"},
		"a cluster that has started": {func(h *ownedtest.Host) {
			ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
				c.Status.Membership = &v1alpha1.Membership{}
			})
		}, "none"},
		"nothing to adopt": {func(h *ownedtest.Host) {
			ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) { c.Spec.Adopt = nil })
		}, "none"},
	} {
		t.Run(name, func(t *testing.T) {
			h := retained(t)
			test.prepare(h)
			err := adopt(h)
			if name == "record of others" {
				if err == nil {
					t.Error("a record of another cluster was used")
				}
				return
			}
			if test.want == "none" {
				if _, marked := owners(h); err != nil || marked == 0 {
					t.Errorf("%d objects are retained, %v", marked, err)
				}
				return
			}
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
			if h.Cluster().Adopted() != (test.want == "") {
				t.Errorf("adopted: %t", h.Cluster().Adopted())
			}
		})
	}
}

// TestLostAdoption checks that an adoption is recorded again if the status was lost after it.
func TestLostAdoption(t *testing.T) {
	h := retained(t)
	for range 2 {
		h.Must(adopt(h))
	}
	ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
		c.Status = v1alpha1.ApiServerClusterStatus{}
	})
	h.Must(adopt(h))
	if !h.Cluster().Adopted() {
		t.Error("the adoption was not recorded again")
	}
}

// TestRevertAdoption checks that a cluster that is deleted before its adoption is complete leaves the data retained.
func TestRevertAdoption(t *testing.T) {
	h := retained(t)
	h.Refuse = func(request string) error {
		if strings.HasPrefix(request, "status") {
			return ownedtest.ErrUnavailable
		}
		return nil
	}
	if err := adopt(h); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("the status cannot be written: %v", err)
	}
	h.Refuse = nil
	h.Must(RevertAdoption(t.Context(), h.Objects, h.Cluster(), ownedtest.Now()))
	if got, marked := owners(h); got != 0 || marked == 0 {
		t.Errorf("%d objects have an owner, %d are retained", got, marked)
	}
	h.Must(adopt(h))
	h.Must(RevertAdoption(t.Context(), h.Objects, h.Cluster(), ownedtest.Now()))
	if _, marked := owners(h); !belongs(h) || marked != 0 {
		t.Errorf("after the adoption the cluster owns the volume: %t, %d objects are retained", belongs(h), marked)
	}
}

// TestRevertAdoptionWithoutRecord checks the data of a cluster whose adoption is not recorded and whose record is gone.
func TestRevertAdoptionWithoutRecord(t *testing.T) {
	for name, change := range map[string]func(*v1alpha1.ApiServerCluster){
		"retaining": retaining, "deleting": func(*v1alpha1.ApiServerCluster) {},
	} {
		h := retained(t, change)
		h.Must(adopt(h))
		ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
			c.Status = v1alpha1.ApiServerClusterStatus{}
		})
		h.Delete("demo-"+desired.RecordSecret, &corev1.Secret{})
		h.Must(RevertAdoption(t.Context(), h.Objects, h.Cluster(), ownedtest.Now()))
		_, marked := owners(h)
		if adopted := h.Cluster().Adopted(); adopted != (name == "retaining") || (marked > 0) == adopted {
			t.Errorf("%s: adopted %t, %d objects are retained", name, adopted, marked)
		}
	}
}

// TestHasData checks how the operator knows that a cluster may have stored something.
func TestHasData(t *testing.T) {
	member := func(edit func(*corev1.Pod)) *corev1.Pod {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-0", Labels: desired.Labels(ownedtest.NewCluster())},
		}
		pod.Labels[desired.RoleLabel] = desired.RoleMember
		pod.OwnerReferences = []metav1.OwnerReference{
			*metav1.NewControllerRef(ownedtest.NewCluster(), v1alpha1.GroupVersion.WithKind("ApiServerCluster")),
		}
		edit(pod)
		return pod
	}
	for name, test := range map[string]struct {
		change func(*v1alpha1.ApiServerCluster)
		pod    *corev1.Pod
		claim  map[string]string // annotations of a claim; nil: no claim
		want   bool
	}{
		"new": {want: false},
		"external etcd": {
			change: func(c *v1alpha1.ApiServerCluster) { c.Spec.Etcd.External = &v1alpha1.ExternalEtcd{} }, want: true,
		},
		"bootstrapped":  {change: ownedtest.Bootstrapped, want: true},
		"claim":         {claim: map[string]string{}, want: false},
		"started claim": {claim: map[string]string{desired.MemberIDAnnotation: "7"}, want: true},
		"new pod":       {pod: member(func(*corev1.Pod) {}), want: false},
		"started pod": {pod: member(func(p *corev1.Pod) {
			p.Status.ContainerStatuses = []corev1.ContainerStatus{{
				Name: desired.ServerContainer, RestartCount: 1, State: corev1.ContainerState{
					Running: &corev1.ContainerStateRunning{},
				},
			}}
		}), want: true},
	} {
		t.Run(name, func(t *testing.T) {
			cluster := ownedtest.NewCluster()
			if test.change != nil {
				test.change(cluster)
			}
			h := ownedtest.NewHost(t, cluster)
			if test.pod != nil {
				h.CreateAll(test.pod.DeepCopy())
			}
			if test.claim != nil {
				claim := desired.Claim(cluster, "demo-0")
				claim.Annotations = test.claim
				h.Must(h.Create(t.Context(), cluster, claim))
			}
			if got, err := HasData(t.Context(), h.Objects, cluster); err != nil || got != test.want {
				t.Errorf("has data: %t, %v", got, err)
			}
		})
	}
}

// TestLostWritesAreKept checks that claims with the only copy of acknowledged writes outlive a cluster that does not
// retain its data, and others do not.
func TestLostWritesAreKept(t *testing.T) {
	for annotation, kept := range map[string]bool{
		"": false, desired.LostWritesAnnotation: true, desired.UnprovenAnnotation: true,
	} {
		h := running(t)
		ownedtest.Change(h, "demo-0", &corev1.PersistentVolumeClaim{}, func(c *corev1.PersistentVolumeClaim) {
			if annotation != "" {
				c.Annotations = map[string]string{annotation: "revision 7"}
			}
		})
		h.Must(Retain(t.Context(), h.Objects, h.Cluster()))
		claim := &corev1.PersistentVolumeClaim{}
		if h.Read("demo-0", claim); desired.Owns(h.Cluster(), claim) == kept || len(h.Events()) > 0 != kept {
			t.Errorf("%q: owned by the cluster: %t", annotation, desired.Owns(h.Cluster(), claim))
		}
	}
}

// TestForeignRecord checks that a cluster is not retained into a record of another owner.
func TestForeignRecord(t *testing.T) {
	h := running(t, retaining)
	h.CreateAll(&corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo-" + desired.RecordSecret}})
	if err := Retain(t.Context(), h.Objects, h.Cluster()); !errors.Is(err, owned.ErrForeign) {
		t.Errorf("error %v", err)
	}
	if _, marked := owners(h); marked != 0 {
		t.Errorf("%d objects are retained without a record", marked)
	}
}

// TestFailedRequests lets each request fail with which data is retained, adopted and returned.
func TestFailedRequests(t *testing.T) {
	retain := func(h *ownedtest.Host) error { return Retain(h.Context(), h.Objects, h.Cluster()) }
	for _, test := range []struct {
		start func(*testing.T) *ownedtest.Host
		step  func(*ownedtest.Host) error
	}{
		{func(t *testing.T) *ownedtest.Host { return running(t, retaining) }, retain},
		{func(t *testing.T) *ownedtest.Host { return running(t) }, retain},
		{func(t *testing.T) *ownedtest.Host { return retained(t) }, adopt},
		{func(t *testing.T) *ownedtest.Host { return retained(t) }, func(h *ownedtest.Host) error {
			return RevertAdoption(h.Context(), h.Objects, h.Cluster(), ownedtest.Now())
		}},
		{func(t *testing.T) *ownedtest.Host { return running(t) }, func(h *ownedtest.Host) error {
			claim, cluster := &corev1.PersistentVolumeClaim{}, h.Cluster()
			h.Read("demo-0", claim)
			cluster.Spec.Deletion.Policy = v1alpha1.RetainData
			return EnsureOwnership(h.Context(), h.Objects, &observed.State{
				Cluster: cluster, Claims: []corev1.PersistentVolumeClaim{*claim},
			}, true)
		}},
		{func(t *testing.T) *ownedtest.Host { return ownedtest.NewHost(t, ownedtest.NewCluster()) },
			func(h *ownedtest.Host) error {
				_, err := HasData(h.Context(), h.Objects, h.Cluster())
				return err
			}},
	} {
		ownedtest.FailEach(t, test.start, test.step)
	}
}
