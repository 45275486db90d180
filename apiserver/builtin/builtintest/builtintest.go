// Package builtintest runs the registry of all built-in kinds on a real etcd, for the tests of other packages. It also
// checks the definitions of one API group without storage: CheckServed compares what the group serves with a table, and
// CheckWrites runs the strategies of its kinds. Only tests use the package.
package builtintest

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
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/client"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/watchcache"
)

// Server is one replica without HTTP: the registry of all built-in kinds with its storage and watch caches.
type Server struct {
	*client.Client
	Registry *registry.Registry
	Etcd     *clientv3.Client
	Catalog  *resource.CatalogHolder
	// Freeze stops the watches of etcd, so that the caches become stale.
	Freeze func()
}

// NewServer returns a server with its own etcd. With a nil chain, admission allows every request.
func NewServer(t testing.TB, options builtin.Options, chain *admission.Chain) *Server {
	t.Helper()
	return NewServerOn(t, etcdtest.Client(t), options, chain)
}

// NewServerOn returns a server on an etcd that other replicas may share.
func NewServerOn(t testing.TB, etcd *clientv3.Client, options builtin.Options, chain *admission.Chain) *Server {
	t.Helper()
	store := storage.New(etcd, "/registry")
	caches := watchcache.New(store, watchcache.Options{Clock: clock.RealClock{}, Logger: logr.Discard()})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	// Run returns the error of ctx.
	go func() { defer close(done); _ = caches.Run(ctx) }()
	freeze := func() { cancel(); <-done }
	t.Cleanup(freeze)
	if chain == nil {
		chain = &admission.Chain{}
	}
	s := &Server{Etcd: etcd, Catalog: &resource.CatalogHolder{}, Freeze: freeze}
	s.Catalog.Publish(resource.NewCatalog())
	s.Registry = registry.New(registry.Options{
		Store: store, Caches: caches, Catalog: s.Catalog, Admission: chain,
		Clock: clock.RealClock{}, Logger: logr.Discard(),
	})
	s.Client = client.New(client.Options{Registry: s.Registry, Clock: clock.RealClock{}, Logger: logr.Discard()})
	options.Objects, options.Catalog = s.Client, s.Catalog
	if options.EventTTL == 0 {
		options.EventTTL = time.Hour
	}
	s.Catalog.Publish(resource.NewCatalog(builtin.Definitions(options)...))
	return s
}

// Call sends a create request with a body to a collection or subresource.
func (s *Server) Call(ctx context.Context, key resource.Key, body runtime.Object) (runtime.Object, error) {
	match, _ := s.Catalog.Current().Find(key.GroupResource)
	target := resource.Target{
		Match: match, Endpoint: match.Version.Endpoints[key.Subresource], Namespace: key.Namespace, Name: key.Name,
	}
	result, err := s.Registry.Create(withRequestInfo(ctx, target, "create"), target, body, registry.WriteOptions{})
	if err != nil {
		return nil, err
	}
	return result.Object, nil
}

// WithUser returns a context with an authenticated user.
func WithUser(ctx context.Context, name string, groups ...string) context.Context {
	return request.WithUser(ctx, &user.DefaultInfo{Name: name, Groups: groups})
}

// NewPod returns a minimal valid pod in the namespace "default".
func NewPod(name string) *core.Pod {
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

// Revision returns etcd's current revision.
func (s *Server) Revision(t testing.TB) int64 {
	t.Helper()
	return Must[*clientv3.GetResponse](t)(s.Etcd.Get(t.Context(), "/")).Header.Revision
}

// Settle waits until the watch cache has the current versions of cluster-scoped objects.
func (s *Server) Settle(t *testing.T, gr schema.GroupResource, names ...string) {
	t.Helper()
	for _, name := range names {
		key := resource.Key{GroupResource: gr, Name: name}
		object := Must[runtime.Object](t)(s.Get(t.Context(), key, resource.ReadOptions{}))
		stored := Must[metav1.Object](t)(meta.Accessor(object))
		Eventually(t, name+" is in the cache", func() bool {
			cached, err := s.Get(t.Context(), key, resource.ReadOptions{Cached: true})
			return err == nil && cached.(metav1.Object).GetResourceVersion() == stored.GetResourceVersion()
		})
	}
}
