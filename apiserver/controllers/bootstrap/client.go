package bootstrap

import (
	"context"
	"errors"
	"fmt"
	"reflect"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-helpers/auth/rbac/reconciliation"
	"k8s.io/kubernetes/pkg/api/legacyscheme"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/system"
)

// client reads and writes one RBAC object for upstream's reconciliation, whose interface has no context. The first read
// returns the object as it was listed. Later reads, which follow a failed write, read from etcd.
type client struct {
	ctx       context.Context
	bootstrap *Bootstrap
	resource  schema.GroupResource
	known     runtime.Object // listed object in the internal version; nil if it does not exist
	read      bool           // the first read has happened
}

func (c *client) get(namespace, name string) (runtime.Object, error) {
	if !c.read {
		c.read = true
		if c.known == nil {
			return nil, apierrors.NewNotFound(c.resource, name)
		}
		return toExternal(c.known)
	}
	internal, err := c.bootstrap.objects.Get(c.ctx,
		resource.Key{GroupResource: c.resource, Namespace: namespace, Name: name}, resource.ReadOptions{})
	if err != nil {
		return nil, err
	}
	return toExternal(internal)
}

func (c *client) create(external runtime.Object) (runtime.Object, error) {
	internal, err := c.bootstrap.create(c.ctx, c.resource, external)
	if err != nil {
		return nil, err
	}
	return toExternal(internal)
}

// update replaces the object unless it has changed since the read.
func (c *client) update(external runtime.Object) (runtime.Object, error) {
	wanted, err := system.ToInternal(external)
	if err != nil {
		return nil, err
	}
	accessor, err := meta.Accessor(wanted)
	if err != nil {
		return nil, err
	}
	key := resource.Key{GroupResource: c.resource, Namespace: accessor.GetNamespace(), Name: accessor.GetName()}
	updated, err :=
		c.bootstrap.objects.Update(withRequestInfo(c.ctx, c.resource), key, func(current runtime.Object) error {
			return c.replace(current, wanted, accessor.GetResourceVersion())
		}, resource.WriteOptions{})
	if err != nil {
		return nil, err
	}
	c.bootstrap.logger.Info("Restored the permissions or subjects of the bootstrap policy", "resource",
		c.resource.String(), "namespace", accessor.GetNamespace(), "name", accessor.GetName())
	return toExternal(updated)
}

func (c *client) replace(current, wanted runtime.Object, revision string) error {
	accessor, err := meta.Accessor(current)
	if err != nil {
		return err
	}
	if accessor.GetResourceVersion() != revision {
		return apierrors.NewConflict(c.resource, accessor.GetName(), errors.New("changed since it was read"))
	}
	return overwrite(current, wanted)
}

// overwrite makes an object equal to another of the same kind.
func overwrite(current, wanted runtime.Object) error {
	into, from := reflect.ValueOf(current), reflect.ValueOf(wanted.DeepCopyObject())
	if into.Type() != from.Type() {
		return fmt.Errorf("cannot replace a %T by a %T", current, wanted)
	}
	into.Elem().Set(from.Elem())
	return nil
}

// toExternal returns a copy of an RBAC object in v1.
func toExternal(internal runtime.Object) (runtime.Object, error) {
	return legacyscheme.Scheme.ConvertToVersion(internal, rbacv1.SchemeGroupVersion)
}

// roleClient reads and writes a role.
type roleClient struct{ *client }

func (c roleClient) Get(namespace, name string) (reconciliation.RuleOwner, error) {
	return owner(c.get(namespace, name))
}

func (c roleClient) Create(role reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	return owner(c.create(role.GetObject()))
}

func (c roleClient) Update(role reconciliation.RuleOwner) (reconciliation.RuleOwner, error) {
	return owner(c.update(role.GetObject()))
}

func owner(object runtime.Object, err error) (reconciliation.RuleOwner, error) {
	if err != nil {
		return nil, err
	}
	switch role := object.(type) {
	case *rbacv1.ClusterRole:
		return reconciliation.ClusterRoleRuleOwner{ClusterRole: role}, nil
	case *rbacv1.Role:
		return reconciliation.RoleRuleOwner{Role: role}, nil
	}
	return nil, fmt.Errorf("unexpected type %T instead of a role", object)
}

// bindingClient reads and writes a binding.
type bindingClient struct{ *client }

func (c bindingClient) Get(namespace, name string) (reconciliation.RoleBinding, error) {
	return binding(c.get(namespace, name))
}

func (c bindingClient) Create(wanted reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	return binding(c.create(wanted.GetObject()))
}

func (c bindingClient) Update(wanted reconciliation.RoleBinding) (reconciliation.RoleBinding, error) {
	return binding(c.update(wanted.GetObject()))
}

// Delete deletes a binding. Upstream calls it to recreate the binding with another role, because roleRef is immutable.
func (c bindingClient) Delete(namespace, name string, uid types.UID) error {
	return c.bootstrap.objects.Delete(c.ctx,
		resource.Key{GroupResource: c.resource, Namespace: namespace, Name: name},
		&metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &uid}})
}

func binding(object runtime.Object, err error) (reconciliation.RoleBinding, error) {
	if err != nil {
		return nil, err
	}
	switch binding := object.(type) {
	case *rbacv1.ClusterRoleBinding:
		return reconciliation.ClusterRoleBindingAdapter{ClusterRoleBinding: binding}, nil
	case *rbacv1.RoleBinding:
		return reconciliation.RoleBindingAdapter{RoleBinding: binding}, nil
	}
	return nil, fmt.Errorf("unexpected type %T instead of a binding", object)
}
