package storageversions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/go-cmp/cmp"
	"k8s.io/api/apiserverinternal/v1alpha1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	internalv1alpha1 "k8s.io/client-go/kubernetes/typed/apiserverinternal/v1alpha1"
	clienttesting "k8s.io/client-go/testing"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/resource"
)

// stored returns a definition with the given versions, the first of which is the storage version.
func stored(group, plural, path string, versions ...string) *resource.Definition {
	d := &resource.Definition{
		Group: group, Plural: plural, Kind: plural, StoragePath: path,
		StorageVersion: schema.GroupVersion{Group: group, Version: versions[0]},
	}
	for _, name := range versions {
		d.Versions = append(d.Versions, &resource.Version{
			Name: name, Endpoints: map[string]*resource.Endpoint{"": {Verbs: []string{"get", "watch"}}},
		})
	}
	return d
}

// TestResources checks that resources with the same stored objects are one Resource, and that resources without stored
// objects are left out.
func TestResources(t *testing.T) {
	t.Parallel()
	review := stored("", "reviews", "reviews", "v1")
	review.Versions[0].Endpoints[""].Verbs = []string{"create"}
	shared := stored("events.k8s.io", "events", "events", "v1")
	shared.StorageVersion = schema.GroupVersion{Version: "v1"}
	got := Resources([]*resource.Definition{
		stored("apps", "deployments", "deployments", "v1", "v1beta1"), shared, stored("", "events", "events", "v1"), review,
	}, func(kind schema.GroupKind) []schema.GroupVersion {
		if kind.Group == "apps" {
			return []schema.GroupVersion{{Group: "apps", Version: "v1"}, {Group: "apps", Version: "v1beta2"}}
		}
		return []schema.GroupVersion{{Group: kind.Group, Version: "v1"}}
	})
	events := schema.GroupResource{Resource: "events"}
	deployments := schema.GroupResource{Group: "apps", Resource: "deployments"}
	want := []Resource{{
		GroupResource: events, Aliases: []schema.GroupResource{{Group: "events.k8s.io", Resource: "events"}, events},
		Encoding: "v1", Decodable: []string{"v1", "events.k8s.io/v1"}, Served: []string{"v1"},
	}, {
		GroupResource: deployments, Aliases: []schema.GroupResource{deployments}, Encoding: "apps/v1",
		Decodable: []string{"apps/v1", "apps/v1beta2", "apps/v1beta1"}, Served: []string{"apps/v1", "apps/v1beta1"},
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(- want, + got)\n%s", diff)
	}
	if names := []string{got[0].Name(), got[1].Name()}; !slices.Equal(names, []string{"core.events", "apps.deployments"}) {
		t.Errorf("got the names %v", names)
	}
}

// recorder returns a recorder of two resources.
func recorder() *Recorder {
	r := &Recorder{}
	r.SetResources(Resources([]*resource.Definition{
		stored("", "pods", "pods", "v1"), stored("apps", "deployments", "deployments", "v1"),
	}, func(kind schema.GroupKind) []schema.GroupVersion {
		return []schema.GroupVersion{{Group: kind.Group, Version: "v1"}}
	}))
	return r
}

// pods and deployments return the error of a write of a resource.
func pods(r *Recorder) error {
	return r.permit(write{verb: "update", resource: schema.GroupResource{Resource: "pods"}})
}

func deployments(r *Recorder) error {
	return r.permit(write{verb: "update", resource: schema.GroupResource{Group: "apps", Resource: "deployments"}})
}

// TestRun records storage versions in existing and new objects. If the record of a resource fails, Run must repeat it,
// and only writes of that resource must wait.
func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		other := v1alpha1.ServerStorageVersion{APIServerID: "other", EncodingVersion: "v1"}
		former := v1alpha1.ServerStorageVersion{APIServerID: "self", EncodingVersion: "v0"}
		objects := fake.NewClientset(&v1alpha1.StorageVersion{
			ObjectMeta: metav1.ObjectMeta{Name: "core.pods"},
			Status:     v1alpha1.StorageVersionStatus{StorageVersions: []v1alpha1.ServerStorageVersion{other, former}},
		})
		// Sleeping in the bubble does not order accesses of memory for the race detector, so that both are atomic.
		var broken atomic.Bool
		var done atomic.Int32
		broken.Store(true)
		objects.PrependReactor("create", "storageversions", func(clienttesting.Action) (bool, runtime.Object, error) {
			return broken.Load(), nil, errors.New("broken")
		})
		client := objects.InternalV1alpha1().StorageVersions()
		r := recorder()
		if pods(r) == nil || deployments(r) == nil {
			t.Error("writes are permitted before storage versions are recorded")
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() {
			ended <- r.Run(ctx, Options{
				Client: client, ServerID: "self", Clock: clock.RealClock{}, Logger: logr.Discard(),
			}, func() { done.Add(1) })
		}()
		synctest.Wait()
		if err := deployments(r); err == nil || !strings.Contains(err.Error(), "last seen error: broken") {
			t.Errorf("the resource that is not recorded: %v", err)
		}
		if err := pods(r); err != nil || done.Load() != 0 {
			t.Errorf("the resource that is recorded: %v; done %d times", err, done.Load())
		}
		broken.Store(false)
		<-time.After(retry)
		synctest.Wait()
		if err := deployments(r); err != nil || done.Load() != 1 || !r.completed.Load() {
			t.Errorf("%v; done %d times", err, done.Load())
		}
		expectRecord(t, client, "core.pods", "v1", other,
			v1alpha1.ServerStorageVersion{APIServerID: "self", EncodingVersion: "v1", DecodableVersions: []string{"v1"},
				ServedVersions: []string{"v1"}})
		own := v1alpha1.ServerStorageVersion{
			APIServerID: "self", EncodingVersion: "apps/v1", DecodableVersions: []string{"apps/v1"},
			ServedVersions: []string{"apps/v1"},
		}
		expectRecord(t, client, "apps.deployments", "apps/v1", own)

		if err := client.Delete(ctx, "apps.deployments", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		<-time.After(refresh)
		synctest.Wait()
		expectRecord(t, client, "apps.deployments", "apps/v1", own)
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

func expectRecord(
	t *testing.T, client internalv1alpha1.StorageVersionInterface, name, common string,
	entries ...v1alpha1.ServerStorageVersion,
) {
	t.Helper()
	got, err := client.Get(t.Context(), name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(entries, got.Status.StorageVersions); diff != "" {
		t.Errorf("%s: (- want, + got)\n%s", name, diff)
	}
	if c := got.Status.CommonEncodingVersion; c == nil || *c != common || len(got.Status.Conditions) != 1 {
		t.Errorf("%s: got the status %+v", name, got.Status)
	}
}

// TestRefreshFails checks that writes are still permitted if a later repair of the records fails.
func TestRefreshFails(t *testing.T) {
	t.Parallel()
	r := recorder()
	options := Options{
		Client: fake.NewClientset().InternalV1alpha1().StorageVersions(), ServerID: "self", Logger: logr.Discard(),
	}
	if len(r.recordEach(t.Context(), options, r.resources)) > 0 {
		t.Fatal("recording fails")
	}
	failing := fake.NewClientset()
	failing.PrependReactor("get", "*", func(clienttesting.Action) (bool, runtime.Object, error) {
		return true, nil, fmt.Errorf("etcd is unavailable")
	})
	options.Client = failing.InternalV1alpha1().StorageVersions()
	failed := r.recordEach(t.Context(), options, r.resources)
	if len(failed) != len(r.resources) || pods(r) != nil || deployments(r) != nil {
		t.Error("writes are refused again")
	}
}
