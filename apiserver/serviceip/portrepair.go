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
	// leakPatience is how many repairs in a row must find a port without Service before it is given back: a Service
	// may be about to be stored.
	leakPatience = 3
	// repairAttempts is how often a repair is tried when others change the ports in use meanwhile.
	repairAttempts = 5
)

// PortRepair makes the node ports in use those that Services have.
type PortRepair struct {
	used      *sharedRange
	portRange utilnet.PortRange
	services  func(context.Context) ([]runtime.Object, error) // as storage has them
	events    *Events
	logger    logr.Logger
	suspects  map[int]int // how many repairs in a row have found each port without Service, less than leakPatience

	found    *prometheus.CounterVec
	failures prometheus.Counter
}

// NewPortRepair returns the repair of an allocator's ports. services lists all Services as storage has them.
func NewPortRepair(a *Allocator, services func(context.Context) ([]runtime.Object, error), events *Events, logger logr.Logger, registerer prometheus.Registerer) *PortRepair {
	factory := promauto.With(registerer)
	return &PortRepair{
		used: a.used, portRange: a.portRange, services: services, events: events, logger: logger,
		found: factory.NewCounterVec(prometheus.CounterOpts{
			Name: "apiserver_nodeport_repair_port_errors_total",
			Help: "Number of errors detected on ports by the repair loop broken down by type of error: leak, repair, full, outOfRange, duplicate, unknown",
		}, []string{"type"}),
		failures: factory.NewCounter(prometheus.CounterOpts{
			Name: "apiserver_nodeport_repair_reconcile_errors_total",
			Help: "Number of reconciliation failures on the nodeport repair reconcile loop",
		}),
	}
}

// Once repairs. It is not safe for concurrent use.
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
	// The ports first: a Service that is stored afterwards has its ports, and one that is not may yet be.
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
	r.tell(ctx, found)
	return nil
}

// store makes the ports that were rebuilt those in use, unless somebody has changed these meanwhile.
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

// findings are what one look at the ports has found. They are true once the ports rebuilt are stored.
type findings struct {
	stored   *portallocator.PortAllocator // in use and not found with a Service yet
	rebuilt  *portallocator.PortAllocator // to be in use
	flaws    []portFlaw
	suspects map[int]int // how many repairs in a row have found each port without Service
	freed    []int       // suspects that are given back
}

// portFlaw is something wrong with a port of a Service.
type portFlaw struct {
	service            *api.Service
	kind, reason, note string
}

// examine compares the ports in use with those of the Services.
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

// storedPorts are those in use as stored, perhaps for another range of ports than the current one.
func storedPorts(s snapshot, current utilnet.PortRange) (*portallocator.PortAllocator, error) {
	if s.revision == 0 || s.spec == "" {
		return portallocator.NewInMemory(current)
	}
	return portallocator.NewFromSnapshot(&api.RangeAllocation{Range: s.spec, Data: s.data})
}

// claim notes the ports of a Service as in use, and what is wrong with them.
func (f *findings) claim(service *api.Service, ports utilnet.PortRange) {
	for _, port := range claims(service) {
		err := f.rebuilt.Allocate(port)
		var outside *portallocator.ErrNotInRange
		switch {
		case err == nil && f.stored.Has(port):
			_ = f.stored.Release(port) // what is left over has leaked; it is in memory only
		case err == nil:
			f.note(service, "repair", "PortNotAllocated", fmt.Sprintf("Port %d is not allocated; repairing", port))
		case errors.Is(err, portallocator.ErrAllocated):
			f.note(service, "duplicate", "PortAlreadyAllocated", fmt.Sprintf("Port %d was assigned to multiple services; please recreate service", port))
		case errors.As(err, &outside):
			f.note(service, "outOfRange", "PortOutOfRange", fmt.Sprintf("Port %d is not within the port range %v; please recreate service", port, ports))
		default:
			f.note(service, "unknown", "UnknownError", fmt.Sprintf("Unable to allocate port %d due to an unknown error", port))
		}
	}
}

func (f *findings) note(service *api.Service, kind, reason, note string) {
	f.flaws = append(f.flaws, portFlaw{service, kind, reason, note})
}

// suspect keeps a port in use that no Service has, until enough repairs in a row have found it.
func (f *findings) suspect(port, repairs int) {
	if repairs == leakPatience {
		f.freed = append(f.freed, port)
		return
	}
	f.suspects[port] = repairs
	_ = f.rebuilt.Allocate(port) // fails outside the current range, where nothing is to be kept
}

// tell says what was found and done.
func (r *PortRepair) tell(ctx context.Context, found *findings) {
	for _, flaw := range found.flaws {
		r.found.WithLabelValues(flaw.kind).Inc()
		r.events.Warn(ctx, flaw.service, "portallocator-repair-controller", flaw.reason, "PortAllocation", flaw.note)
	}
	for port, repairs := range found.suspects {
		if repairs == 1 {
			r.logger.V(1).Info("A node port in use belongs to no Service; it is given back unless one appears", "port", port)
		}
	}
	for _, port := range found.freed {
		r.found.WithLabelValues("leak").Inc()
		r.logger.Info("A node port in use belonged to no Service and was given back", "port", port)
	}
}

// claims are the node ports of a Service; one is there twice if the Service uses it twice for the same protocol.
func claims(service *api.Service) []int {
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
