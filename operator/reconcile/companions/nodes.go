package companions

import (
	"context"
	"errors"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/reconcile/owned"
)

// ensureNodes publishes the objects inside the cluster that nodes need to join: bindings, the ConfigMap cluster-info,
// and endpoints of the Service default/kubernetes. In the ConfigMap it changes only the kubeconfig, because the
// controller manager adds a signature for each bootstrap token to other keys. Errors are collected: nodes that have
// joined do not depend on all of the objects.
func (s Steps) ensureNodes(ctx context.Context, in Input) error {
	cluster := in.State.Cluster
	hosted, err := s.Connect(in.Credentials.Hosted(in.State))
	if err != nil {
		return err
	}
	nodes := owned.Labeled{API: hosted, Selector: desired.NodesSelector(cluster)}
	var errs []error
	for _, wanted := range desired.NodeBindings(cluster) {
		current := &rbacv1.ClusterRoleBinding{}
		_, err := nodes.Ensure(ctx, wanted, current, func() { current.Subjects = wanted.Subjects })
		errs = append(errs, err)
	}
	info, err := desired.ClusterInfo(cluster, in.Endpoint, in.Credentials.Trusted)
	if err != nil {
		return err
	}
	currentInfo := &corev1.ConfigMap{}
	_, err = nodes.Ensure(ctx, info, currentInfo, func() {
		if currentInfo.Data == nil {
			currentInfo.Data = map[string]string{}
		}
		currentInfo.Data[desired.KubeconfigKey] = info.Data[desired.KubeconfigKey] // keep the signatures
	})
	errs = append(errs, err)
	role, binding := desired.ClusterInfoAccess(cluster)
	currentRole, currentBinding := &rbacv1.Role{}, &rbacv1.RoleBinding{}
	_, err = nodes.Ensure(ctx, role, currentRole, func() { currentRole.Rules = role.Rules })
	errs = append(errs, err)
	_, err = nodes.Ensure(ctx, binding, currentBinding, func() { currentBinding.Subjects = binding.Subjects })
	return errors.Join(append(errs, err, ensureKubernetesSlices(ctx, nodes, cluster, in.Service))...)
}

// ensureKubernetesSlices maintains the EndpointSlices of the Service default/kubernetes. They have the addresses of the
// load balancer, since pods on the cluster's nodes may not reach the pods of the hosting cluster. A slice of an address
// family that the load balancer no longer has is deleted.
func ensureKubernetesSlices(
	ctx context.Context, nodes owned.Labeled, cluster *v1alpha1.ApiServerCluster, service *corev1.Service,
) error {
	keep := map[client.ObjectKey]bool{}
	for _, slice := range desired.KubernetesSlices(cluster, service) {
		keep[client.ObjectKeyFromObject(slice)] = true
		if err := nodes.EnsureSlice(ctx, slice); err != nil {
			return err
		}
	}
	_, err := nodes.Prune(ctx, keep, &discoveryv1.EndpointSliceList{})
	return err
}

// removeNodes deletes the objects inside the cluster that nodes need to join, and reports whether it has. It needs a
// ready API server.
func (s Steps) removeNodes(ctx context.Context, in Input) (bool, error) {
	if in.State.ReadyAddress() == "" {
		return false, nil
	}
	hosted, err := s.Connect(in.Credentials.Hosted(in.State))
	if err != nil {
		return false, err
	}
	nodes := owned.Labeled{API: hosted, Selector: desired.NodesSelector(in.State.Cluster)}
	for _, list := range []client.ObjectList{
		&rbacv1.ClusterRoleBindingList{}, &rbacv1.RoleBindingList{}, &rbacv1.RoleList{}, &corev1.ConfigMapList{},
		&discoveryv1.EndpointSliceList{},
	} {
		if _, err := nodes.Prune(ctx, nil, list); err != nil {
			return false, err
		}
	}
	return true, nil
}
