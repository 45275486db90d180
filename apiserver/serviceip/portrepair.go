package serviceip

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	"k8s.io/apimachinery/pkg/runtime"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"

	"quorate.dev/apiserver/storage"
)

const (
	// leakPatience is the number of consecutive repairs that must find a port without a Service before it is released,
	// because the Service may not be stored yet.
	leakPatience = 3
	// repairAttempts is the maximum number of attempts of a repair whose writes conflict.
	repairAttempts = 5
)

// PortRepair makes the allocated node ports equal to the node ports of the stored Services, as kube-apiserver's
// portallocator repair does.
type PortRepair struct {
	used      *sharedRange
	portRange utilnet.PortRange
	// services lists all Services from etcd.
	services func(context.Context) ([]runtime.Object, error)
	events   *Events
	logger   logr.Logger
	// suspects has the number of consecutive repairs that have found a port without a Service, by port. Invariant:
	// values are less than leakPatience.
	suspects map[int]int

	detected *prometheus.CounterVec
	failures prometheus.Counter
}

// NewPortRepair returns the repair of an allocator's ports. services must list all Services from etcd.
func NewPortRepair(
	a *Allocator, services func(context.Context) ([]runtime.Object, error), events *Events, logger logr.Logger,
	registerer prometheus.Registerer,
) *PortRepair {
	factory := promauto.With(registerer)
	return &PortRepair{
		used: a.used, portRange: a.portRange, services: services, events: events, logger: logger,
		detected: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_nodeport_repair_port_errors_total",
			Help: "[ALPHA] Number of errors detected on ports by the repair loop broken down by type of error: leak, repair, " +
				"full, outOfRange, duplicate, unknown",
		}, []string{"type"}),
		failures: factory.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_nodeport_repair_reconcile_errors_total",
			Help: "[ALPHA] Number of reconciliation failures on the nodeport repair reconcile loop",
		}),
	}
}

// Once runs one repair. It is not safe for concurrent use.
func (r *PortRepair) Once(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		err := r.attempt(ctx)
		if err == nil {
			return nil
		}
		r.failures.Inc()
		var conflict *storage.ConflictError
		if !errors.As(err, &conflict) || attempt == repairAttempts {
			return fmt.Errorf("repair the node ports: %w", err)
		}
	}
}

func (r *PortRepair) attempt(ctx context.Context) error {
	// The ports are read before the Services. If a Service is stored between the two reads, its ports are not in
	// current, and the write conflicts.
	current, err := r.used.load(ctx)
	if err != nil {
		return err
	}
	services, err := r.services(ctx)
	if err != nil {
		return err
	}
	found, err := r.examine(current, services)
	if err != nil {
		return err
	}
	if err := r.store(ctx, current, found.rebuilt); err != nil {
		return err
	}
	r.suspects = found.suspects
	r.record(ctx, found)
	return nil
}

// store replaces the stored ports with the rebuilt ports, unless the stored ports have changed since current was read.
func (r *PortRepair) store(ctx context.Context, current snapshot, rebuilt *portallocator.PortAllocator) error {
	var next api.RangeAllocation
	if err := rebuilt.Snapshot(&next); err != nil {
		return err
	}
	if current.revision != 0 && current.spec == next.Range && string(current.data) == string(next.Data) {
		return nil
	}
	_, err := r.used.replace(ctx, current.revision, snapshot{spec: next.Range, data: next.Data})
	return err
}

// findings are the results of one repair. They are valid after rebuilt has been stored.
type findings struct {
	// stored has the allocated ports that have not been found in a Service.
	stored *portallocator.PortAllocator
	// rebuilt has the ports to store.
	rebuilt *portallocator.PortAllocator
	issues  []portIssue
	// suspects is the next value of PortRepair.suspects.
	suspects map[int]int
	// freed has the leaked ports that are released.
	freed []int
}

// portIssue is a warning about a port of a Service.
type portIssue struct {
	service            *api.Service
	kind, reason, note string
}

