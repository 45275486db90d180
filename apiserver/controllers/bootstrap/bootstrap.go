// Package bootstrap makes the objects that a cluster cannot do without, as kube-apiserver does: the system's
// namespaces, its RBAC policy, its priority classes, the configuration of priority and fairness, what extension servers
// need to know, this replica's identity, and since when legacy tokens are tracked. Roles, bindings, namespaces and
// classes that are there already stay, with what the policy lacks added. The configuration of priority and fairness is
// put right where nobody has taken it over, and what is no part of it any more is removed.
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
)

// parallel is how many objects are written at once: enough to fill the storage's batches, not more.
const parallel = 32

const namespacesEvery = time.Minute

var (
	namespaces      = schema.GroupResource{Resource: "namespaces"}
	priorityClasses = schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}
)

// Bootstrap makes the objects and keeps those in step that change. Several replicas may do it at once, any number of
// times, also beside kube-apiserver.
type Bootstrap struct {
	objects resource.Client
	clock   clock.Clock
	logger  logr.Logger
}

// New returns the bootstrap of one replica.
func New(objects resource.Client, clock clock.Clock, logger logr.Logger) *Bootstrap {
	return &Bootstrap{objects: objects, clock: clock, logger: logger}
}

// task makes one object, or those of one kind.
type task func(ctx context.Context) error

func runAll(ctx context.Context, tasks []task) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, run := range tasks {
		group.Go(func() error { return run(ctx) })
	}
	return group.Wait()
}

// ClusterPolicy makes the system's ClusterRoles and their bindings. What a former release's policy was changed to is
// carried over first.
func (b *Bootstrap) ClusterPolicy(ctx context.Context) error {
	ctx = system.WithServerUser(ctx)
	if err := runAll(ctx, []task{b.primeClusterRoles, b.primeClusterRoleBindings}); err != nil {
		return err
	}
	return runAll(ctx, []task{b.clusterRoles, b.clusterRoleBindings})
}

// NamespacedPolicy makes the Roles and their bindings in the system's namespaces, which must be there.
func (b *Bootstrap) NamespacedPolicy(ctx context.Context) error {
	return runAll(system.WithServerUser(ctx), []task{b.roles, b.roleBindings})
}

// Namespaces makes the system's namespaces.
func (b *Bootstrap) Namespaces(ctx context.Context) error {
	var wanted []runtime.Object
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		wanted = append(wanted, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return b.createMissing(system.WithServerUser(ctx), namespaces, wanted)
}

// NamespacesLoop makes the system's namespaces again when they were deleted.
func (b *Bootstrap) NamespacesLoop() Loop {
	return Loop{Name: "system namespaces", Pass: b.Namespaces, Every: namespacesEvery}
}

// PriorityClasses makes the system's priority classes.
func (b *Bootstrap) PriorityClasses(ctx context.Context) error {
	var wanted []runtime.Object
	for _, class := range schedulingv1.SystemPriorityClasses() {
		wanted = append(wanted, class)
	}
	return b.createMissing(system.WithServerUser(ctx), priorityClasses, wanted)
}

// createMissing creates those of the wanted objects, all of the cluster, that are not there.
func (b *Bootstrap) createMissing(ctx context.Context, resource schema.GroupResource, wanted []runtime.Object) error {
	var creations []task
	for _, object := range wanted {
		creations = append(creations, func(ctx context.Context) error { return b.ensure(ctx, resource, object) })
	}
	return runAll(ctx, creations)
}

// ensure creates an object of the cluster if it is not there.
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
	if apierrors.IsAlreadyExists(err) || apierrors.IsNotFound(err) { // made meanwhile; switched off by --runtime-config
		return nil
	}
	return err
}

// create stores an object given in a served version.
func (b *Bootstrap) create(ctx context.Context, gr schema.GroupResource, external runtime.Object) (runtime.Object, error) {
	accessor, err := meta.Accessor(external)
	if err != nil {
		return nil, err
	}
	internal, err := system.ToInternal(external)
	if err != nil {
		return nil, err
	}
	created, err := b.objects.Create(about(ctx, gr),
		resource.Key{GroupResource: gr, Namespace: accessor.GetNamespace()}, internal, resource.WriteOptions{})
	if err != nil {
		return nil, err
	}
	b.logger.V(1).Info("created", "resource", gr.String(), "namespace", accessor.GetNamespace(), "name", accessor.GetName())
	return created, nil
}

// about tells upstream's validation, which counts by it, what is being written.
func about(ctx context.Context, resource schema.GroupResource) context.Context {
	return request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true, APIPrefix: "apis", APIGroup: resource.Group, APIVersion: "v1", Resource: resource.Resource,
	})
}

// list returns a resource's objects by key.
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
