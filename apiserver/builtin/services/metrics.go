package services

import (
	"net/netip"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"
)

// allocations counts what is given to Services, under kube-apiserver's names.
type allocations struct {
	addresses, addressErrors *prometheus.CounterVec // by range and whether one was asked for
	ports, portErrors        *prometheus.CounterVec // by whether one was asked for
}

const (
	static  = "static"  // the client asked for it
	dynamic = "dynamic" // any will do
)

func newAllocations(registerer prometheus.Registerer) *allocations {
	factory := promauto.With(registerer)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return factory.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &allocations{
		addresses: counter("kube_apiserver_clusterip_allocator_allocation_total",
			"Number of Cluster IPs allocations", "cidr", "scope"),
		addressErrors: counter("kube_apiserver_clusterip_allocator_allocation_errors_total",
			"Number of errors trying to allocate Cluster IPs", "cidr", "scope"),
		ports: counter("kube_apiserver_nodeport_allocator_allocation_total",
			"Number of NodePort allocations", "scope"),
		portErrors: counter("kube_apiserver_nodeport_allocator_allocation_errors_total",
			"Number of errors trying to allocate NodePort", "scope"),
	}
}

func (a *allocations) address(prefix netip.Prefix, scope string, err error) {
	if err != nil {
		a.addressErrors.WithLabelValues(prefix.String(), scope).Inc()
		return
	}
	a.addresses.WithLabelValues(prefix.String(), scope).Inc()
}

func (a *allocations) port(scope string, err error) {
	if err != nil {
		a.portErrors.WithLabelValues(scope).Inc()
		return
	}
	a.ports.WithLabelValues(scope).Inc()
}

// countedPorts counts what is allocated.
type countedPorts struct {
	*portallocator.PortAllocator
	metrics *allocations
}

func newCountedPorts(ports *portallocator.PortAllocator, metrics *allocations, registerer prometheus.Registerer) countedPorts {
	factory := promauto.With(registerer)
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kube_apiserver_nodeport_allocator_allocated_ports", Help: "Gauge measuring the number of allocated NodePorts for Services",
	}, func() float64 { return float64(ports.Used()) })
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kube_apiserver_nodeport_allocator_available_ports", Help: "Gauge measuring the number of available NodePorts for Services",
	}, func() float64 { return float64(ports.Free()) })
	return countedPorts{ports, metrics}
}

// Allocate implements portallocator.Interface.
func (p countedPorts) Allocate(port int) error {
	err := p.PortAllocator.Allocate(port)
	p.metrics.port(static, err)
	return err
}

// AllocateNext implements portallocator.Interface.
func (p countedPorts) AllocateNext() (int, error) {
	port, err := p.PortAllocator.AllocateNext()
	p.metrics.port(dynamic, err)
	return port, err
}
