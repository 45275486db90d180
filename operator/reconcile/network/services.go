package network

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/reconcile/owned"
)

// Services is the result of EnsureServices.
type Services struct {
	Clients  *corev1.Service // the Service for clients; nil if it could not be read or written
	Endpoint string          // URL for clients
}

// EnsureServices creates and restores the Services, and determines the endpoint for clients, also if it returns an
// error.
func EnsureServices(ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster) (Services, error) {
	var services Services
	var errs []error
	for _, wanted := range desired.Services(cluster) {
		service, err := ensureService(ctx, objects, cluster, wanted)
		errs = append(errs, err)
		if err == nil && wanted.Name == cluster.Name {
			services.Clients = service
		}
	}
	services.Endpoint = endpoint(cluster, services.Clients)
	return services, errors.Join(errs...)
}

// ensureService creates a Service or restores its fields. It recreates a headless Service that has got a cluster IP:
// API servers reject the removal of the address, and members would resolve it instead of each other's addresses. The
// deletion has the UID as a precondition, because a second operator may already have recreated the Service.
func ensureService(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, wanted *corev1.Service,
) (*corev1.Service, error) {
	current := &corev1.Service{}
	found, err := objects.Find(ctx, cluster, wanted.Name, current)
	if err != nil {
		return nil, err
	}
	if !found {
		return wanted, objects.Create(ctx, cluster, wanted)
	}
	if address := current.Spec.ClusterIP; wanted.Spec.ClusterIP == corev1.ClusterIPNone && address != "" &&
		address != corev1.ClusterIPNone {
		if err := objects.Client.Delete(
			ctx, current, client.Preconditions{UID: &current.UID},
		); client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("delete Service %s, which is no longer headless: %w", wanted.Name, err)
		}
		return wanted, objects.Create(ctx, cluster, wanted)
	}
	after := restoredService(current, wanted)
	return after, objects.Update(ctx, current, after)
}

// restoredService returns the current Service with the wanted fields. It keeps fields that the API server and other
// controllers set, such as addresses and node ports, and fields that the operator never sets. Annotations are only
// added or changed: an annotation that was removed from the spec stays, because it cannot be distinguished from an
// annotation of a load balancer controller. A load balancer class that is not in the spec, for example from an
// admission webhook, is kept as well, because the field is immutable as long as the type is LoadBalancer.
func restoredService(current, wanted *corev1.Service) *corev1.Service {
	after := current.DeepCopy()
	owned.SetLabels(after, wanted)
	if len(wanted.Annotations) > 0 {
		annotations := maps.Clone(after.Annotations)
		if annotations == nil {
			annotations = map[string]string{}
		}
		maps.Copy(annotations, wanted.Annotations)
		after.Annotations = annotations
	}
	after.Spec.Type, after.Spec.Selector, after.Spec.ExternalName = wanted.Spec.Type, wanted.Spec.Selector, ""
	if after.Spec.ClusterIP == "" { // the Service had the type ExternalName
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

// ports returns the wanted ports, with the node ports that are already allocated. A port is recognized by its name or
// its number. Without its node port, the API server would allocate another one, and clients and load balancers outside
// of the hosting cluster would lose the replicas. A Service of type ClusterIP must have no node ports.
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

// endpoint returns the URL for clients, with the address of the load balancer if there is one, else the DNS name of the
// Service. The host name of an ingress point takes precedence over its IP address.
func endpoint(cluster *v1alpha1.ApiServerCluster, service *corev1.Service) string {
	if service != nil {
		for _, ingress := range service.Status.LoadBalancer.Ingress {
			for _, host := range []string{ingress.Hostname, ingress.IP} {
				if host != "" {
					return "https://" + net.JoinHostPort(host, strconv.Itoa(desired.SecurePort))
				}
			}
		}
	}
	return desired.Endpoint(cluster)
}

// Addresses returns the IP addresses and host names of a Service, which the serving certificate has to contain.
func Addresses(service *corev1.Service) []string {
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
