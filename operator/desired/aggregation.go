package desired

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"

	"quorate.dev/operator/api/v1alpha1"
)

// Labels of objects that cannot have an owner reference to the cluster, because they are inside the cluster or
// cluster-scoped. NamespaceLabel is the namespace of the cluster, because the name in ClusterLabel is unique only
// within a namespace.
const (
	RegistrationLabel = "quorate.dev/registration"
	NamespaceLabel    = "quorate.dev/cluster-namespace"

	aggregation = "aggregation" // value of RegistrationLabel on objects that register extension API servers
)

const defaultServiceNamespace = "kube-system"

// Registration is the set of objects inside a cluster that register one extension API server.
type Registration struct {
	Service    *corev1.Service
	Slice      *discoveryv1.EndpointSlice
	APIService *apiregistrationv1.APIService
}

// RegistrationSelector selects the objects of all Registrations of a cluster.
func RegistrationSelector(cluster *v1alpha1.ApiServerCluster) labels.Set {
	return labels.Set{RegistrationLabel: aggregation, ClusterLabel: cluster.Name, NamespaceLabel: cluster.Namespace}
}

// APIServiceName returns the name of the APIService of a group and version.
func APIServiceName(group, version string) string { return version + "." + group }

// Register returns the objects for an entry of spec.aggregation.apiServices. The Service is headless, because API
// servers cannot reach cluster IPs of their own cluster; they connect to its endpoints. The endpoint for a Service of
// the hosting cluster is the DNS name of that Service, which stays valid when the Service is recreated.
func Register(
	cluster *v1alpha1.ApiServerCluster, entry *v1alpha1.AggregatedAPIService, caBundle []byte,
) (Registration, error) {
	host, port, err := backend(cluster, entry)
	if err != nil {
		return Registration{}, err
	}
	reference := serviceReference(cluster, entry)
	object := metav1.ObjectMeta{
		Name: reference.Name, Namespace: reference.Namespace, Labels: merged(Labels(cluster), RegistrationSelector(cluster)),
	}
	r := Registration{
		Service: &corev1.Service{ObjectMeta: object, Spec: corev1.ServiceSpec{
			Type: corev1.ServiceTypeClusterIP, ClusterIP: corev1.ClusterIPNone,
			Ports: []corev1.ServicePort{{
				Name: "https", Port: port, TargetPort: intstr.FromInt32(port), Protocol: corev1.ProtocolTCP,
			}},
		}},
		Slice: &discoveryv1.EndpointSlice{
			ObjectMeta: object, AddressType: addressType(host),
			Endpoints: []discoveryv1.Endpoint{{
				Addresses: []string{host}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			}},
			Ports: []discoveryv1.EndpointPort{{Name: ptr.To("https"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To(port)}},
		},
	}
	r.Slice.Labels = merged(object.Labels, map[string]string{
		discoveryv1.LabelServiceName: reference.Name, discoveryv1.LabelManagedBy: sliceManager,
	})
	object.Name, object.Namespace = APIServiceName(entry.Group, entry.Version), ""
	r.APIService = &apiregistrationv1.APIService{ObjectMeta: object, Spec: apiregistrationv1.APIServiceSpec{
		Group: entry.Group, Version: entry.Version,
		GroupPriorityMinimum: cmp.Or(entry.GroupPriorityMinimum, defaultGroupPriority),
		VersionPriority:      cmp.Or(entry.VersionPriority, defaultVersionPriority),
		Service: &apiregistrationv1.ServiceReference{
			Name: reference.Name, Namespace: reference.Namespace, Port: &port,
		},
		CABundle: caBundle, InsecureSkipTLSVerify: entry.InsecureSkipTLSVerify,
	}}
	return r, nil
}

// Defaults of the schema of AggregatedAPIService, for entries that were stored without them.
const (
	defaultGroupPriority   = 1000
	defaultVersionPriority = 15
	defaultServicePort     = 443
)

// backend returns the host and the port of an extension API server. The host is a DNS name or IP address that is valid
// in the hosting cluster.
func backend(
	cluster *v1alpha1.ApiServerCluster, entry *v1alpha1.AggregatedAPIService,
) (host string, port int32, err error) {
	name := APIServiceName(entry.Group, entry.Version)
	if (entry.Service != nil) == (entry.Address != "") {
		return "", 0, fmt.Errorf("apiServices %s: exactly one of service and address is required", name)
	}
	if service := entry.Service; service != nil {
		namespace := cmp.Or(service.Namespace, cluster.Namespace)
		return service.Name + "." + namespace + ".svc", cmp.Or(service.Port, defaultServicePort), nil
	}
	host, text, err := net.SplitHostPort(entry.Address)
	if err != nil {
		return "", 0, fmt.Errorf("apiServices %s: address: %w", name, err)
	}
	number, err := strconv.ParseUint(text, 10, 16)
	if err != nil || number == 0 || host == "" {
		return "", 0, fmt.Errorf("apiServices %s: address %q must be a host and a port from 1 to 65535", name, entry.Address)
	}
	if err := validateHost(host); err != nil {
		return "", 0, fmt.Errorf("apiServices %s: address: %w", name, err)
	}
	return host, int32(number), nil
}

// validateHost rejects a host that an EndpointSlice cannot contain.
func validateHost(host string) error {
	address, err := netip.ParseAddr(host)
	if err != nil {
		return validation.IsFullyQualifiedDomainName(field.NewPath("host"), host).ToAggregate()
	}
	if !address.IsGlobalUnicast() {
		return fmt.Errorf("%s is a loopback, link-local, multicast or unspecified address, which endpoints cannot have",
			address)
	}
	return nil
}

func addressType(host string) discoveryv1.AddressType {
	switch address, err := netip.ParseAddr(host); {
	case err != nil:
		return discoveryv1.AddressTypeFQDN
	case address.Is4():
		return discoveryv1.AddressTypeIPv4
	}
	return discoveryv1.AddressTypeIPv6
}

// serviceReference returns the name and namespace of the Service inside the cluster: serviceRef of the entry; without
// it, the name and namespace of the entry's Service in the hosting cluster; with an address instead of a Service,
// VERSION-GROUP in defaultServiceNamespace, with dashes for dots and truncated to the 63 characters of a DNS label.
func serviceReference(
	cluster *v1alpha1.ApiServerCluster, entry *v1alpha1.AggregatedAPIService,
) v1alpha1.ServiceReference {
	switch {
	case entry.ServiceRef != nil:
		return *entry.ServiceRef
	case entry.Service != nil:
		return v1alpha1.ServiceReference{
			Name: entry.Service.Name, Namespace: cmp.Or(entry.Service.Namespace, cluster.Namespace),
		}
	}
	name := entry.Version + "-" + strings.ReplaceAll(entry.Group, ".", "-")
	return v1alpha1.ServiceReference{Name: name[:min(len(name), 63)], Namespace: defaultServiceNamespace}
}

// RoutesToEndpoints reports whether the API server in a pod runs with --enable-aggregator-routing, and so connects to
// the endpoints of Services instead of their cluster IPs.
func RoutesToEndpoints(pod *corev1.Pod) bool {
	return slices.Contains(pod.Spec.Containers[0].Args, "--enable-aggregator-routing=true")
}

// usesAggregatorRouting reports whether the API servers need --enable-aggregator-routing: the Services of
// spec.aggregation are headless, so their endpoints are the only addresses.
func usesAggregatorRouting(cluster *v1alpha1.ApiServerCluster) bool {
	return len(cluster.Spec.Aggregation.APIServices) > 0
}

// validateAggregation returns the errors in spec.aggregation.
func validateAggregation(cluster *v1alpha1.ApiServerCluster) error {
	type endpoint struct {
		host string
		port int32
	}
	seen, services := map[string]bool{}, map[v1alpha1.ServiceReference]endpoint{}
	var errs []error
	for i := range cluster.Spec.Aggregation.APIServices {
		entry := &cluster.Spec.Aggregation.APIServices[i]
		name := APIServiceName(entry.Group, entry.Version)
		host, port, err := backend(cluster, entry)
		reference := serviceReference(cluster, entry)
		other, used := services[reference]
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("spec.aggregation.%w", err))
		case seen[name]:
			errs = append(errs, fmt.Errorf("spec.aggregation.apiServices has %s twice", name))
		case used && other != endpoint{host, port}:
			errs = append(errs,
				fmt.Errorf("spec.aggregation.apiServices %s: serviceRef %s/%s is used by another entry with a different service "+
					"or address", name, reference.Namespace, reference.Name))
		case entry.CABundle != nil && (entry.CABundle.SecretRef != nil) == (entry.CABundle.ConfigMapRef != nil):
			errs = append(errs,
				fmt.Errorf("spec.aggregation.apiServices %s: caBundle needs exactly one of secretRef and configMapRef", name))
		case entry.CABundle != nil && entry.InsecureSkipTLSVerify:
			errs = append(errs,
				fmt.Errorf("spec.aggregation.apiServices %s: caBundle and insecureSkipTLSVerify are mutually exclusive", name))
		}
		seen[name], services[reference] = true, endpoint{host, port}
	}
	if value, set := cluster.Spec.ExtraArgs["enable-aggregator-routing"]; set && value != "true" &&
		usesAggregatorRouting(cluster) {
		errs = append(errs,
			errors.New("spec.extraArgs: enable-aggregator-routing must be true with spec.aggregation.apiServices"))
	}
	return errors.Join(errs...)
}
