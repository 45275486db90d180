package crd_test

import (
	"context"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apiextensions-apiserver/pkg/apis/apiextensions"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/clock"
	"sigs.k8s.io/yaml"

	"quorate.dev/apiserver/admission"
	builtinapiextensions "quorate.dev/apiserver/builtin/apiextensions"
	"quorate.dev/apiserver/builtin/enablement"
	builtinschema "quorate.dev/apiserver/builtin/schema"
	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/client"
	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// server is a registry of CustomResourceDefinitions and custom resources with its own etcd.
type server struct {
	*client.Client
	Registry   *registry.Registry
	controller *crd.Controller
	publisher  *resource.CatalogHolder
	etcd       *clientv3.Client
}

func startServer(t *testing.T) *server {
	t.Helper()
	return startReplica(t, etcdtest.Client(t), func() {})
}

// startReplica starts a server that calls delay before it publishes definitions.
func startReplica(t *testing.T, etcd *clientv3.Client, delay func()) *server {
	t.Helper()
	logger := testr.New(t)
	store := storage.New(etcd, "/registry")
	caches := watchcache.New(store, watchcache.Options{Clock: clock.RealClock{}, Logger: logger})
	s := &server{publisher: &resource.CatalogHolder{}, etcd: etcd}
	builtIn := builtinapiextensions.Definitions(builtinschema.NewLoader(), clock.RealClock{}, enablement.APIs{}.Serves)
	s.publisher.Publish(resource.NewCatalog(builtIn...))
	s.Registry = registry.New(registry.Options{
		Store: store, Caches: caches, Catalog: s.publisher, Admission: &admission.Chain{},
		Clock: clock.RealClock{}, Logger: logger,
	})
	s.Client = client.New(client.Options{Registry: s.Registry, Clock: clock.RealClock{}, Logger: logger})
	var err error
	var progress follow.Progress
	s.controller, err = crd.NewController(crd.ControllerOptions{
		Idle: &lazy.Set{}, Objects: s.Client, Clock: clock.RealClock{}, Logger: logger, Converters: newConverters(t),
		Follow: func(
			ctx context.Context, name schema.GroupResource, handle func(string, runtime.Object), synced func(),
		) error {
			return s.Follow(ctx, resource.Key{GroupResource: name}, follow.Options{
				Objects: handle, Synced: synced, Progress: &progress,
			})
		},
		AwaitFollowed: func(ctx context.Context) error { return s.AwaitFollowed(ctx, crd.Resource, &progress) },
		BuiltIn:       func(schema.GroupResource) bool { return false },
		Publish: func(definitions []*resource.Definition) {
			delay()
			before := s.publisher.Current()
			s.publisher.Publish(before.With(append(builtIn[:1:1], definitions...)...))
			s.release(before)
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { _ = caches.Run(ctx) })
	running.Go(func() { _ = s.controller.Run(ctx) })
	t.Cleanup(running.Wait)
	t.Cleanup(cancel)
	<-s.controller.Synced()
	return s
}

// release drops the caches of changed definitions, like the composition does.
func (s *server) release(before *resource.Catalog) {
	for _, d := range before.Definitions() {
		if next := s.publisher.Current().Successor(d); d.Source == resource.Custom &&
			(next == nil || next.Revision != d.Revision) {
			s.Registry.Release(d)
		}
	}
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 5*time.Millisecond, 20*time.Second, true, func(
		context.Context,
	) (bool, error) {
		return condition(), nil
	})
	if err != nil {
		t.Fatalf("%s: never", what)
	}
}

func sample(t testing.TB) *apiextensionsv1.CustomResourceDefinition {
	t.Helper()
	content, err := os.ReadFile("testdata/widgets.yaml")
	if err != nil {
		t.Fatal(err)
	}
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(content, definition); err != nil {
		t.Fatal(err)
	}
	apiextensionsv1.SetDefaults_CustomResourceDefinition(definition)
	apiextensionsv1.SetDefaults_CustomResourceDefinitionSpec(&definition.Spec)
	return definition
}

func (s *server) create(t *testing.T, definition *apiextensionsv1.CustomResourceDefinition) {
	t.Helper()
	internal := &apiextensions.CustomResourceDefinition{}
	if err := apiextensionsv1.Convert_v1_CustomResourceDefinition_To_apiextensions_CustomResourceDefinition(
		definition, internal, nil,
	); err != nil {
		t.Fatal(err)
	}
	key := resource.Key{GroupResource: crd.Resource}
	if _, err := s.Create(t.Context(), key, internal, resource.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (s *server) condition(t *testing.T, name string, kind apiextensions.CustomResourceDefinitionConditionType) string {
	t.Helper()
	object, err := s.Get(t.Context(), resource.Key{GroupResource: crd.Resource, Name: name}, resource.ReadOptions{})
	if err != nil {
		return string(apierrors.ReasonForError(err))
	}
	found := apiextensions.FindCRDCondition(object.(*apiextensions.CustomResourceDefinition), kind)
	if found == nil {
		return ""
	}
	return string(found.Status) + " " + found.Reason
}

func (s *server) update(t *testing.T, name string, change func(*unstructured.Unstructured)) error {
	t.Helper()
	key := resource.Key{GroupResource: widgets, Namespace: "default", Name: name}
	_, err := s.Update(t.Context(), key, func(object runtime.Object) error {
		change(object.(*unstructured.Unstructured))
		return nil
	}, resource.WriteOptions{})
	return err
}

var widgets = schema.GroupResource{Group: "example.com", Resource: "widgets"}

func newWidget(name string) *unstructured.Unstructured {
	return &unstructured.Unstructured{Object: map[string]any{
		"apiVersion": "example.com/v1", "kind": "Widget",
		"metadata": map[string]any{"name": name, "namespace": "default"},
		"spec":     map[string]any{"color": "green", "replicas": int64(2)},
	}}
}

func TestDefinitionIsServed(t *testing.T) {
	s := startServer(t)
	s.create(t, sample(t))
	eventually(t, "established", func() bool {
		return s.condition(t, "widgets.example.com", apiextensions.Established) == "True InitialNamesAccepted"
	})
	if err := s.controller.Await(t.Context()); err != nil || !s.serves() {
		t.Fatalf("established and not served: %v", err)
	}
	key := resource.Key{GroupResource: widgets, Namespace: "default"}
	if _, err := s.Create(t.Context(), key, newWidget("first"), resource.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	object, err := s.Get(t.Context(),
		resource.Key{GroupResource: widgets, Namespace: "default", Name: "first"}, resource.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if generation := object.(*unstructured.Unstructured).GetGeneration(); generation != 1 {
		t.Errorf("generation %d", generation)
	}
}

func convertedByWebhook(d *apiextensionsv1.CustomResourceDefinition) {
	url := "https://127.0.0.1:1/convert"
	d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{
		Strategy: apiextensionsv1.WebhookConverter, Webhook: &apiextensionsv1.WebhookConversion{
			ClientConfig: &apiextensionsv1.WebhookClientConfig{URL: &url}, ConversionReviewVersions: []string{"v1"},
		},
	}
}

func TestNamesAreFreedByDeletion(t *testing.T) {
	s := startServer(t)
	first, second := sample(t), sample(t)
	second.Name = "gadgets.example.com"
	second.Spec.Names.Plural, second.Spec.Names.Singular = "gadgets", "gadget"
	s.create(t, first)
	eventually(t, "first established", func() bool {
		return s.condition(t, first.Name, apiextensions.Established) == "True InitialNamesAccepted"
	})
	s.create(t, second)
	eventually(t, "conflict", func() bool {
		return s.condition(t, second.Name, apiextensions.NamesAccepted) == "False ListKindConflict"
	})
	if got := s.condition(t, second.Name, apiextensions.Established); got != "False NotAccepted" {
		t.Errorf("Established of the second is %q", got)
	}
	key := resource.Key{GroupResource: crd.Resource, Name: first.Name}
	if err := s.Delete(t.Context(), key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "second established", func() bool {
		return s.condition(t, second.Name, apiextensions.Established) == "True InitialNamesAccepted"
	})
}

func TestDeletionRemovesInstances(t *testing.T) {
	s := startServer(t)
	s.create(t, sample(t))
	s.establish(t)
	for _, name := range []string{"a", "b"} {
		w := newWidget(name)
		if name == "b" {
			w.SetFinalizers([]string{"example.com/hold"})
		}
		key := resource.Key{GroupResource: widgets, Namespace: "default"}
		if _, err := s.Create(t.Context(), key, w, resource.WriteOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Delete(t.Context(),
		resource.Key{GroupResource: crd.Resource, Name: "widgets.example.com"}, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a deleted", func() bool {
		_, err := s.Get(t.Context(),
			resource.Key{GroupResource: widgets, Namespace: "default", Name: "a"}, resource.ReadOptions{})
		return apierrors.IsNotFound(err)
	})
	eventually(t, "in progress while b is held", func() bool {
		return s.condition(t, "widgets.example.com", apiextensions.Terminating) == "True InstanceDeletionInProgress"
	})
	release := func(object *unstructured.Unstructured) { object.SetFinalizers(nil) }
	if err := s.update(t, "b", release); err != nil {
		t.Fatal(err)
	}
	eventually(t, "definition gone", func() bool {
		return s.condition(t, "widgets.example.com", apiextensions.Terminating) == "NotFound"
	})
	eventually(t, "no longer served", func() bool {
		_, ok := s.publisher.Current().Lookup("example.com", "v1", "widgets")
		return !ok
	})
}

// TestAwait: a replica that lags behind the one that established a definition knows that it does.
func TestAwait(t *testing.T) {
	etcd := etcdtest.Client(t)
	publishing := make(chan struct{}, 1)
	publishing <- struct{}{}
	first := startReplica(t, etcd, func() {})
	lagging := startReplica(t, etcd, func() {
		<-publishing
		publishing <- struct{}{}
	})
	if err := lagging.controller.Await(t.Context()); err != nil {
		t.Fatal(err)
	}
	<-publishing // the lagging replica stops publishing
	first.create(t, sample(t))
	eventually(t, "established", func() bool {
		return first.condition(t, "widgets.example.com", apiextensions.Established) == "True InitialNamesAccepted"
	})
	served := func(s *server) bool {
		_, ok := s.publisher.Current().Lookup("example.com", "v1", "widgets")
		return ok
	}
	if err := first.controller.Await(t.Context()); err != nil || !served(first) {
		t.Errorf("the first replica: %v, served %t", err, served(first))
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if err := lagging.controller.Await(ctx); err == nil || served(lagging) {
		t.Errorf("while it lags: %v, served %t", err, served(lagging))
	}
	publishing <- struct{}{}
	if err := lagging.controller.Await(t.Context()); err != nil || !served(lagging) {
		t.Errorf("when it has caught up: %v, served %t", err, served(lagging))
	}
}
