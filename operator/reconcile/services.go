package reconcile

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/desired"
)

func (r *Reconciler) ensureServices(ctx context.Context, p *pass) error {
	var errs []error
	for _, wanted := range desired.Services(p.cluster) {
		service, err := r.ensureService(ctx, p, wanted)
		errs = append(errs, err)
		if err == nil && wanted.Name == p.cluster.Name {
			p.service = service
		}
	}
	p.input.Endpoint = endpoint(p)
	return errors.Join(errs...)
}

// ensureService creates a Service or restores its fields. A headless Service that has a cluster IP is recreated: API
// servers reject removing the address, and members would resolve it instead of each other.
func (r *Reconciler) ensureService(ctx context.Context, p *pass, wanted *corev1.Service) (*corev1.Service, error) {
	current := &corev1.Service{}
	found, err := r.find(ctx, p.cluster, wanted.Name, current)
	if err != nil {
		return nil, err
	}
	if !found {
		return wanted, r.create(ctx, p.cluster, wanted)
	}
	if address := current.Spec.ClusterIP; wanted.Spec.ClusterIP == corev1.ClusterIPNone && address != "" && address != corev1.ClusterIPNone {
		if err := r.Client.Delete(ctx, current, client.Preconditions{UID: &current.UID}); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("deleting Service %s, which is no longer headless: %w", wanted.Name, err)
		}
		return wanted, r.create(ctx, p.cluster, wanted)
	}
	after := restoredService(current, wanted)
	return after, r.update(ctx, current, after)
}

// restoredService returns the Service with the desired fields. It keeps fields that the API server and other
// controllers set, such as addresses and node ports, and fields that the operator never sets.
func restoredService(current, wanted *corev1.Service) *corev1.Service {
	after := current.DeepCopy()
	setLabels(after, wanted)
	if len(wanted.Annotations) > 0 {
		annotations := maps.Clone(after.Annotations)
		if annotations == nil {
			annotations = map[string]string{}
		}
		maps.Copy(annotations, wanted.Annotations)
		after.Annotations = annotations
	}
	after.Spec.Type, after.Spec.Selector, after.Spec.ExternalName = wanted.Spec.Type, wanted.Spec.Selector, ""
	if after.Spec.ClusterIP == "" { // of a Service that was of type ExternalName
		after.Spec.ClusterIP = wanted.Spec.ClusterIP
	}
	after.Spec.LoadBalancerSourceRanges = wanted.Spec.LoadBalancerSourceRanges
	if wanted.Spec.LoadBalancerClass != nil || wanted.Spec.Type != corev1.ServiceTypeLoadBalancer {
		after.Spec.LoadBalancerClass = wanted.Spec.LoadBalancerClass
	}
	after.Spec.PublishNotReadyAddresses = wanted.Spec.PublishNotReadyAddresses
	after.Spec.Ports = ports(current, wanted)
	return after
}

// ports returns the desired ports with the allocated node ports.
func ports(current, wanted *corev1.Service) []corev1.ServicePort {
	out := slices.Clone(wanted.Spec.Ports)
	for i := range out {
		for _, port := range current.Spec.Ports {
			if (port.Name == out[i].Name || port.Port == out[i].Port) && wanted.Spec.Type != corev1.ServiceTypeClusterIP {
				out[i].NodePort = port.NodePort
			}
		}
	}
	return out
}

// endpoint returns the URL for clients: the address of the load balancer, or else the Service's DNS name.
func endpoint(p *pass) string {
	if p.service != nil {
		for _, ingress := range p.service.Status.LoadBalancer.Ingress {
			for _, host := range []string{ingress.Hostname, ingress.IP} {
				if host != "" {
					return "https://" + net.JoinHostPort(host, strconv.Itoa(desired.SecurePort))
				}
			}
		}
	}
	return desired.Endpoint(p.cluster)
}

// addresses returns the IP addresses and host names of the Service.
func addresses(service *corev1.Service) []string {
	if service == nil {
		return nil
	}
	var out []string
	for _, address := range append(slices.Clone(service.Spec.ClusterIPs), service.Spec.ClusterIP) {
		if address != "" && address != corev1.ClusterIPNone {
			out = append(out, address)
		}
	}
	for _, ingress := range service.Status.LoadBalancer.Ingress {
		for _, host := range []string{ingress.Hostname, ingress.IP} {
			if host != "" {
				out = append(out, host)
			}
		}
	}
	return out
}

// ensureBudget protects the quorum of the present and of the desired voters.
func (r *Reconciler) ensureBudget(ctx context.Context, p *pass) error {
	voters, _ := p.state.Voters()
	if p.state.EtcdErr != nil {
		voters = int(p.cluster.Status.Voters)
	}
	wanted := desired.Budget(p.cluster, voters)
	current := &policyv1.PodDisruptionBudget{}
	found, err := r.find(ctx, p.cluster, p.cluster.Name, current)
	switch {
	case err != nil:
		return err
	case wanted == nil && found:
		if err := r.Client.Delete(ctx, current); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting the disruption budget: %w", err)
		}
		return nil
	case wanted == nil:
		return nil
	case !found:
		return r.create(ctx, p.cluster, wanted)
	}
	after := current.DeepCopy()
	setLabels(after, wanted)
	after.Spec = wanted.Spec
	return r.update(ctx, current, after)
}

// ensureNetworkPolicies runs before pods are created. Its failure does not prevent their creation, because certificates
// protect the members' ports too.
func (r *Reconciler) ensureNetworkPolicies(ctx context.Context, p *pass) error {
	wanted := map[string]*networkingv1.NetworkPolicy{}
	for _, policy := range desired.NetworkPolicies(p.cluster, r.OperatorNamespace) {
		wanted[policy.Name] = policy
	}
	var errs []error
	for _, name := range desired.NetworkPolicyNames(p.cluster) {
		errs = append(errs, r.ensureNetworkPolicy(ctx, p, name, wanted[name]))
	}
	return errors.Join(errs...)
}

// ensureNetworkPolicy creates or updates a policy, or deletes it if wanted is nil and the cluster owns it.
func (r *Reconciler) ensureNetworkPolicy(
	ctx context.Context, p *pass, name string, wanted *networkingv1.NetworkPolicy,
) error {
	current := &networkingv1.NetworkPolicy{}
	found, err := r.find(ctx, p.cluster, name, current)
	switch {
	case wanted == nil && errors.Is(err, errForeign):
		return nil
	case err != nil:
		return err
	case wanted == nil && found:
		err := r.Client.Delete(ctx, current, client.Preconditions{UID: &current.UID})
		if client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("deleting network policy %s: %w", name, err)
		}
		return nil
	case wanted == nil:
		return nil
	case !found:
		return r.create(ctx, p.cluster, wanted)
	}
	after := current.DeepCopy()
	setLabels(after, wanted)
	after.Spec = wanted.Spec
	return r.update(ctx, current, after)
}
