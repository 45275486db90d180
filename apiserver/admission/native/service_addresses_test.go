package native_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/go-logr/logr/funcr"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/admission/native"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/resource"
)

// web is a Service with an address and a node port that a second Service could not get while they are allocated.
func web(o *v1.Service) {
	o.Spec.Type, o.Spec.ClusterIP, o.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, "10.20.0.2", 30001
}

func external(o *v1.Service) {
	o.Spec = v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "example.com"}
}

// allocated reports whether a Service has the address and the node port of web: a dry run of another Service with them
// is then rejected.
func allocated(t *testing.T, s *builtintest.ServiceReplica) bool {
	t.Helper()
	_, err := s.Create(t.Context(), resource.Key{GroupResource: builtintest.Services, Namespace: "default"},
		builtintest.NewService(t, "probe", web), resource.WriteOptions{DryRun: true})
	if err != nil && !strings.Contains(err.Error(), "is already allocated") {
		t.Fatal(err)
	}
	addresses, listErr := s.List(t.Context(), resource.Key{
		GroupResource: schema.GroupResource{Group: "networking.k8s.io", Resource: "ipaddresses"},
	}, resource.ReadOptions{})
	if listErr != nil {
		t.Fatal(listErr)
	}
	if stored := len(addresses) > 0; stored != (err != nil) {
		t.Errorf("%d IPAddresses are stored, a second Service with the address and the port: %v", len(addresses), err)
	}
	return err != nil
}

// TestServiceAddresses: a Service has its address and its node port from its creation until it is deleted or no longer
// needs them, and a rejected write or a dry run leaves none behind.
func TestServiceAddresses(t *testing.T) {
	t.Parallel()
	s := builtintest.NewServiceReplica(t, etcdtest.Client(t), "10.20.0.0/28", "30000-30003")
	services := resource.Key{GroupResource: builtintest.Services, Namespace: "default"}
	named := services
	named.Name = "web"
	create := func(name string, options resource.WriteOptions) error {
		_, err := s.Create(t.Context(), services, builtintest.NewService(t, name, web), options)
		return err
	}
	update := func(change func(*core.Service)) error {
		_, err := s.Update(t.Context(), named, func(object runtime.Object) error {
			change(object.(*core.Service))
			return nil
		}, resource.WriteOptions{})
		return err
	}
	for _, step := range []struct {
		name      string
		write     func() error
		allowed   bool
		allocated bool // after the write
	}{
		{"a dry run", func() error { return create("web", resource.WriteOptions{DryRun: true}) }, true, false},
		{"a create that validation rejects", func() error { return create("Web", resource.WriteOptions{}) }, false, false},
		{"a create", func() error { return create("web", resource.WriteOptions{}) }, true, true},
		{"a create with the same name", func() error { return create("web", resource.WriteOptions{}) }, false, true},
		{"an update of labels", func() error {
			return update(func(o *core.Service) { o.Labels = map[string]string{"a": "b"} })
		}, true, true},
		{"an update that validation rejects", func() error {
			return update(func(o *core.Service) { o.Spec = builtintest.NewService(t, "web", external).Spec; o.Name = "Web" })
		}, false, true},
		{"an update to a type without addresses", func() error {
			return update(func(o *core.Service) { o.Spec = builtintest.NewService(t, "web", external).Spec })
		}, true, false},
		{"an update to a type with addresses", func() error {
			return update(func(o *core.Service) { o.Spec = builtintest.NewService(t, "web", web).Spec })
		}, true, true},
		{"a delete", func() error { return s.Delete(t.Context(), named, &metav1.DeleteOptions{}) }, true, false},
	} {
		if err := step.write(); (err == nil) != step.allowed {
			t.Fatalf("%s: %v", step.name, err)
		}
		if got := allocated(t, s); got != step.allocated {
			t.Fatalf("after %s: allocated is %t, want %t", step.name, got, step.allocated)
		}
	}
}

// readsFail is a client whose reads fail.
type readsFail struct{ resource.Client }

func (readsFail) Get(context.Context, resource.Key, resource.ReadOptions) (runtime.Object, error) {
	return nil, errors.New("no quorum")
}

// TestReleaseFailures: an address that cannot be released does not change the outcome of a write that is stored or
// rejected already. The failure is logged; the repair of addresses releases the address later.
func TestReleaseFailures(t *testing.T) {
	t.Parallel()
	s := builtintest.NewServiceReplica(t, etcdtest.Client(t), "10.20.0.0/28", "30000-30003")
	created, err := s.Create(t.Context(), resource.Key{GroupResource: builtintest.Services, Namespace: "default"},
		builtintest.NewService(t, "web", web), resource.WriteOptions{})
	if err != nil {
		t.Fatal(err)
	}
	match, _ := s.Catalog.Current().Find(builtintest.Services)
	var logged []string
	reserver := native.ServiceAddresses{
		Allocator: s.Allocator, Objects: readsFail{s},
		Logger: funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{}),
	}
	if !reserver.Allocates(builtintest.Services) || reserver.Allocates(schema.GroupResource{Resource: "pods"}) {
		t.Error("it must allocate for Services, and only for Services")
	}
	without := builtintest.NewService(t, "web", external)
	for name, act := range map[string]func(context.Context, *admission.Attributes){
		"rollback of a create": func(ctx context.Context, a *admission.Attributes) {
			a.Operation, a.Object = admission.Create, created.DeepCopyObject()
			reserver.Rollback(ctx, a)
		},
		"update": func(ctx context.Context, a *admission.Attributes) {
			a.Operation, a.Old, a.Object = admission.Update, created.DeepCopyObject(), without
			reserver.Commit(ctx, a)
		},
		"delete": func(ctx context.Context, a *admission.Attributes) {
			a.Operation, a.Old = admission.Delete, created.DeepCopyObject()
			reserver.Commit(ctx, a)
		},
	} {
		logged = nil
		act(t.Context(), &admission.Attributes{Definition: match.Definition, Namespace: "default", Name: "web"})
		if len(logged) != 1 || !strings.Contains(logged[0], "Failed to release addresses or ports of a Service") ||
			!strings.Contains(logged[0], "release address 10.20.0.2: no quorum") ||
			!strings.Contains(logged[0], `"name"="web"`) {
			t.Errorf("%s: logged %q", name, logged)
		}
	}
	if _, err := s.Get(t.Context(), resource.Key{
		GroupResource: schema.GroupResource{Group: "networking.k8s.io", Resource: "ipaddresses"}, Name: "10.20.0.2",
	}, resource.ReadOptions{}); apierrors.IsNotFound(err) {
		t.Error("the address was released although its IPAddress could not be read")
	}
}
