package endpoints

import (
	"cmp"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// Manager is the value of the label endpointslice.kubernetes.io/managed-by of the sandbox's slices.
const Manager = "sandbox.quorate.dev"

// Domain is the DNS domain of the management cluster.
const Domain = "cluster.local"

// Slice returns the EndpointSlice of a Service. Because loopback addresses are invalid in an EndpointSlice, it contains
// the DNS names of the Pods, a-b-c-d.namespace.pod.cluster.local.
func Slice(entry Entry) *discoveryv1.EndpointSlice {
	service := entry.Service
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: service.Namespace, Name: service.Name + "-sandbox",
			Labels: map[string]string{discoveryv1.LabelServiceName: service.Name, discoveryv1.LabelManagedBy: Manager},
			OwnerReferences: []metav1.OwnerReference{
				*metav1.NewControllerRef(service, corev1.SchemeGroupVersion.WithKind("Service")),
			},
		},
		AddressType: discoveryv1.AddressTypeFQDN,
		Endpoints:   []discoveryv1.Endpoint{},
	}
	if service.Spec.ClusterIP == corev1.ClusterIPNone {
		slice.Labels[corev1.IsHeadlessService] = ""
	}
	for _, endpoint := range entry.Endpoints {
		slice.Endpoints = append(slice.Endpoints, render(endpoint))
	}
	if len(entry.Endpoints) > 0 {
		slice.Ports = slicePorts(entry.Endpoints[0].Ports)
	}
	return slice
}

func render(endpoint Endpoint) discoveryv1.Endpoint {
	rendered := discoveryv1.Endpoint{
		Addresses: []string{PodName(endpoint)},
		NodeName:  ptr.To(endpoint.Node),
		Conditions: discoveryv1.EndpointConditions{
			Ready: ptr.To(endpoint.Ready), Serving: ptr.To(endpoint.Serving), Terminating: ptr.To(endpoint.Terminating),
		},
		TargetRef: &corev1.ObjectReference{
			Kind: "Pod", Namespace: endpoint.Pod.Namespace, Name: endpoint.Pod.Name, UID: endpoint.UID,
		},
	}
	if endpoint.Hostname != "" {
		rendered.Hostname = ptr.To(endpoint.Hostname)
	}
	return rendered
}

func slicePorts(ports []Port) []discoveryv1.EndpointPort {
	var rendered []discoveryv1.EndpointPort
	for _, port := range ports {
		rendered = append(rendered, discoveryv1.EndpointPort{
			Name: ptr.To(port.Name), Protocol: ptr.To(port.Protocol), Port: ptr.To(port.Target),
		})
	}
	return rendered
}

// PodName returns the DNS name of a Pod's address.
func PodName(endpoint Endpoint) string {
	return strings.ReplaceAll(endpoint.Address.String(), ".", "-") + "." + endpoint.Pod.Namespace + ".pod." + Domain
}

func compare(a, b *corev1.Service) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
}
