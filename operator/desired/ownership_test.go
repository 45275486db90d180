package desired

import (
	"maps"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"

	"quorate.dev/operator/api/v1alpha1"
)

// withUID returns a cluster of the name demo. Clusters that exist one after the other differ only in their UIDs.
func withUID(uid types.UID) *v1alpha1.ApiServerCluster {
	cluster := demo(nil)
	cluster.UID = uid
	return cluster
}

func controlledBy(uid types.UID) []metav1.OwnerReference {
	return []metav1.OwnerReference{{UID: uid, Controller: ptr.To(true)}}
}

func TestOwns(t *testing.T) {
	for name, c := range map[string]struct {
		cluster    types.UID
		owners     []metav1.OwnerReference
		annotation string
		want       bool
	}{
		"controller":                     {"one", controlledBy("one"), "", true},
		"controller of a former cluster": {"two", controlledBy("one"), "", false},
		"annotation":                     {"one", nil, "one", true},
		"annotation of a former cluster": {"two", nil, "one", false},
		"copied annotation on an object of another cluster": {"one", controlledBy("two"), "one", false},
		"owner that is no controller":                       {"one", []metav1.OwnerReference{{UID: "one"}}, "", false},
		"copied labels":                                     {"one", nil, "", false},
		"cluster without a UID":                             {"", nil, "", false},
	} {
		object := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Labels: Labels(demo(nil)), OwnerReferences: c.owners,
			Annotations: map[string]string{ClusterUIDAnnotation: c.annotation},
		}}
		if got := Owns(withUID(c.cluster), object); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// TestOwnersOfRetainedData follows the claim of a member: its cluster is deleted and retains it, another cluster adopts
// it, and releases it in the end. In each step exactly one cluster, or none, may delete the claim.
func TestOwnersOfRetainedData(t *testing.T) {
	former, next := withUID("former"), withUID("next")
	claim := Claim(former, "demo-0")
	claim.Annotations = map[string]string{"example.com/note": "keep"}
	claim.OwnerReferences = append(controlledBy("former"), metav1.OwnerReference{UID: "auditor"})
	labels := maps.Clone(claim.Labels)
	for _, step := range []struct {
		name         string
		do           func()
		owner        *v1alpha1.ApiServerCluster
		retainedFrom string
	}{
		{"created", func() {}, former, ""},
		{"detached", func() { Detach(former, claim) }, former, ""},
		{"retained", func() { Retain(former, claim) }, former, "former"},
		{"adopted", func() { Adopt(next, claim) }, next, ""},
		{"released", func() { Release(next, claim) }, nil, ""},
	} {
		step.do()
		for _, cluster := range []*v1alpha1.ApiServerCluster{former, next} {
			if got := Owns(cluster, claim); got != (cluster == step.owner) {
				t.Errorf("%s: cluster %s owns the claim: %v", step.name, cluster.UID, got)
			}
		}
		if got := RetainedFrom(claim); got != step.retainedFrom {
			t.Errorf("%s: retained from %q, want %q", step.name, got, step.retainedFrom)
		}
		if claim.Annotations["example.com/note"] != "keep" ||
			claim.OwnerReferences[len(claim.OwnerReferences)-1].UID != "auditor" {
			t.Errorf("%s: the user's annotation or owner is missing: %+v", step.name, claim.ObjectMeta)
		}
		// The garbage collector would delete a claim with a reference to a cluster that does not exist any more.
		if step.name != "created" && len(claim.OwnerReferences) != 1 {
			t.Errorf("%s: got owners %+v", step.name, claim.OwnerReferences)
		}
	}
	if claim.Annotations[FormerMemberAnnotation] != "next" || !maps.Equal(claim.Labels, labels) {
		t.Errorf("got %+v", claim.ObjectMeta)
	}
	unlabeled := &corev1.Secret{}
	MarkRetained("former", unlabeled)
	if RetainedFrom(unlabeled) != "former" || !Owns(former, unlabeled) {
		t.Errorf("an object without labels: got %+v", unlabeled.ObjectMeta)
	}
}

// TestDurable checks which objects outlive a cluster that retains its data: volumes, and the keys without which the
// volumes or the credentials of clients are useless. The operator can issue all other certificates again.
func TestDurable(t *testing.T) {
	for _, c := range []struct {
		name    string
		edit    func(*v1alpha1.ApiServerClusterSpec)
		durable []string
		others  []string
	}{
		{
			"embedded etcd", nil,
			[]string{"serving-ca", "client-ca", "front-proxy-ca", "etcd-peer-ca", "etcd-client-ca", "service-account",
				"encryption-keys", "retained"},
			[]string{"serving", "admin", "admin-kubeconfig", "etcd-peer", "configuration", "backup-signing", "host"},
		},
		{
			"external etcd", external, []string{"serving-ca", "client-ca", "front-proxy-ca", "service-account"},
			[]string{"etcd-peer-ca", "etcd-client-ca"},
		},
		{"mode Extension", extend, []string{"serving-ca", "client-ca", "etcd-peer-ca"}, []string{"front-proxy-ca"}},
	} {
		cluster := demo(c.edit)
		for want, suffixes := range map[bool][]string{true: c.durable, false: c.others} {
			for _, suffix := range suffixes {
				name := metav1.ObjectMeta{Name: "demo-" + suffix}
				if got := Durable(cluster, &corev1.Secret{ObjectMeta: name}); got != want {
					t.Errorf("%s: Secret %s is durable: %v", c.name, name.Name, got)
				}
				if Durable(cluster, &corev1.ConfigMap{ObjectMeta: name}) {
					t.Errorf("%s: ConfigMap %s is durable", c.name, name.Name)
				}
			}
		}
		if !Durable(cluster, Claim(cluster, "demo-0")) {
			t.Errorf("%s: a claim is not durable", c.name)
		}
	}
}

// TestDetached checks for which deletion policies the garbage collector of the hosting cluster must not delete the
// data.
func TestDetached(t *testing.T) {
	for name, c := range map[string]struct {
		deletion v1alpha1.Deletion
		want     bool
	}{
		"default":      {v1alpha1.Deletion{}, false},
		"protected":    {v1alpha1.Deletion{Protected: true}, true},
		"final backup": {v1alpha1.Deletion{FinalBackup: &v1alpha1.FinalBackup{}}, true},
		"retained":     {v1alpha1.Deletion{Policy: v1alpha1.RetainData}, true},
	} {
		if got := Detached(demo(func(s *v1alpha1.ApiServerClusterSpec) { s.Deletion = c.deletion })); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}

// TestAnnotatedClaimsAreKept checks that a claim with the only copy of acknowledged writes is recognized by either
// annotation.
func TestAnnotatedClaimsAreKept(t *testing.T) {
	for annotation, want := range map[string]bool{
		LostWritesAnnotation: true, UnprovenAnnotation: true, FormerMemberAnnotation: false,
	} {
		claim := Claim(demo(nil), "demo-0")
		claim.Annotations = map[string]string{annotation: "revision 7"}
		if got := Kept(claim); got != want {
			t.Errorf("%s: got %v, want %v", annotation, got, want)
		}
	}
}
