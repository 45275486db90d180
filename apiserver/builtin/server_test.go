package builtin_test

import (
	"context"
	"testing"
	"time"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	v1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// server is the registry of all built-in kinds on an etcd of its own.
type server struct {
	*registry.Client
	Registry *registry.Registry
	client   *clientv3.Client
	catalog  *resource.CatalogHolder
	freeze   func() // ends the watch of etcd: the caches stay as they are
}

func newServer(t testing.TB, options builtin.Options, chain *admission.Chain) *server {
	t.Helper()
	return newServerOn(t, etcdtest.Client(t), options, chain)
}

// newServerOn is a replica on an etcd that others may use too.
func newServerOn(t testing.TB, client *clientv3.Client, options builtin.Options, chain *admission.Chain) *server {
	t.Helper()
	store := storage.New(client, "/registry")
	caches := watchcache.New(store, watchcache.Options{Clock: clock.RealClock{}, Logger: logr.Discard()})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); caches.Run(ctx) }()
	freeze := func() { cancel(); <-done }
	t.Cleanup(freeze)
	if chain == nil {
		chain = &admission.Chain{}
	}
	s := &server{client: client, catalog: &resource.CatalogHolder{}, freeze: freeze}
	s.catalog.Publish(resource.NewCatalog())
	s.Registry = registry.New(registry.Options{
		Store: store, Caches: caches, Catalog: s.catalog, Admission: chain,
		Clock: clock.RealClock{}, Logger: logr.Discard(),
	})
	s.Client = s.Registry.Client()
	s.Registry.AuthorizeWith(authorizerfactory.NewAlwaysAllowAuthorizer())
	options.Objects, options.Catalog = s.Client, s.catalog
	if options.EventTTL == 0 {
		options.EventTTL = time.Hour
	}
	s.catalog.Publish(resource.NewCatalog(builtin.Definitions(options)...))
	return s
}

// call does the action of a subresource.
func (s *server) call(ctx context.Context, name schema.GroupResource, subresource, namespace, object string, body runtime.Object) (runtime.Object, error) {
	match, _ := s.catalog.Current().Find(name)
	target := registry.Target{Match: match, Endpoint: match.Version.Endpoints[subresource], Namespace: namespace, Name: object}
	result, err := s.Registry.Create(ctx, target, body, registry.WriteOptions{})
	if err != nil {
		return nil, err
	}
	return result.Object, nil
}

// onlyReads lets everybody get everything.
type onlyReads struct{}

func (onlyReads) Authorize(_ context.Context, attributes authorizer.Attributes) (authorizer.Decision, string, error) {
	if attributes.GetVerb() == "get" {
		return authorizer.DecisionAllow, "", nil
	}
	return authorizer.DecisionNoOpinion, "", nil
}

func asUser(ctx context.Context, name string, groups ...string) context.Context {
	return request.WithUser(ctx, &user.DefaultInfo{Name: name, Groups: groups})
}

func must[T any](t testing.TB) func(T, error) T {
	return func(value T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return value
	}
}

// newPod is a small valid pod.
func newPod(name string) *core.Pod {
	external := &v1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: map[string]string{"app": name}},
		Spec: v1.PodSpec{
			ServiceAccountName: "default",
			Containers:         []v1.Container{{Name: "main", Image: "example.com/image:1"}},
		},
	}
	legacyscheme.Scheme.Default(external)
	pod := &core.Pod{}
	if err := legacyscheme.Scheme.Convert(external, pod, nil); err != nil {
		panic(err)
	}
	return pod
}

// eventually waits for what a cache will show.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.NewTimer(10 * time.Second)
	defer deadline.Stop()
	for !holds() {
		select {
		case <-deadline.C:
			t.Fatalf("not within 10 s: %s", what)
		case <-time.After(time.Millisecond):
		}
	}
}

// settle waits until the cache has objects of the cluster as storage has them.
func (s *server) settle(t *testing.T, gr schema.GroupResource, names ...string) {
	t.Helper()
	for _, name := range names {
		key := resource.Key{GroupResource: gr, Name: name}
		stored := must[metav1.Object](t)(meta.Accessor(must[runtime.Object](t)(s.Get(t.Context(), key, resource.ReadOptions{}))))
		eventually(t, name+" is in the cache", func() bool {
			cached, err := s.Get(t.Context(), key, resource.ReadOptions{Cached: true})
			return err == nil && cached.(metav1.Object).GetResourceVersion() == stored.GetResourceVersion()
		})
	}
}