// examine compares the allocated ports with the ports of the Services.
func (r *PortRepair) examine(current snapshot, services []runtime.Object) (*findings, error) {
	stored, err := storedPorts(current, r.portRange)
	if err != nil {
		return nil, err
	}
	rebuilt, err := portallocator.NewInMemory(r.portRange)
	if err != nil {
		return nil, err
	}
	found := &findings{stored: stored, rebuilt: rebuilt, suspects: map[int]int{}}
	for _, object := range services {
		found.claim(object.(*api.Service), r.portRange)
	}
	stored.ForEach(func(port int) { found.suspect(port, r.suspects[port]+1) })
	return found, nil
}

// storedPorts returns the allocated ports. Their range may differ from the current range.
func storedPorts(s snapshot, current utilnet.PortRange) (*portallocator.PortAllocator, error) {
	if s.revision == 0 || s.spec == "" {
		return portallocator.NewInMemory(current)
	}
	return portallocator.NewFromSnapshot(&api.RangeAllocation{Range: s.spec, Data: s.data})
}

// claim marks the ports of a Service as allocated, and records the issues of these ports.
func (f *findings) claim(service *api.Service, ports utilnet.PortRange) {
	for _, port := range collectNodePorts(service) {
		err := f.rebuilt.Allocate(port)
		var outside *portallocator.ErrNotInRange
		switch {
		case err == nil && f.stored.Has(port):
			// This changes only the copy in memory. The remaining ports have leaked.
			_ = f.stored.Release(port)
		case err == nil:
			f.note(service, "repair", "PortNotAllocated", fmt.Sprintf("Port %d is not allocated; repairing", port))
		case errors.Is(err, portallocator.ErrAllocated):
			f.note(service, "duplicate", "PortAlreadyAllocated",
				fmt.Sprintf("Port %d was assigned to multiple services; please recreate service", port))
		case errors.As(err, &outside):
			f.note(service, "outOfRange", "PortOutOfRange",
				fmt.Sprintf("Port %d is not within the port range %v; please recreate service", port, ports))
		default:
			f.note(service, "unknown", "UnknownError", fmt.Sprintf("Unable to allocate port %d due to an unknown error", port))
		}
	}
}

func (f *findings) note(service *api.Service, kind, reason, note string) {
	f.issues = append(f.issues, portIssue{service, kind, reason, note})
}

// suspect keeps a port without a Service allocated until leakPatience consecutive repairs have found it.
func (f *findings) suspect(port, repairs int) {
	if repairs == leakPatience {
		f.freed = append(f.freed, port)
		return
	}
	f.suspects[port] = repairs
	// Allocate fails for ports outside the current range, which are dropped.
	_ = f.rebuilt.Allocate(port)
}

// record reports the findings as Events, metrics and log lines.
func (r *PortRepair) record(ctx context.Context, found *findings) {
	for _, issue := range found.issues {
		r.detected.WithLabelValues(issue.kind).Inc()
		r.events.Warn(ctx, issue.service, Warning{
			Controller: "portallocator-repair-controller", Reason: issue.reason, Action: "PortAllocation", Note: issue.note,
		})
	}
	for port, repairs := range found.suspects {
		if repairs == 1 {
			r.logger.V(1).Info("An allocated node port belongs to no Service; it will be released unless one appears",
				"port", port)
		}
	}
	for _, port := range found.freed {
		r.detected.WithLabelValues("leak").Inc()
		r.logger.Info("Released an allocated node port that belonged to no Service", "port", port)
	}
}

// collectNodePorts returns the node ports of a Service. A node port that the Service uses twice with the same protocol
// is returned twice.
func collectNodePorts(service *api.Service) []int {
	var ports []int
	seen := map[socket]bool{}
	any := map[int32]bool{}
	claim := func(s socket) {
		if s.NodePort != 0 && (!any[s.NodePort] || seen[s]) {
			ports = append(ports, int(s.NodePort))
		}
		any[s.NodePort], seen[s] = true, true
	}
	for _, port := range service.Spec.Ports {
		claim(socket{port.Protocol, port.NodePort})
	}
	claim(socket{api.ProtocolTCP, service.Spec.HealthCheckNodePort})
	return ports
}
