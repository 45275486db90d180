package autoregister_test

import (
	"context"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/controllers/autoregister"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
)

// registrar is a replica with a controller.
type registrar struct {
	*builtintest.Server
	*autoregister.Controller
	stop func()
}

// newRegistrar returns a replica with existing definitions.
func newRegistrar(
	t *testing.T, client *clientv3.Client, definitions ...*apiextensions.CustomResourceDefinition,
) *registrar {
	t.Helper()
	r := newUnknowingRegistrar(t, client)
	for _, d := range definitions {
		r.SetDefinition(d.Name, d)
	}
	r.DefinitionsKnown()
	return r
}

// newUnknowingRegistrar returns a replica that does not know the definitions yet.
func newUnknowingRegistrar(t *testing.T, client *clientv3.Client) *registrar {
	t.Helper()
	s := builtintest.NewServerOn(t, client, builtin.Options{}, nil)
	var served []schema.GroupVersion
	for _, gv := range s.Catalog.Current().GroupVersions() {
		served = append(served, schema.GroupVersion{Group: gv.Group, Version: gv.Version})
	}
	return &registrar{Server: s, Controller: autoregister.New(autoregister.Options{
		Objects: s, BuiltIn: served, Clock: clock.RealClock{}, Logger: logr.Discard(),
		Follow: func(ctx context.Context, handle func(string, runtime.Object), synced func()) error {
			return s.Follow(ctx, resource.Key{GroupResource: autoregister.Resource},
				follow.Options{Objects: handle, Synced: synced})
		},
	})}
}

// start runs replicas until the test ends and waits for their first sync.
func start(t *testing.T, replicas ...*registrar) {
	t.Helper()
	for _, r := range replicas {
		ctx, cancel := context.WithCancel(t.Context())
		var running sync.WaitGroup
		running.Go(func() { _ = r.Run(ctx) })
		r.stop = func() { cancel(); running.Wait() }
		t.Cleanup(r.stop)
	}
	for _, r := range replicas {
		eventually(t, "all built-in groups are registered", func() bool { return r.Completed(t.Context()) == nil })
	}
}

// service returns an APIService, nil if there is none.
func (r *registrar) service(t *testing.T, name string) *apiregistration.APIService {
	t.Helper()
	object, err := r.Get(t.Context(),
		resource.Key{GroupResource: autoregister.Resource, Name: name}, resource.ReadOptions{})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return must[runtime.Object](t)(object, err).(*apiregistration.APIService)
}

func (r *registrar) edit(t *testing.T, subresource, name string, change func(*apiregistration.APIService)) {
	t.Helper()
	key := resource.Key{GroupResource: autoregister.Resource, Subresource: subresource, Name: name}
	must[runtime.Object](t)(r.Update(t.Context(), key, func(object runtime.Object) error {
		change(object.(*apiregistration.APIService))
		return nil
	}, resource.WriteOptions{}))
}

// serving returns a CustomResourceDefinition that serves versions of example.com.
func serving(versions ...string) *apiextensions.CustomResourceDefinition {
	d := &apiextensions.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: "widgets.example.com"}}
	d.Spec.Group = "example.com"
	for _, version := range versions {
		d.Spec.Versions = append(d.Spec.Versions, apiextensions.CustomResourceDefinitionVersion{Name: version, Served: true})
	}
	return d
}

// idle waits until replicas have processed all queued work.
func idle(t *testing.T, replicas ...*registrar) {
	t.Helper()
	d := serving("v9")
	d.Name, d.Spec.Group = "last.idle.example.com", "idle.example.com"
	for _, r := range replicas {
		r.SetDefinition(d.Name, d)
	}
	eventually(t, "the marker is created", func() bool { return replicas[0].service(t, "v9.idle.example.com") != nil })
	for _, r := range replicas {
		r.SetDefinition(d.Name, nil)
	}
	eventually(t, "the marker is deleted", func() bool { return replicas[0].service(t, "v9.idle.example.com") == nil })
}

func TestConcurrentReplicas(t *testing.T) {
	client := etcdtest.Client(t)
	definition := serving("v1", "v2")
	replicas := []*registrar{newRegistrar(t, client, definition), newRegistrar(t, client, definition)}
	start(t, replicas...)
	for _, name := range []string{"v1.example.com", "v2.example.com"} {
		eventually(t, name+" is created", func() bool { return replicas[0].service(t, name) != nil })
	}
	idle(t, replicas...)
	response := must[*clientv3.GetResponse](t)(client.Get(t.Context(),
		"/registry/apiregistration.k8s.io/apiservices/", clientv3.WithPrefix()))
	if len(response.Kvs) != 22+2 { // kube-apiserver's without --runtime-config, and two custom ones
		t.Errorf("%d APIServices, want 24", len(response.Kvs))
	}
	for _, kv := range response.Kvs {
		if kv.Version != 1 {
			t.Errorf("%s was written %d times", kv.Key, kv.Version)
		}
	}

	for _, r := range replicas {
		r.stop()
	}
	before := replicas[0].Revision(t)
	late := newRegistrar(t, client, definition)
	start(t, late)
	idle(t, late)
	if after := late.Revision(t); after != before+2 { // the marker
		t.Errorf("a restart without changes wrote something: revision %d, then %d", before, after)
	}
}

