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

// keepAllocated fills in what a client left out that the Service has already.
func keepAllocated(service, previous *api.Service) {
	if service.Spec.Type != api.ServiceTypeExternalName && previous.Spec.Type != api.ServiceTypeExternalName {
		if service.Spec.ClusterIP == "" {
			service.Spec.ClusterIP = previous.Spec.ClusterIP
		}
		if len(service.Spec.ClusterIPs) == 0 {
			service.Spec.ClusterIPs = previous.Spec.ClusterIPs
		}
	}
	if wantsPorts(service) && wantsPorts(previous) {
		keepPorts(service.Spec.Ports, previous.Spec.Ports)
	}
	if apiservice.NeedsHealthCheck(service) && apiservice.NeedsHealthCheck(previous) && service.Spec.HealthCheckNodePort == 0 {
		service.Spec.HealthCheckNodePort = previous.Spec.HealthCheckNodePort
	}
}

// keepPorts gives ports without a node port that which the port of the same name had, unless another has it now.
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

// mayHavePorts tells whether a type of Service can have node ports, wantsPorts whether it gets them unasked.
func mayHavePorts(service *api.Service) bool {
	return service.Spec.Type == api.ServiceTypeNodePort || service.Spec.Type == api.ServiceTypeLoadBalancer
}

func wantsPorts(service *api.Service) bool {
	return service.Spec.Type == api.ServiceTypeNodePort ||
		service.Spec.Type == api.ServiceTypeLoadBalancer && ptr.Deref(service.Spec.AllocateLoadBalancerNodePorts, true)
}

// nodePorts returns the node ports that are set.
func nodePorts(ports []api.ServicePort) []int32 {
	var set []int32
	for _, port := range ports {
		if port.NodePort != 0 {
			set = append(set, port.NodePort)
		}
	}
	return set
}

// portsOf returns all node ports that a Service holds.
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

// takePorts gives a Service the node ports that it lacks, and refuses ones that others have. With an error it has
// taken none.
func (a *Allocator) takePorts(service, previous *api.Service, dryRun bool) error {
	operation := portallocator.StartOperation(a.ports, dryRun)
	if err := takeAll(operation, service, previous); err != nil {
		a.report(service, operation.Rollback())
		return err
	}
	return nil
}

func takeAll(operation *portallocator.PortAllocationOperation, service, previous *api.Service) error {
	if mayHavePorts(service) {
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

// assignNew gives a new Service its node ports. Ports of the same number, for different protocols, share one.
func assignNew(operation *portallocator.PortAllocationOperation, service, _ *api.Service) error {
	shared := map[int32]int32{} // node port by port
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		if port.NodePort == 0 && !wantsPorts(service) {
			continue
		}
		common := shared[port.Port]
		switch {
		case common == 0:
			wanted := wantedNodePort(service.Spec.Ports, port.Port)
			if err := takePort(operation, service, i, wanted); err != nil {
				return err
			}
			shared[port.Port] = port.NodePort
		case port.NodePort == 0:
			port.NodePort = common
		case port.NodePort != common:
			if err := takePort(operation, service, i, port.NodePort); err != nil {
				return err
			}
		}
	}
	return nil
}

// wantedNodePort returns the first node port that is asked for a port number, 0 for none.
func wantedNodePort(ports []api.ServicePort, number int32) int32 {
	for _, port := range ports {
		if port.Port == number && port.NodePort != 0 {
			return port.NodePort
		}
	}
	return 0
}

// takePort takes a node port for one port of a Service: the one that is wanted or, for 0, any.
func takePort(operation *portallocator.PortAllocationOperation, service *api.Service, index int, wanted int32) error {
	if wanted == 0 {
		next, err := operation.AllocateNext()
		if err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate a nodePort: %w", err))
		}
		service.Spec.Ports[index].NodePort = int32(next)
		return nil
	}
	if err := operation.Allocate(int(wanted)); err != nil {
		return invalid(service, field.NewPath("spec", "ports").Index(index).Child("nodePort"), wanted, err.Error())
	}
	service.Spec.Ports[index].NodePort = wanted
	return nil
}

// socket is what can be used once on a node. Its form is what a client reads in a message.
type socket struct {
	Protocol api.Protocol
	NodePort int32
}

// assignChanged gives a changed Service the node ports that it did not have before.
func assignChanged(operation *portallocator.PortAllocationOperation, service, previous *api.Service) error {
	had, taken := nodePorts(previous.Spec.Ports), []int32{}
	seen := map[socket]bool{}
	for i := range service.Spec.Ports {
		port := &service.Spec.Ports[i]
		if port.NodePort == 0 && !wantsPorts(service) {
			continue
		}
		if !slices.Contains(had, port.NodePort) && !slices.Contains(taken, port.NodePort) {
			wanted := port.NodePort
			if err := takePort(operation, service, i, wanted); err != nil {
				return err
			}
			if wanted != 0 {
				taken = append(taken, wanted)
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
			return fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %v", *port, err)
		}
		return nil
	}
	next, err := operation.AllocateNext()
	if err != nil {
		return fmt.Errorf("failed to allocate a HealthCheck NodePort %v: %v", next, err)
	}
	*port = int32(next)
	return nil
}

// takenPorts are the node ports that takePorts has taken for a Service, each once.
func takenPorts(service, previous *api.Service) []int32 {
	var had, taken []int32
	if previous != nil {
		had = nodePorts(previous.Spec.Ports)
	}
	if mayHavePorts(service) {
		taken = slices.DeleteFunc(nodePorts(service.Spec.Ports), func(port int32) bool { return slices.Contains(had, port) })
	}
	if apiservice.NeedsHealthCheck(service) && (previous == nil || !apiservice.NeedsHealthCheck(previous)) && service.Spec.HealthCheckNodePort != 0 {
		taken = append(taken, service.Spec.HealthCheckNodePort)
	}
	slices.Sort(taken)
	return slices.Compact(taken)
}

// releasePorts gives back the node ports that a Service has and keep has not.
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
