package volumes

import (
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// observe returns the observed state of the stored cluster.
func observe(h *ownedtest.Host) *observed.State {
	state, err := observed.Read(h.Context(), h.API, h.Cluster(), "")
	h.Must(err)
	return state
}

// withClaim returns a host with a cluster and the claim of its member demo-0.
func withClaim(t *testing.T, changes ...func(*v1alpha1.ApiServerCluster)) *ownedtest.Host {
	t.Helper()
	cluster := ownedtest.NewCluster(changes...)
	h := ownedtest.NewHost(t, cluster)
	h.Must(h.Create(t.Context(), cluster, desired.Claim(cluster, "demo-0")))
	return h
}

// TestExpand checks the size of claims, and the size for which the quota of etcd is computed.
func TestExpand(t *testing.T) {
	forbidden := apierrors.NewForbidden(schema.GroupResource{Resource: "persistentvolumeclaims"}, "demo-0", nil)
	for name, test := range map[string]struct {
		size     string
		refuse   error
		smallest string
		rejected bool
		err      bool
		events   int
	}{
		"unchanged":   {"8Gi", nil, "8Gi", false, false, 0},
		"larger":      {"12Gi", nil, "12Gi", false, false, 1},
		"smaller":     {"4Gi", nil, "4Gi", false, false, 0},
		"rejected":    {"12Gi", forbidden, "8Gi", true, false, 0},
		"unavailable": {"12Gi", ownedtest.ErrUnavailable, "8Gi", false, true, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := withClaim(t, func(c *v1alpha1.ApiServerCluster) { c.Spec.Storage.Size = resource.MustParse("8Gi") })
			h.Events()
			h.Refuse = func(string) error { return test.refuse }
			state := observe(h)
			state.Cluster.Spec.Storage.Size = resource.MustParse(test.size)
			smallest, rejected, err := Expand(t.Context(), h.Objects, state)
			want := resource.MustParse(test.smallest)
			if smallest != want.Value() || (rejected != nil) != test.rejected || (err != nil) != test.err {
				t.Errorf("%d, %v, %v", smallest, rejected, err)
			}
			if events := h.Events(); len(events) != test.events {
				t.Errorf("events %q", events)
			}
		})
	}
}

// TestRelabel checks that the claim of a member is found again after its labels were removed, except in a paused
// cluster and if it has another owner.
func TestRelabel(t *testing.T) {
	inStatus := func(c *v1alpha1.ApiServerCluster) {
		c.Status.Members = []v1alpha1.MemberStatus{{Name: "demo-0"}, {Name: "demo-1"}}
	}
	for name, test := range map[string]struct {
		change func(*v1alpha1.ApiServerCluster)
		claim  func(*corev1.PersistentVolumeClaim)
		found  int
	}{
		"labeled":          {inStatus, func(*corev1.PersistentVolumeClaim) {}, 1},
		"without labels":   {inStatus, func(c *corev1.PersistentVolumeClaim) { c.Labels = nil }, 1},
		"of another owner": {inStatus, func(c *corev1.PersistentVolumeClaim) { c.Labels, c.OwnerReferences = nil, nil }, 0},
		"paused": {func(c *v1alpha1.ApiServerCluster) {
			inStatus(c)
			c.Annotations = map[string]string{
				v1alpha1.PausedUntilAnnotation: ownedtest.Now().Add(time.Hour).Format(time.RFC3339),
			}
		}, func(c *corev1.PersistentVolumeClaim) { c.Labels = nil }, 0},
	} {
		t.Run(name, func(t *testing.T) {
			h := withClaim(t, test.change)
			ownedtest.Change(h, "demo-0", &corev1.PersistentVolumeClaim{}, test.claim)
			state := observe(h)
			h.Must(Relabel(t.Context(), h.Objects, state, ownedtest.Now()))
			if len(state.Claims) != test.found {
				t.Errorf("claims %v", state.Claims)
			}
		})
	}
	start := func(t *testing.T) *ownedtest.Host {
		h := withClaim(t, inStatus)
		ownedtest.Change(h, "demo-0", &corev1.PersistentVolumeClaim{}, func(c *corev1.PersistentVolumeClaim) {
			c.Labels = nil
		})
		return h
	}
	ownedtest.FailEach(t, start, func(h *ownedtest.Host) error {
		return Relabel(h.Context(), h.Objects, observe(h), ownedtest.Now())
	})
}

// TestRecord lets each request fail with which the facts about a member are recorded, and checks them.
func TestRecord(t *testing.T) {
	var h *ownedtest.Host
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host {
		h = withClaim(t, func(c *v1alpha1.ApiServerCluster) {
			c.Annotations = map[string]string{v1alpha1.ReplaceMembersAnnotation: "demo-7, demo-8"}
		})
		return h
	}, func(h *ownedtest.Host) error {
		return Record(h.Context(), h.Objects, observe(h).WithMembers([]etcd.Member{{
			Name: "demo-0", ID: 16, Started: true, Healthy: true,
		}}, nil))
	})
	claim := &corev1.PersistentVolumeClaim{}
	if h.Read("demo-0", claim); claim.Annotations[desired.MemberIDAnnotation] != "10" {
		t.Errorf("annotations %v", claim.Annotations)
	}
	if len(h.Cluster().Annotations) != 0 {
		t.Errorf("the request to replace members that are gone stays: %v", h.Cluster().Annotations)
	}
}

// TestClaims checks that a claim is deleted or marked only as it was observed, and that only a marked one is released.
func TestClaims(t *testing.T) {
	h := withClaim(t)
	h.Must(Delete(t.Context(), h.Objects, observe(h), "demo-7"))
	h.Must(Keep(t.Context(), h.Objects, observe(h), "demo-7", "reason"))
	outdated := observe(h)
	h.Must(Release(t.Context(), h.Objects, outdated, "demo-0"))
	h.Must(Keep(t.Context(), h.Objects, observe(h), "demo-0", "demo-1 was not compared"))
	if err := Keep(t.Context(), h.Objects, outdated, "demo-0", "another reason"); !owned.Stale(err) {
		t.Errorf("an outdated claim was marked: %v", err)
	}
	h.Must(Release(t.Context(), h.Objects, observe(h), "demo-0"))
	claim := &corev1.PersistentVolumeClaim{}
	h.Read("demo-0", claim)
	if desired.Owns(h.Cluster(), claim) || claim.Annotations[desired.UnprovenAnnotation] != "demo-1 was not compared" {
		t.Errorf("released %+v", claim.ObjectMeta)
	}
	h = withClaim(t)
	h.Refuse = func(string) error { return ownedtest.ErrUnavailable }
	if err := Delete(t.Context(), h.Objects, observe(h), "demo-0"); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("a failed deletion: %v", err)
	}
	h.Refuse = nil
	h.Must(Delete(t.Context(), h.Objects, observe(h), "demo-0"))
	if h.Exists("demo-0", claim) {
		t.Error("the claim was not deleted")
	}
}

// TestReplaced checks that a claim with a member's name but another UID is recognized as a replacement.
func TestReplaced(t *testing.T) {
	cluster := ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
		c.Status.Members = []v1alpha1.MemberStatus{{Name: "demo-0", Volume: "a"}, {Name: "demo-1"}}
	})
	for text, want := range map[string]bool{"demo-0/a": false, "demo-0/b": true, "demo-1/b": false, "demo-2/b": false} {
		name, uid, _ := strings.Cut(text, "/")
		claim := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(uid)}}
		if Replaced(cluster, claim) != want {
			t.Errorf("%s: replaced %t", text, !want)
		}
	}
}
