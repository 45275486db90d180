package bootstrap_test

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/rbac"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/controllers/bootstrap"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/resource"
)

var (
	namespaces   = schema.GroupResource{Resource: "namespaces"}
	clusterRoles = schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "clusterroles"}
)

// counts are the numbers of objects that kube-apiserver 1.36 creates at its first start.
var counts = map[string]int64{
	"namespaces": 4, "clusterroles": 73, "clusterrolebindings": 54, "roles": 7, "rolebindings": 7, "priorityclasses": 2,
	"flowschemas": 11, "prioritylevelconfigurations": 8,
}

// ensure runs all start-up steps.
func ensure(ctx context.Context, s *builtintest.Server) error {
	b := bootstrap.New(s, clock.RealClock{}, logr.Discard())
	for _, make := range []func(context.Context) error{
		b.Namespaces, b.PriorityClasses, b.ClusterPolicy, b.NamespacedPolicy, b.FlowControl,
	} {
		if err := make(ctx); err != nil {
			return err
		}
	}
	return nil
}

func TestConcurrentBootstrap(t *testing.T) {
	client := etcdtest.Client(t)
	var replicas []*builtintest.Server
	for range 3 {
		replicas = append(replicas, builtintest.NewServerOn(t, client, builtin.Options{}, nil))
	}
	var group sync.WaitGroup
	for _, replica := range replicas {
		group.Go(func() {
			if err := ensure(t.Context(), replica); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	revision := replicas[0].Revision(t)
	for path, want := range counts {
		response := must[*clientv3.GetResponse](t)(client.Get(t.Context(), "/registry/"+path+"/",
			clientv3.WithPrefix(), clientv3.WithCountOnly()))
		if response.Count != want {
			t.Errorf("%s: %d objects, want %d", path, response.Count, want)
		}
	}
	if err := ensure(t.Context(), replicas[1]); err != nil {
		t.Fatal(err)
	}
	if again := replicas[0].Revision(t); again != revision {
		t.Errorf("a second bootstrap wrote something: revision %d, then %d", revision, again)
	}
}

func TestBootstrapRestoresMissingRules(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	if err := ensure(ctx, s); err != nil {
		t.Fatal(err)
	}
	extra := rbac.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"widgets"}}
	strip := func(protected bool) func(runtime.Object) error {
		return func(object runtime.Object) error {
			role := object.(*rbac.ClusterRole)
			role.Rules = []rbac.PolicyRule{extra}
			if protected {
				role.Annotations[rbacv1.AutoUpdateAnnotationKey] = "false"
			}
			return nil
		}
	}
	must[runtime.Object](t)(s.Update(ctx,
		resource.Key{GroupResource: clusterRoles, Name: "system:kube-scheduler"}, strip(false), resource.WriteOptions{}))
	must[runtime.Object](t)(s.Update(ctx,
		resource.Key{GroupResource: clusterRoles, Name: "system:kube-dns"}, strip(true), resource.WriteOptions{}))
	s.Settle(t, clusterRoles, "system:kube-scheduler", "system:kube-dns")
	if err := ensure(ctx, s); err != nil {
		t.Fatal(err)
	}
	got := role(t, s, "system:kube-scheduler")
	binds := func(rule rbac.PolicyRule) bool { return slices.Contains(rule.Resources, "pods/binding") }
	if got.Rules[0].APIGroups[0] != "example.com" || !slices.ContainsFunc(got.Rules, binds) {
		t.Errorf("the role has rules %v, want the added one and those of the policy", got.Rules)
	}
	if got := role(t, s, "system:kube-dns"); len(got.Rules) != 1 {
		t.Errorf("a role that opted out was changed: %v", got.Rules)
	}
}

func TestBootstrapRestoresBindings(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	if err := ensure(ctx, s); err != nil {
		t.Fatal(err)
	}
	bindings := schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"}
	get := func(name string) *rbac.ClusterRoleBinding {
		return must[runtime.Object](t)(s.Get(ctx,
			resource.Key{GroupResource: bindings, Name: name}, resource.ReadOptions{})).(*rbac.ClusterRoleBinding)
	}
	key := resource.Key{GroupResource: bindings, Name: "cluster-admin"}
	must[runtime.Object](t)(s.Update(ctx, key, func(object runtime.Object) error {
		object.(*rbac.ClusterRoleBinding).Subjects = nil
		return nil
	}, resource.WriteOptions{}))
	// roleRef is immutable: the binding has to be recreated.
	stray := get("system:kube-dns")
	stray = &rbac.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: stray.Name}, Subjects: stray.Subjects, RoleRef: rbac.RoleRef{
			APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "view",
		},
	}
	if err := s.Delete(ctx,
		resource.Key{GroupResource: bindings, Name: stray.Name}, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must[runtime.Object](t)(s.Create(ctx, resource.Key{GroupResource: bindings}, stray, resource.WriteOptions{}))
	s.Settle(t, bindings, "cluster-admin", stray.Name)
	if err := ensure(ctx, s); err != nil {
		t.Fatal(err)
	}
	if admins := get("cluster-admin").Subjects; len(admins) != 1 || admins[0].Name != "system:masters" {
		t.Errorf("subjects of cluster-admin: %v", admins)
	}
	if role := get("system:kube-dns").RoleRef.Name; role != "system:kube-dns" {
		t.Errorf("system:kube-dns is bound to %s", role)
	}
}

