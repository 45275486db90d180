package serviceip

import (
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservice "k8s.io/kubernetes/pkg/api/service"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"
	"k8s.io/utils/ptr"
)

// patchAllocatedValues copies the addresses and ports that an update omits from the previous Service.
func patchAllocatedValues(service, previous *api.Service) {
	if service.Spec.Type != api.ServiceTypeExternalName && previous.Spec.Type != api.ServiceTypeExternalName {
		if service.Spec.ClusterIP == "" {
			service.Spec.ClusterIP = previous.Spec.ClusterIP
		}
		if len(service.Spec.ClusterIPs) == 0 {
			service.Spec.ClusterIPs = previous.Spec.ClusterIPs
		}
	}
	if shouldAllocateNodePorts(service) && shouldAllocateNodePorts(previous) {
		keepPorts(service.Spec.Ports, previous.Spec.Ports)
	}
	if apiservice.NeedsHealthCheck(service) && apiservice.NeedsHealthCheck(previous) &&
		service.Spec.HealthCheckNodePort == 0 {
		service.Spec.HealthCheckNodePort = previous.Spec.HealthCheckNodePort
	}
}

// keepPorts copies the node port of the Service port with the same name, unless the update uses the node port for
// another Service port.
func keepPorts(ports, previous []api.ServicePort) {
	used := nodePorts(ports)
	before := make(map[string]int32, len(previous))
	for _, port := range previous {
		before[port.Name] = port.NodePort
	}
	for i := range ports {
		if ports[i].NodePort == 0 && !slices.Contains(used, before[ports[i].Name]) {
			ports[i].NodePort = before[ports[i].Name]
		}
	}
}

// canHaveNodePorts reports whether the type of a Service allows node ports.
func canHaveNodePorts(service *api.Service) bool {
	return service.Spec.Type == api.ServiceTypeNodePort || service.Spec.Type == api.ServiceTypeLoadBalancer
}

func shouldAllocateNodePorts(service *api.Service) bool {
	return service.Spec.Type == api.ServiceTypeNodePort ||
		service.Spec.Type == api.ServiceTypeLoadBalancer && ptr.Deref(service.Spec.AllocateLoadBalancerNodePorts, true)
}

// nodePorts returns the node ports in ports that are set.
func nodePorts(ports []api.ServicePort) []int32 {
	var set []int32
	for _, port := range ports {
		if port.NodePort != 0 {
			set = append(set, port.NodePort)
		}
	}
	return set
}

// portsOf returns all node ports that a Service has.
func portsOf(service *api.Service) []int32 {
	if service == nil {
		return nil
	}
	ports := nodePorts(service.Spec.Ports)
	if service.Spec.HealthCheckNodePort != 0 {
		ports = append(ports, service.Spec.HealthCheckNodePort)
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// allocatePorts allocates the missing node ports of a Service. If it returns an error, it has allocated none.
func (a *Allocator) allocatePorts(service, previous *api.Service, dryRun bool) error {
	operation := portallocator.StartOperation(a.ports, dryRun)
	if err := allocateAllPorts(operation, service, previous); err != nil {
		a.logLeaks(service, operation.Rollback())
		return err
	}
	return nil
}

func allocateAllPorts(operation *portallocator.PortAllocationOperation, service, previous *api.Service) error {
	if canHaveNodePorts(service) {
		assign := assignNew
		if previous != nil {
			assign = assignChanged
		}
		if err := assign(operation, service, previous); err != nil {
			return err
		}
	}
	if !apiservice.NeedsHealthCheck(service) || previous != nil && apiservice.NeedsHealthCheck(previous) {
		return nil
	}
	if err := assignHealthCheck(operation, service); err != nil {
		return apierrors.NewInternalError(err)
	}
	return nil
}

// assignNew allocates the node ports of a new Service. Service ports that have the same number but different protocols
// share one node port.
func assignNew(operation *portallocator.PortAllocationOperation, service, _ *api.Service) error {
	// shared maps a port number to its node port.
	shared := map[int32]int32{}
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		if port.NodePort == 0 && !shouldAllocateNodePorts(service) {
			continue
		}
		common := shared[port.Port]
		switch {
		case common == 0:
			requested := requestedNodePort(service.Spec.Ports, port.Port)
			if err := allocatePort(operation, service, i, requested); err != nil {
				return err
			}
			shared[port.Port] = port.NodePort
		case port.NodePort == 0:
			port.NodePort = common
		case port.NodePort != common:
			if err := allocatePort(operation, service, i, port.NodePort); err != nil {
				return err
			}
		}
	}
	return nil
}

// requestedNodePort returns the first node port that is requested for a port number, or 0 if there is none.
func requestedNodePort(ports []api.ServicePort, number int32) int32 {
	for _, port := range ports {
		if port.Port == number && port.NodePort != 0 {
			return port.NodePort
		}
	}
	return 0
}

// allocatePort allocates a node port for one Service port: the requested one, or any node port if requested is 0.
func allocatePort(
	operation *portallocator.PortAllocationOperation, service *api.Service, index int, requested int32,
) error {
	if requested == 0 {
		next, err := operation.AllocateNext()
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
		}
		service.Spec.Ports[index].NodePort = int32(next)
		return nil
	}
	if err := operation.Allocate(int(requested)); err != nil {
		return invalid(service, field.NewPath("spec", "ports").Index(index).Child("nodePort"), requested, err.Error())
	}
	service.Spec.Ports[index].NodePort = requested
	return nil
}

