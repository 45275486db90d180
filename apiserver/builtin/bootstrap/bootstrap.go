// Package bootstrap makes the objects that a cluster cannot do without: the system's namespaces, its RBAC policy
// and its priority classes. What is there already stays, with the permissions and subjects added that it lacks.
package bootstrap

import (
	"context"
	"fmt"

	"github.com/go-logr/logr"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	_ "k8s.io/kubernetes/pkg/apis/rbac/install"
	_ "k8s.io/kubernetes/pkg/apis/scheduling/install"
	schedulingv1 "k8s.io/kubernetes/pkg/apis/scheduling/v1"

	"quorate.dev/apiserver/resource"
)

// parallel is how many objects are written at once: enough to fill the storage's batches, not more.
const parallel = 32

var (
	namespaces      = schema.GroupResource{Resource: "namespaces"}
	priorityClasses = schema.GroupResource{Group: "scheduling.k8s.io", Resource: "priorityclasses"}
)

// Ensure makes what is missing. Several replicas may do it at once, any number of times.
func Ensure(ctx context.Context, objects resource.Objects, logger logr.Logger) error {
	ctx = request.WithUser(ctx, &user.DefaultInfo{Name: user.APIServerUser, Groups: []string{user.SystemPrivilegedGroup}})
	e := ensurer{objects: objects, logger: logger}
	for _, stage := range [][]task{e.clusterTasks(), e.namespacedTasks()} {
		if err := runAll(ctx, stage); err != nil {
			return fmt.Errorf("make the objects every cluster has: %w", err)
		}
	}
	logger.V(1).Info("bootstrap objects are in place")
	return nil
}

// task makes the objects of one kind.
type task func(ctx context.Context) error

func runAll(ctx context.Context, tasks []task) error {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(parallel)
	for _, run := range tasks {
		group.Go(func() error { return run(ctx) })
	}
	return group.Wait()
}

type ensurer struct {
	objects resource.Objects
	logger  logr.Logger
}

// clusterTasks make what belongs to no namespace, the namespaces among it.
func (e ensurer) clusterTasks() []task {
	return []task{e.namespaces, e.priorityClasses, e.clusterRoles, e.clusterRoleBindings}
}

// namespacedTasks make what lives in a system namespace.
func (e ensurer) namespacedTasks() []task {
	return []task{e.roles, e.roleBindings}
}

func (e ensurer) namespaces(ctx context.Context) error {
	var wanted []runtime.Object
	for _, name := range []string{metav1.NamespaceDefault, metav1.NamespaceSystem, metav1.NamespacePublic, corev1.NamespaceNodeLease} {
		wanted = append(wanted, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	return e.createMissing(ctx, namespaces, wanted)
}

func (e ensurer) priorityClasses(ctx context.Context) error {
	var wanted []runtime.Object
	for _, class := range schedulingv1.SystemPriorityClasses() {
		wanted = append(wanted, class)
	}
	return e.createMissing(ctx, priorityClasses, wanted)
}

// createMissing creates those of the wanted objects, all of the cluster, that are not there.
func (e ensurer) createMissing(ctx context.Context, resource schema.GroupResource, wanted []runtime.Object) error {
	present, err := e.list(ctx, resource)
	if apierrors.IsNotFound(err) {
		return nil // --runtime-config switched it off
	}
	if err != nil {
		return err
	}
	var creations []task
	for _, object := range wanted {
		accessor, err := meta.Accessor(object)
		if err != nil {
			return err
		}
		if _, ok := present[key(accessor.GetNamespace(), accessor.GetName())]; ok {
			continue
		}
		creations = append(creations, func(ctx context.Context) error {
			_, err := e.create(ctx, resource, object)
			if apierrors.IsAlreadyExists(err) {
				return nil
			}
			return err
		})
	}
	return runAll(ctx, creations)
}

// create stores an object given in a served version.
func (e ensurer) create(ctx context.Context, resource schema.GroupResource, external runtime.Object) (runtime.Object, error) {
	accessor, err := meta.Accessor(external)
	if err != nil {
		return nil, err
	}
	hub, err := toHub(external)
	if err != nil {
		return nil, err
	}
	created, err := e.objects.Create(about(ctx, resource), resource, accessor.GetNamespace(), hub, false)
	if err != nil {
		return nil, err
	}
	e.logger.V(1).Info("created", "resource", resource.String(), "namespace", accessor.GetNamespace(), "name", accessor.GetName())
	return created, nil
}

// about tells upstream's validation, which counts by it, what is being written.
func about(ctx context.Context, resource schema.GroupResource) context.Context {
	return request.WithRequestInfo(ctx, &request.RequestInfo{
		IsResourceRequest: true, APIPrefix: "apis", APIGroup: resource.Group, APIVersion: "v1", Resource: resource.Resource,
	})
}

// list returns a resource's objects by key.
func (e ensurer) list(ctx context.Context, resource schema.GroupResource) (map[string]runtime.Object, error) {
	objects, err := e.objects.List(ctx, resource, "")
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", resource, err)
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

// toHub returns the hub form of an object in a served version, defaults applied. The argument stays as it is.
func toHub(external runtime.Object) (runtime.Object, error) {
	external = external.DeepCopyObject()
	legacyscheme.Scheme.Default(external)
	kinds, _, err := legacyscheme.Scheme.ObjectKinds(external)
	if err != nil {
		return nil, err
	}
	hub := schema.GroupVersion{Group: kinds[0].Group, Version: runtime.APIVersionInternal}
	return legacyscheme.Scheme.ConvertToVersion(external, hub)
}
