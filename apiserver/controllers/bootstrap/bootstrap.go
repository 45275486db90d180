// Package bootstrap creates the objects that kube-apiserver creates at its start: the system namespaces, the RBAC
// bootstrap policy, the system priority classes, the objects of API priority and fairness, extension-apiserver-
// authentication, this replica's identity Lease and the tracking of legacy tokens. Missing rules and subjects of the
// policy are added to existing roles and bindings. Existing namespaces and classes are kept. Flow schemas and priority
// levels are updated unless users have taken them over; obsolete ones are deleted.
package bootstrap

import (
	"context"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/request"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/system"
	"quorate.dev/panics"
)

// parallel is the number of concurrent writes. It is large enough to fill the storage's write batches.
const parallel = 32

const namespacesEvery = time.Minute

var (
	namespaces      = schema.GroupResource{Resource: "namespaces"}
	priorityClasses = schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}
)

// Bootstrap creates the objects and maintains those that change. It is idempotent; several replicas, and a
// kube-apiserver on the same etcd, may run it concurrently.
type Bootstrap struct {
	objects resource.Client
	clock   clock.Clock
	logger  logr.Logger
}

// New returns the bootstrap of one replica.
func New(objects resource.Client, clock clock.Clock, logger logr.Logger) *Bootstrap {
	return &Bootstrap{objects: objects, clock: clock, logger: logger}
}

// task creates or updates one object, or all objects of one kind.
type task func(ctx context.Context) error

func runAll(ctx context.Context, tasks []task) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, run := range tasks {
		group.Go(func() error { return panics.Catch(func() error { return run(ctx) }) })
	}
	return group.Wait()
}

// ClusterPolicy creates and completes the ClusterRoles and ClusterRoleBindings of the bootstrap policy. Before that, it
// preserves users' changes to roles that have become aggregated roles (primeClusterRoles) and to bindings that have
// been split (primeClusterRoleBindings).
func (b *Bootstrap) ClusterPolicy(ctx context.Context) error {
	ctx = system.WithServerUser(ctx)
	if err := runAll(ctx, []task{b.primeClusterRoles, b.primeClusterRoleBindings}); err != nil {
		return err
	}
	return runAll(ctx, []task{b.clusterRoles, b.clusterRoleBindings})
}

// NamespacedPolicy creates and completes the Roles and RoleBindings of the bootstrap policy. Their namespaces must
// exist.
func (b *Bootstrap) NamespacedPolicy(ctx context.Context) error {
	return runAll(system.WithServerUser(ctx), []task{b.roles, b.roleBindings})
}

// Namespaces creates the system namespaces.
func (b *Bootstrap) Namespaces(ctx context.Context) error {
	var wanted []runtime.Object
	for _, name := range []string{
		metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease,
	} {
		wanted = append(wanted, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return b.createMissing(system.WithServerUser(ctx), namespaces, wanted)
}

// NamespacesLoop periodically creates system namespaces that have been deleted.
func (b *Bootstrap) NamespacesLoop() Loop {
	return Loop{Name: "system namespaces", Pass: b.Namespaces, Every: namespacesEvery}
}

// PriorityClasses creates the system priority classes.
func (b *Bootstrap) PriorityClasses(ctx context.Context) error {
	var wanted []runtime.Object
	for _, class := range schedulingv1.SystemPriorityClasses() {
		wanted = append(wanted, class)
	}
	return b.createMissing(system.WithServerUser(ctx), priorityClasses, wanted)
}

// createMissing creates cluster-scoped objects. It does not change objects that already exist.
func (b *Bootstrap) createMissing(ctx context.Context, resource schema.GroupResource, wanted []runtime.Object) error {
	var creations []task
	for _, object := range wanted {
		creations = append(creations, func(ctx context.Context) error { return b.ensure(ctx, resource, object) })
	}
	return runAll(ctx, creations)
}

// ensure creates a cluster-scoped object if it does not exist.
func (b *Bootstrap) ensure(ctx context.Context, gr schema.GroupResource, object runtime.Object) error {
	accessor, err := meta.Accessor(object)
	if err != nil {
		return err
	}
	key := resource.Key{GroupResource: gr, Name: accessor.GetName()}
	if _, err := b.objects.Get(ctx, key, resource.ReadOptions{Cached: true}); !apierrors.IsNotFound(err) {
		return err
	}
	_, err = b.create(ctx, gr, object)
	// Another replica has created the object, or --runtime-config has disabled its resource.
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// create stores an object, which is given in a served version.
func (b *Bootstrap) create(
	ctx context.Context, gr schema.GroupResource, external runtime.Object,
) (runtime.Object, error) {
	accessor, err := meta.Accessor(external)
	if err != nil {
		return nil, err
	}
	internal, err := system.ToInternal(external)
	if err != nil {
		return nil, err
	}
	created, err := b.objects.Create(withRequestInfo(ctx, gr),
		resource.Key{GroupResource: gr, Namespace: accessor.GetNamespace()}, internal, resource.WriteOptions{})
	if err != nil {
		return nil, err
	}
	b.logger.V(1).Info("Created a bootstrap object", "resource", gr.String(), "namespace", accessor.GetNamespace(),
		"name", accessor.GetName())
	return created, nil
}

// withRequestInfo sets the request info that labels upstream's validation metrics.
func withRequestInfo(ctx context.Context, resource schema.GroupResource) context.Context {
	return request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true, APIPrefix: "apis", APIGroup: resource.Group, APIVersion: "v1", Resource: resource.Resource,
	})
}

// list returns the objects of a resource, by namespace and name (key).
func (b *Bootstrap) list(ctx context.Context, gr schema.GroupResource) (map[string]runtime.Object, error) {
	objects, err := b.objects.List(ctx, resource.Key{GroupResource: gr}, resource.ReadOptions{Cached: true})
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", gr, err)
	}
	byKey := make(map[string]runtime.Object, len(objects))
	for _, object := range objects {
		accessor, err := meta.Accessor(object)
		if err != nil {
			return nil, err
		}
		byKey[key(accessor.GetNamespace(), accessor.GetName())] = object
	}
	return byKey, nil
}

func key(namespace, name string) string { return namespace + "/" + name }
