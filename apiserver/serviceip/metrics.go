package serviceip

import (
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"

	"quorate.dev/apiserver/metrics"
)

// allocations has kube-apiserver's metrics of allocations.
type allocations struct {
	// addresses and addressErrors count allocations by CIDR and scope.
	addresses, addressErrors *prometheus.CounterVec
	addressSeconds           *prometheus.HistogramVec
	// ports and portErrors count allocations by scope.
	ports, portErrors *prometheus.CounterVec
}

const (
	// static is the scope of allocations that the client requests.
	static = "static"
	// dynamic is the scope of allocations that the allocator chooses.
	dynamic = "dynamic"
)

func newAllocations(registerer prometheus.Registerer) *allocations {
	factory := promauto.With(registerer)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return factory.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &allocations{
		addresses: counter("kube_apiserver_clusterip_allocator_allocation_total",
			"[ALPHA] Number of Cluster IPs allocations", "cidr", "scope"),
		addressErrors: counter("kube_apiserver_clusterip_allocator_allocation_errors_total",
			"[ALPHA] Number of errors trying to allocate Cluster IPs", "cidr", "scope"),
		addressSeconds: factory.NewHistogramVec(metrics.Histogram(prometheus.HistogramOpts{
			Name: "kube_apiserver_clusterip_allocator_allocation_duration_seconds",
			Help: "[ALPHA] Duration in seconds to allocate a Cluster IP by ServiceCIDR", Buckets: prometheus.DefBuckets,
		}), []string{"cidr"}),
		ports: counter("kube_apiserver_nodeport_allocator_allocation_total",
			"[ALPHA] Number of NodePort allocations", "scope"),
		portErrors: counter("kube_apiserver_nodeport_allocator_allocation_errors_total",
			"[ALPHA] Number of errors trying to allocate NodePort", "scope"),
	}
}

func (a *allocations) address(prefix netip.Prefix, scope string, took time.Duration, err error) {
	if err != nil {
		a.addressErrors.WithLabelValues(prefix.String(), scope).Inc()
		return
	}
	a.addresses.WithLabelValues(prefix.String(), scope).Inc()
	a.addressSeconds.WithLabelValues(prefix.String()).Observe(took.Seconds())
}

var (
	allocatedAddresses = prometheus.NewDesc("kube_apiserver_clusterip_allocator_allocated_ips",
		"[ALPHA] Gauge measuring the number of allocated IPs for Services", []string{"cidr"}, nil)
	availableAddresses = prometheus.NewDesc("kube_apiserver_clusterip_allocator_available_ips",
		"[ALPHA] Gauge measuring the number of available IPs for Services", []string{"cidr"}, nil)
)

// Describe implements prometheus.Collector.
func (r *AddressRepair) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- allocatedAddresses
	descriptions <- availableAddresses
}

// Collect implements prometheus.Collector. It counts the allocations of all replicas.
func (r *AddressRepair) Collect(values chan<- prometheus.Metric) {
	addresses := r.allocated()
	for _, family := range []api.IPFamily{api.IPv4Protocol, api.IPv6Protocol} {
		for _, o := range r.ranges.of(family) {
			allocated := 0
			for _, address := range addresses {
				if o.prefix.Contains(address) {
					allocated++
				}
			}
			available, cidr := float64(o.size)-float64(allocated), o.prefix.String()
			values <- prometheus.MustNewConstMetric(allocatedAddresses, prometheus.GaugeValue, float64(allocated), cidr)
			values <- prometheus.MustNewConstMetric(availableAddresses, prometheus.GaugeValue, available, cidr)
		}
	}
}

// allocated returns the addresses of the IPAddresses that the allocator has created.
func (r *AddressRepair) allocated() []netip.Addr {
	r.mu.Lock()
	defer r.mu.Unlock()
	var all []netip.Addr
	for name, ipAddress := range r.ipAddresses {
		if address, err := netip.ParseAddr(name); err == nil && ipAddress.labeled {
			all = append(all, address)
		}
	}
	return all
}

func (a *allocations) port(scope string, err error) {
	if err != nil {
		a.portErrors.WithLabelValues(scope).Inc()
		return
	}
	a.ports.WithLabelValues(scope).Inc()
}

// countedPorts counts the allocations of a PortAllocator.
type countedPorts struct {
	*portallocator.PortAllocator
	metrics *allocations
}

func newCountedPorts(
	ports *portallocator.PortAllocator, metrics *allocations, registerer prometheus.Registerer,
) countedPorts {
	factory := promauto.With(registerer)
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kube_apiserver_nodeport_allocator_allocated_ports",
		Help: "[ALPHA] Gauge measuring the number of allocated NodePorts for Services",
	}, func() float64 { return float64(ports.Used()) })
	factory.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "kube_apiserver_nodeport_allocator_available_ports",
		Help: "[ALPHA] Gauge measuring the number of available NodePorts for Services",
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
