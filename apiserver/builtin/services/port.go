package services

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	apiservice "k8s.io/kubernetes/pkg/api/service"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/resource"
)

// promiseLife is how long a port stays promised to a Service that does not show up in the cache.
const promiseLife = 30 * time.Second

// promise is whom a port was given to, and until when.
type promise struct {
	service types.NamespacedName
	until   time.Time
}

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
	for i := range ports {
		if ports[i].NodePort != 0 {
			continue
		}
		for _, before := range previous {
			if before.Name == ports[i].Name && !slices.Contains(used, before.NodePort) {
				ports[i].NodePort = before.NodePort
			}
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

// portsOf returns all node ports of a Service.
func portsOf(service *api.Service) []int32 {
	if service == nil {
		return nil
	}
	ports := nodePorts(service.Spec.Ports)
	if service.Spec.HealthCheckNodePort != 0 {
		ports = append(ports, service.Spec.HealthCheckNodePort)
	}
	return ports
}

// takePorts gives a Service the node ports that it lacks, and refuses ones that others have.
func (a *Allocator) takePorts(ctx context.Context, objects resource.Objects, service, previous *api.Service) error {
	if !mayHavePorts(service) && !apiservice.NeedsHealthCheck(service) {
		return nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	used, err := a.usedPorts(ctx, objects, nameOf(service))
	if err != nil {
		return err
	}
	p := portPicker{ports: a, used: used, had: portsOf(previous)}
	if mayHavePorts(service) {
		if err := p.assign(service); err != nil {
			return err
		}
	}
	if apiservice.NeedsHealthCheck(service) {
		if err := p.assignHealthCheck(service); err != nil {
			return err
		}
	}
	until := a.clock.Now().Add(promiseLife)
	for _, port := range portsOf(service) {
		a.promised[port] = promise{service: nameOf(service), until: until}
	}
	return nil
}

func nameOf(service *api.Service) types.NamespacedName {
	return types.NamespacedName{Namespace: service.Namespace, Name: service.Name}
}

// usedPorts returns the ports of all Services but one, and those promised to others.
func (a *Allocator) usedPorts(ctx context.Context, objects resource.Objects, except types.NamespacedName) (map[int32]bool, error) {
	all, err := objects.List(ctx, servicesResource, "")
	if err != nil {
		return nil, err
	}
	used := map[int32]bool{}
	for _, object := range all {
		service := object.(*api.Service)
		if nameOf(service) == except {
			continue
		}
		for _, port := range portsOf(service) {
			used[port] = true
		}
	}
	now := a.clock.Now()
	for port, promise := range a.promised {
		switch {
		case now.After(promise.until):
			delete(a.promised, port)
		case promise.service != except:
			used[port] = true
		}
	}
	return used, nil
}

// forget ends the promises of ports that a Service had and keep has not.
func (a *Allocator) forget(service, keep *api.Service) {
	a.mu.Lock()
	defer a.mu.Unlock()
	kept := portsOf(keep)
	for _, port := range portsOf(service) {
		if a.promised[port].service == nameOf(service) && !slices.Contains(kept, port) {
			delete(a.promised, port)
		}
	}
}

// portPicker chooses the ports of one Service.
type portPicker struct {
	ports *Allocator
	used  map[int32]bool // by others
	had   []int32        // by the Service before
}

func (p portPicker) assign(service *api.Service) error {
	ports := service.Spec.Ports
	for i := range ports {
		if ports[i].NodePort == 0 {
			continue
		}
		if err := p.check(ports[i].NodePort); err != nil {
			return invalid(service, field.NewPath("spec", "ports").Index(i).Child("nodePort"), ports[i].NodePort, err.Error())
		}
	}
	if !wantsPorts(service) {
		return nil
	}
	for i := range ports {
		if ports[i].NodePort != 0 {
			continue
		}
		if ports[i].NodePort = shared(ports, i); ports[i].NodePort != 0 {
			continue
		}
		var err error
		if ports[i].NodePort, err = p.next(nodePorts(ports)); err != nil {
			return err
		}
	}
	return nil
}

// shared returns the node port of another port of the same number but another protocol.
func shared(ports []api.ServicePort, index int) int32 {
	for _, port := range ports {
		if port.NodePort == 0 || port.Port != ports[index].Port {
			continue
		}
		taken := func(other api.ServicePort) bool {
			return other.NodePort == port.NodePort && other.Protocol == ports[index].Protocol
		}
		if !slices.ContainsFunc(ports, taken) {
			return port.NodePort
		}
	}
	return 0
}

func (p portPicker) assignHealthCheck(service *api.Service) error {
	port := &service.Spec.HealthCheckNodePort
	if *port != 0 {
		if err := p.check(*port); err != nil {
			return apierrors.NewInternalError(fmt.Errorf("failed to allocate requested HealthCheck NodePort %v: %w", *port, err))
		}
		return nil
	}
	var err error
	*port, err = p.next(nodePorts(service.Spec.Ports))
	return err
}

// check tells what is wrong with a port that a client asks for.
func (p portPicker) check(port int32) error {
	switch {
	case slices.Contains(p.had, port):
		return nil
	case !p.ports.ports.Contains(int(port)):
		return fmt.Errorf("provided port is not in the valid range. The range of valid ports is %v", p.ports.ports)
	case p.used[port]:
		return errors.New("provided port is already allocated")
	}
	return nil
}

// next returns a port that nobody uses, the Service's own ports included.
func (p portPicker) next(own []int32) (int32, error) {
	size := p.ports.ports.Size
	if size > 0 {
		start := rand.IntN(size)
		for n := range size {
			port := int32(p.ports.ports.Base + (start+n)%size)
			if !p.used[port] && !slices.Contains(own, port) {
				return port, nil
			}
		}
	}
	return 0, apierrors.NewInternalError(errors.New("failed to allocate a nodePort: range is full"))
}