func role(t *testing.T, s *builtintest.Server, name string) *rbac.ClusterRole {
	t.Helper()
	return must[runtime.Object](t)(s.Get(t.Context(),
		resource.Key{GroupResource: clusterRoles, Name: name}, resource.ReadOptions{})).(*rbac.ClusterRole)
}

func TestBootstrapLabelsNamespaces(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	if err := ensure(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	namespace := must[runtime.Object](t)(s.Get(t.Context(),
		resource.Key{GroupResource: namespaces, Name: "kube-system"}, resource.ReadOptions{})).(*core.Namespace)
	if namespace.Labels["kubernetes.io/metadata.name"] != "kube-system" || namespace.Status.Phase != core.NamespaceActive {
		t.Errorf("kube-system: labels %v, phase %s", namespace.Labels, namespace.Status.Phase)
	}
}

// Releases without system:aggregate-to-admin and system:public-info-viewer: changes to the objects that these are
// derived from are carried over by an upgrade.
func TestBootstrapCarriesChangedPolicyOver(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx := t.Context()
	bindings := schema.GroupResource{Group: "rbac.authorization.k8s.io", Resource: "clusterrolebindings"}
	extra := rbac.PolicyRule{Verbs: []string{"get"}, APIGroups: []string{"example.com"}, Resources: []string{"widgets"}}
	for _, name := range []string{"admin", "view", "system:aggregate-to-view"} {
		former := &rbac.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: name}, Rules: []rbac.PolicyRule{extra}}
		former.Annotations = map[string]string{"from": name}
		must[runtime.Object](t)(s.Create(ctx,
			resource.Key{GroupResource: clusterRoles}, former, resource.WriteOptions{}))
	}
	authenticated := rbac.Subject{Kind: "Group", APIGroup: rbac.GroupName, Name: "system:authenticated"}
	narrowed := &rbac.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "system:discovery"}, Subjects: []rbac.Subject{authenticated},
		RoleRef: rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "system:discovery"},
	}
	narrowed.Annotations = map[string]string{rbacv1.AutoUpdateAnnotationKey: "false"}
	must[runtime.Object](t)(s.Create(ctx, resource.Key{GroupResource: bindings}, narrowed, resource.WriteOptions{}))
	for range 2 { // a second start changes nothing
		if err := ensure(ctx, s); err != nil {
			t.Fatal(err)
		}
		got := role(t, s, "system:aggregate-to-admin")
		if len(got.Rules) < 2 || got.Rules[0].APIGroups[0] != "example.com" || got.Annotations["from"] != "admin" {
			t.Errorf("system:aggregate-to-admin has annotations %v and rules %v", got.Annotations, got.Rules)
		}
		if got := role(t, s, "admin"); got.AggregationRule == nil {
			t.Error("admin is not aggregated")
		}
		if got := role(t, s, "system:aggregate-to-view"); got.Annotations["from"] != "system:aggregate-to-view" {
			t.Errorf("the existing system:aggregate-to-view has annotations %v", got.Annotations)
		}
		if got := role(t, s, "system:aggregate-to-edit"); got.Annotations["from"] != "" {
			t.Errorf("system:aggregate-to-edit has annotations %v", got.Annotations)
		}
		split := must[runtime.Object](t)(s.Get(ctx,
			resource.Key{GroupResource: bindings, Name: "system:public-info-viewer"},
			resource.ReadOptions{})).(*rbac.ClusterRoleBinding)
		if !slices.Equal(split.Subjects, []rbac.Subject{authenticated}) || split.RoleRef.Name != "system:public-info-viewer" {
			t.Errorf("system:public-info-viewer binds %v to %s", split.Subjects, split.RoleRef.Name)
		}
	}
}
