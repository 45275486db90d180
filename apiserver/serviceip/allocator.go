// Package serviceip allocates cluster IPs and node ports to Services and repairs the allocations.
//
// An address is allocated by creating the IPAddress with its name, as in kube-apiserver. The create is atomic across
// replicas, so that no lock is needed. The node ports in use are a bitmap in one RangeAllocation, in kube-apiserver's
// format, which is replaced by compare-and-swap; the allocations of concurrent requests are batched into one write
// (sharedRange).
//
// Order of writes: Allocate runs before its Service is stored, Release after the Service is deleted or updated. A
// crash in between, or a write of the Service whose outcome is unknown, leaks an allocation, but never allocates
// anything twice. PortRepair and AddressRepair release leaked allocations after a grace period that covers requests
// in flight.
//
// The ranges follow the events of ServiceCIDRs (Ranges). A replica that has not received an event yet would reject a
// valid request; therefore the ServiceCIDRs are read from etcd before an allocation fails for lack of a range.
//
// Lock order: Events.mu is held while Events are written. AddressRepair.mu, Ranges.mu and sharedRange.mu are leaves:
// no request is sent and no other lock is acquired while any of them is held.
package serviceip

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/registry/core/service/allocator"
	"k8s.io/kubernetes/pkg/registry/core/service/portallocator"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
	"quorate.dev/apiserver/system"
)

var servicesResource = schema.GroupResource{Resource: "services"}

// Allocator allocates the cluster IPs and node ports of Services. It is safe for concurrent use.
type Allocator struct {
	// families are the IP families of the cluster, the default family first.
	families  []api.IPFamily
	ranges    *Ranges
	portRange utilnet.PortRange
	// used has the allocated node ports.
	used    *sharedRange
	ports   portallocator.Interface
	clock   clock.PassiveClock
	logger  logr.Logger
	metrics *allocations
}

// Options configure an Allocator.
type Options struct {
	// CIDRs are the ranges of --service-cluster-ip-range, of which only the families are used.
	CIDRs []string
	// Ranges are the ranges from which addresses are allocated.
	Ranges *Ranges
	Ports  utilnet.PortRange
	Store  *storage.Store
	// MediaType is the media type of the stored node ports; empty means protobuf.
	MediaType  string
	Clock      clock.PassiveClock
	Logger     logr.Logger
	Registerer prometheus.Registerer
}

// New returns an allocator. With an empty etcd, it cannot allocate node ports until PortRepair has run.
func New(options Options) (*Allocator, error) {
	a := &Allocator{
		ranges: options.Ranges, portRange: options.Ports,
		used:  &sharedRange{store: options.Store, path: nodePortsPath, codec: newRangeCodec(options.MediaType)},
		clock: options.Clock, logger: options.Logger,
	}
	for _, cidr := range options.CIDRs {
		a.families = append(a.families, familyOf(strings.Split(cidr, "/")[0]))
	}
	ports, err := portallocator.New(options.Ports, func(size int, spec string, offset int) (allocator.Interface, error) {
		a.used.size, a.used.spec, a.used.offset = size, spec, offset
		return a.used, nil
	})
	if err != nil {
		return nil, fmt.Errorf("range of node ports: %w", err)
	}
	a.metrics = newAllocations(options.Registerer)
	a.ports = newCountedPorts(ports, a.metrics, options.Registerer)
	return a, nil
}

// Allocate completes a Service before validation: it allocates the addresses and ports that old does not have. old is
// nil for a create. Allocate also completes old in place if an earlier release stored it without some fields, because
// validation compares old with the new Service. The caller must call Rollback if the Service is not stored.
func (a *Allocator) Allocate(
	ctx context.Context, objects resource.Client, object, old runtime.Object, dryRun bool,
) error {
	service, previous := asService(object), asService(old)
	if service == nil {
		return nil
	}
	if previous != nil {
		defaultOnRead(previous, a.families[0])
		patchAllocatedValues(service, previous)
	}
	normalizeClusterIPs(service, previous)
	if err := a.initIPFamilyFields(service, previous); err != nil {
		return err
	}
	ctx = system.WithServerUser(ctx)
	allocated, err := a.allocateAddresses(ctx, objects, service, previous, dryRun)
	if err == nil {
		err = a.allocatePorts(service, previous, dryRun)
	}
	if err != nil && !dryRun {
		a.releaseAddresses(context.WithoutCancel(ctx), objects, service, allocated)
	}
	return err
}

// releaseAddresses releases the addresses that were allocated to a rejected Service.
func (a *Allocator) releaseAddresses(
	ctx context.Context, objects resource.Client, service *api.Service, allocated []string,
) {
	var errs []error
	for _, address := range allocated {
		errs = append(errs, releaseAddress(ctx, objects, service, address))
	}
	a.logLeaks(service, errs)
}

// logLeaks logs errors of releasing the allocations of a rejected Service. The repairs release these allocations later.
func (a *Allocator) logLeaks(service *api.Service, errs []error) {
	if err := errors.Join(errs...); err != nil {
		a.logger.Error(err, "Failed to release the allocations of a rejected Service", "namespace", service.Namespace,
			"name", service.Name)
	}
}

// Rollback releases the allocations of Allocate for a Service that has not been stored.
func (a *Allocator) Rollback(ctx context.Context, objects resource.Client, object, old runtime.Object) error {
	service, previous := asService(object), asService(old)
	if service == nil {
		return nil
	}
	var errs []error
	for _, port := range allocatedPorts(service, previous) {
		errs = append(errs, a.ports.Release(int(port)))
	}
	if from, ok := needsAddresses(service, previous); ok {
		for _, address := range service.Spec.ClusterIPs[min(from, len(service.Spec.ClusterIPs)):] {
			errs = append(errs, releaseAddress(system.WithServerUser(ctx), objects, service, address))
		}
	}
	return errors.Join(errs...)
}

// Release releases the allocations of a stored Service that keep does not have. keep is nil after a delete.
func (a *Allocator) Release(ctx context.Context, objects resource.Client, object, keep runtime.Object) error {
	service := asService(object)
	if service == nil {
		return nil
	}
	ctx = system.WithServerUser(ctx)
	kept := clusterIPsOf(asService(keep))
	errs := []error{a.releasePorts(service, asService(keep))}
	for _, address := range clusterIPsOf(service) {
		if !slices.Contains(kept, address) {
			errs = append(errs, releaseAddress(ctx, objects, service, address))
		}
	}
	return errors.Join(errs...)
}

// Deleted releases all allocations of a deleted Service.
func (a *Allocator) Deleted(ctx context.Context, objects resource.Client, object runtime.Object) error {
	service := asService(object)
	if service == nil {
		return nil
	}
	defaultOnRead(service, a.families[0])
	return a.Release(ctx, objects, service, nil)
}

// asService returns object as a Service, or nil if it is not a Service.
func asService(object runtime.Object) *api.Service {
	service, _ := object.(*api.Service)
	return service
}

// clusterIPsOf returns the allocated cluster IPs of a Service.
func clusterIPsOf(service *api.Service) []string {
	if service == nil || service.Spec.Type == api.ServiceTypeExternalName || isHeadless(service) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(service.Spec.ClusterIPs), func(address string) bool { return address == "" })
}

func isHeadless(service *api.Service) bool {
	return service.Spec.ClusterIP == api.ClusterIPNone || slices.Contains(service.Spec.ClusterIPs, api.ClusterIPNone)
}
