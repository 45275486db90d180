// Package endpoints computes the endpoints of Services, like Kubernetes' EndpointSlice controller.
package endpoints

import (
	"cmp"
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Endpoint is a Pod of a Service.
type Endpoint struct {
	Address     netip.Addr
	Hostname    string // spec.hostname of the Pod, if its spec.subdomain is the name of the Service
	Pod         types.NamespacedName
	UID         types.UID
	Node        string
	Ready       bool // Serving and not Terminating, or the Service has publishNotReadyAddresses
	Serving     bool // the Pod's condition Ready
	Terminating bool // the Pod has a deletion timestamp
	Ports       []Port
}

// Port is a port of a Service with its target port in one Pod.
type Port struct {
	Name     string
	Protocol corev1.Protocol
	Port     int32 // port of the Service
	Target   int32 // port of the Pod
}

// Of returns the endpoints of a Service, sorted by the names of Pods. A Service without a selector has none. Pods
// without an address and terminated Pods are no endpoints.
func Of(service *corev1.Service, pods []*corev1.Pod) []Endpoint {
	if len(service.Spec.Selector) == 0 {
		return nil
	}
	selector := labels.SelectorFromSet(service.Spec.Selector)
	var result []Endpoint
	for _, pod := range pods {
		if pod.Namespace != service.Namespace || !selector.Matches(labels.Set(pod.Labels)) {
			continue
		}
		if endpoint, ok := of(service, pod); ok {
			result = append(result, endpoint)
		}
	}
	slices.SortFunc(result, func(a, b Endpoint) int { return cmp.Compare(a.Pod.Name, b.Pod.Name) })
	return result
}

func of(service *corev1.Service, pod *corev1.Pod) (Endpoint, bool) {
	address, err := netip.ParseAddr(pod.Status.PodIP)
	if err != nil || pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return Endpoint{}, false
	}
	serving, leaving := ready(pod), pod.DeletionTimestamp != nil
	endpoint := Endpoint{
		Address: address, Pod: types.NamespacedName{Namespace: pod.Namespace, Name: pod.Name}, UID: pod.UID,
		Node: pod.Spec.NodeName, Serving: serving, Terminating: leaving,
		Ready: service.Spec.PublishNotReadyAddresses || serving && !leaving,
	}
	if pod.Spec.Hostname != "" && pod.Spec.Subdomain == service.Name {
		endpoint.Hostname = pod.Spec.Hostname
	}
	for _, port := range service.Spec.Ports {
		if target, ok := targetPort(port, pod); ok {
			endpoint.Ports = append(endpoint.Ports, Port{
				Name: port.Name, Protocol: cmp.Or(port.Protocol, corev1.ProtocolTCP), Port: port.Port, Target: target,
			})
		}
	}
	return endpoint, true
}

func ready(pod *corev1.Pod) bool {
	for _, condition := range pod.Status.Conditions {
		if condition.Type == corev1.PodReady {
			return condition.Status == corev1.ConditionTrue
		}
	}
	return false
}

// targetPort returns the target port in a Pod; it looks up a named port in the ports of the Pod's containers.
func targetPort(port corev1.ServicePort, pod *corev1.Pod) (int32, bool) {
	if port.TargetPort.Type == intstr.Int {
		return cmp.Or(port.TargetPort.IntVal, port.Port), true
	}
	for _, container := range pod.Spec.Containers {
		for _, candidate := range container.Ports {
			if candidate.Name == port.TargetPort.StrVal &&
				cmp.Or(candidate.Protocol, corev1.ProtocolTCP) == cmp.Or(port.Protocol, corev1.ProtocolTCP) {
				return candidate.ContainerPort, true
			}
		}
	}
	return 0, false
}