// socket is a combination that must be unique in a Service. Its formatted value is part of kube-apiserver's error
// message.
type socket struct {
	Protocol api.Protocol
	NodePort int32
}

// assignChanged allocates the node ports that the previous Service did not have.
func assignChanged(operation *portallocator.PortAllocationOperation, service, previous *api.Service) error {
	had, taken := nodePorts(previous.Spec.Ports), []int32{}
	seen := map[socket]bool{}
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		if port.NodePort == 0 && !shouldAllocateNodePorts(service) {
			continue
		}
		if !slices.Contains(had, port.NodePort) && !slices.Contains(taken, port.NodePort) {
			requested := port.NodePort
			if err := allocatePort(operation, service, i, requested); err != nil {
				return err
			}
			if requested != 0 {
				taken = append(taken, requested)
			}
		}
		used := socket{port.Protocol, port.NodePort}
		if seen[used] {
			return fmt.Errorf("duplicate nodePort: %v", used)
		}
		seen[used] = true
	}
	return nil
}

func assignHealthCheck(operation *portallocator.PortAllocationOperation, service *api.Service) error {
	port := &service.Spec.HealthCheckNodePort
	if *port != 0 {
		if err := operation.Allocate(int(*port)); err != nil {
			return fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", *port, err)
		}
		return nil
	}
	next, err := operation.AllocateNext()
	if err != nil {
		return fmt.Errorf("failed to allocate a HealthCheck NodePort %v: %w", next, err)
	}
	*port = int32(next)
	return nil
}

// allocatedPorts returns the node ports that allocatePorts has allocated, without duplicates.
func allocatedPorts(service, previous *api.Service) []int32 {
	var had, taken []int32
	if previous != nil {
		had = nodePorts(previous.Spec.Ports)
	}
	if canHaveNodePorts(service) {
		taken = slices.DeleteFunc(nodePorts(service.Spec.Ports), func(port int32) bool { return slices.Contains(had, port) })
	}
	if apiservice.NeedsHealthCheck(service) && (previous == nil || !apiservice.NeedsHealthCheck(previous)) &&
		service.Spec.HealthCheckNodePort != 0 {
		taken = append(taken, service.Spec.HealthCheckNodePort)
	}
	slices.Sort(taken)
	return slices.Compact(taken)
}

// releasePorts releases the node ports of a Service that keep does not have.
func (a *Allocator) releasePorts(service, keep *api.Service) error {
	kept := portsOf(keep)
	for _, port := range portsOf(service) {
		if slices.Contains(kept, port) {
			continue
		}
		if err := a.ports.Release(int(port)); err != nil {
			return fmt.Errorf("release node port %d: %w", port, err)
		}
	}
	return nil
}
