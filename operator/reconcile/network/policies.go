package network

import (
	"context"
	"errors"

	networkingv1 "k8s.io/api/networking/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/reconcile/owned"
)

// EnsurePolicies maintains the network policies. They admit connections from the namespace of the operator, unless that
// is empty. EnsurePolicies runs before pods are created. If it fails, pods are created nevertheless, because
// certificates also protect the ports of the members.
func EnsurePolicies(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, operatorNamespace string,
) error {
	wanted := map[string]*networkingv1.NetworkPolicy{}
	for _, policy := range desired.NetworkPolicies(cluster, operatorNamespace) {
		wanted[policy.Name] = policy
	}
	var errs []error
	for _, name := range desired.NetworkPolicyNames(cluster) {
		errs = append(errs, ensurePolicy(ctx, objects, cluster, name, wanted[name]))
	}
	return errors.Join(errs...)
}

// ensurePolicy creates or updates a policy. If wanted is nil, it deletes the policy, unless another owner has created
// it: a foreign policy is an error only if it occupies a name that the spec needs.
func ensurePolicy(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, name string,
	wanted *networkingv1.NetworkPolicy,
) error {
	current := &networkingv1.NetworkPolicy{}
	if wanted == nil {
		current.Name = name
		_, err := objects.Remove(ctx, cluster, current)
		return err
	}
	return objects.Ensure(ctx, cluster, wanted, current, func() { current.Spec = wanted.Spec })
}