func TestAPIServicesOfBuiltInGroups(t *testing.T) {
	client := etcdtest.Client(t)
	r := newRegistrar(t, client)
	start(t, r)
	const apps, batch = "v1.apps", "v1.batch"
	r.edit(t, "", apps, func(s *apiregistration.APIService) { s.Spec.VersionPriority = 99 })
	key := resource.Key{GroupResource: autoregister.Resource, Name: batch}
	if err := r.Delete(t.Context(), key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	r.edit(t, "status", "v1.policy", func(s *apiregistration.APIService) { s.Status.Conditions = nil })
	eventually(t, "the condition of a local APIService is restored", func() bool {
		return apiregistration.IsAPIServiceConditionTrue(r.service(t, "v1.policy"), apiregistration.Available)
	})
	idle(t, r)
	if got := r.service(t, apps).Spec.VersionPriority; got != 99 {
		t.Errorf("an edit was overwritten by %d before the next start", got)
	}
	if r.service(t, batch) != nil {
		t.Error("a deleted APIService was created again before a restart")
	}
	r.stop()

	r = newRegistrar(t, client)
	start(t, r)
	if r.service(t, batch) == nil {
		t.Error("a deleted APIService was not created again at a restart")
	}
	eventually(t, "a restart undoes an edit", func() bool { return r.service(t, apps).Spec.VersionPriority == 15 })
}

func TestAPIServicesOfCustomResources(t *testing.T) {
	client := etcdtest.Client(t)
	r := newRegistrar(t, client)
	start(t, r)
	const v1, v2 = "v1.example.com", "v2.example.com"
	r.SetDefinition("widgets.example.com", serving("v1", "v2"))
	for _, name := range []string{v1, v2} {
		eventually(t, name+" is created", func() bool { return r.service(t, name) != nil })
	}
	spec := r.service(t, v1).Spec
	if spec.GroupPriorityMinimum != 1000 || spec.VersionPriority != 100 {
		t.Errorf("priorities %d and %d", spec.GroupPriorityMinimum, spec.VersionPriority)
	}
	r.edit(t, "", v1, func(s *apiregistration.APIService) { s.Spec.VersionPriority = 99 })
	eventually(t, "an edit is undone", func() bool { return r.service(t, v1).Spec.VersionPriority == 100 })
	uid := r.service(t, v1).UID
	key := resource.Key{GroupResource: autoregister.Resource, Name: v1}
	if err := r.Delete(t.Context(), key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a deleted APIService is created again", func() bool {
		s := r.service(t, v1)
		return s != nil && s.UID != uid
	})
	r.edit(t, "", v1, func(s *apiregistration.APIService) { s.Labels = nil })
	idle(t, r) // wait for the sync of the deleted APIService
	r.SetDefinition("widgets.example.com", serving("v2"))
	idle(t, r)
	if r.service(t, v1) == nil {
		t.Error("an APIService without the label was deleted")
	}

	// An APIService whose definition was deleted while no replica ran is deleted at the next start.
	r.stop()
	r = newRegistrar(t, client)
	start(t, r)
	eventually(t, "an APIService without a definition is deleted", func() bool { return r.service(t, v2) == nil })
}

// TestUndecodableDefinition starts with the APIService of a definition that cannot be decoded.
func TestUndecodableDefinition(t *testing.T) {
	etcd := etcdtest.Client(t)
	const v1 = "v1.example.com"
	r := newRegistrar(t, etcd, serving("v1"))
	start(t, r)
	eventually(t, "the APIService is created", func() bool { return r.service(t, v1) != nil })
	r.stop()

	const path = "/registry/apiextensions.k8s.io/customresourcedefinitions/widgets.example.com"
	must[*clientv3.PutResponse](t)(etcd.Put(t.Context(), path, "no definition"))
	r = newUnknowingRegistrar(t, etcd)
	var progress follow.Progress
	ctx, cancel := context.WithCancel(t.Context())
	var following sync.WaitGroup
	t.Cleanup(func() { cancel(); following.Wait() })
	following.Go(func() {
		key := resource.Key{
			GroupResource: schema.GroupResource{Group: apiextensions.GroupName, Resource: "customresourcedefinitions"},
		}
		_ = r.Client.Follow(ctx, key, follow.Options{
			Objects: r.SetDefinition, Undecodable: r.SetUndecodable, Synced: r.DefinitionsKnown, Progress: &progress,
		})
	})
	start(t, r)
	d := serving("v9")
	d.Name, d.Spec.Group = "last.idle.example.com", "idle.example.com"
	r.SetDefinition(d.Name, d)
	eventually(t, "an APIService is created", func() bool { return r.service(t, "v9.idle.example.com") != nil })
	r.SetDefinition(d.Name, nil)
	if r.service(t, v1) == nil {
		t.Fatal("an APIService was deleted while a definition could not be decoded")
	}
	must[*clientv3.DeleteResponse](t)(etcd.Delete(t.Context(), path))
	eventually(t, "the APIService is deleted after the definition", func() bool { return r.service(t, v1) == nil })
}
