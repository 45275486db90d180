// Package serviceip gives Services what they hold exclusively: cluster addresses and node ports.
//
// An address is held by an IPAddress object of its name, as kube-apiserver does it: creating one is atomic for all
// replicas. Node ports in use are bits of one value in etcd, kube-apiserver's too, that is replaced by
// compare-and-swap.
package serviceip

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

var (
	servicesResource  = schema.GroupResource{Resource: "services"}
	endpointsResource = schema.GroupResource{Resource: "endpoints"}
)

// Allocator gives addresses and ports to Services and takes them back. It is safe for concurrent use.
type Allocator struct {
	families  []api.IPFamily // of the cluster; the first is the default one
	ranges    *Ranges
	portRange utilnet.PortRange
	used      *sharedRange // ports
	ports     portallocator.Interface
	clock     clock.PassiveClock
	logger    logr.Logger
	metrics   *allocations
}

// Options are what an Allocator is made from.
type Options struct {
	CIDRs      []string // ranges of addresses as the flag gives them; what matters of them is their families
	Ranges     *Ranges  // the addresses that there are
	Ports      utilnet.PortRange
	Store      *storage.Store
	Clock      clock.PassiveClock
	Logger     logr.Logger
	Registerer prometheus.Registerer
}

// New returns an allocator. Repair must run before it has ports to give.
func New(options Options) (*Allocator, error) {
	a := &Allocator{
		ranges: options.Ranges, portRange: options.Ports, used: &sharedRange{store: options.Store, path: nodePortsPath},
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

// Allocate completes a Service before it is validated: the addresses and ports it needs beyond those of old, which is
// nil for a new one. An old Service that a former release stored is decorated first, in place: validation compares the
// new one with it. What Allocate takes is given back by Undo if the Service is not stored after all.
func (a *Allocator) Allocate(ctx context.Context, objects resource.Client, object, old runtime.Object, dryRun bool) error {
	service, previous := asService(object), asService(old)
	if service == nil {
		return nil
	}
	if previous != nil {
		decorate(previous, a.families[0])
		keepAllocated(service, previous)
	}
	alignAddresses(service, previous)
	if err := a.completeFamilies(service, previous); err != nil {
		return err
	}
	ctx = system.WithServerUser(ctx)
	taken, err := a.takeAddresses(ctx, objects, service, previous, dryRun)
	if err == nil {
		err = a.takePorts(service, previous, dryRun)
	}
	if err != nil && !dryRun {
		a.giveBack(context.WithoutCancel(ctx), objects, service, taken)
	}
	return err
}

// giveBack releases addresses that were taken for a Service that is refused.
func (a *Allocator) giveBack(ctx context.Context, objects resource.Client, service *api.Service, taken []string) {
	var errs []error
	for _, address := range taken {
		errs = append(errs, release(ctx, objects, service, address))
	}
	a.report(service, errs)
}

// report tells of what a refused Service goes on to hold, until the repairs find it.
func (a *Allocator) report(service *api.Service, errs []error) {
	if err := errors.Join(errs...); err != nil {
		a.logger.Error(err, "What a refused Service held could not be given back", "namespace", service.Namespace, "name", service.Name)
	}
}

// Undo gives back what Allocate has taken for a Service that was not stored after all.
func (a *Allocator) Rollback(ctx context.Context, objects resource.Client, object, old runtime.Object) error {
	service, previous := asService(object), asService(old)
	if service == nil {
		return nil
	}
	var errs []error
	for _, port := range takenPorts(service, previous) {
		errs = append(errs, a.ports.Release(int(port)))
	}
	if from, ok := needsAddresses(service, previous); ok {
		for _, address := range service.Spec.ClusterIPs[min(from, len(service.Spec.ClusterIPs)):] {
			errs = append(errs, release(system.WithServerUser(ctx), objects, service, address))
		}
	}
	return errors.Join(errs...)
}

// Release gives back what a stored Service held and keep, which is nil after a deletion, does not.
func (a *Allocator) Release(ctx context.Context, objects resource.Client, object, keep runtime.Object) error {
	service := asService(object)
	if service == nil {
		return nil
	}
	ctx = system.WithServerUser(ctx)
	kept := addressesOf(asService(keep))
	errs := []error{a.releasePorts(service, asService(keep))}
	for _, address := range addressesOf(service) {
		if !slices.Contains(kept, address) {
			errs = append(errs, release(ctx, objects, service, address))
		}
	}
	return errors.Join(errs...)
}

// Deleted gives back all that a deleted Service held. Its Endpoints go too, so that another Service of the name
// does not begin with them.
func (a *Allocator) Deleted(ctx context.Context, objects resource.Client, object runtime.Object) error {
	service := asService(object)
	if service == nil {
		return nil
	}
	decorate(service, a.families[0])
	err := objects.Delete(system.WithServerUser(ctx),
		resource.Key{GroupResource: endpointsResource, Namespace: service.Namespace, Name: service.Name},
		&metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	return errors.Join(err, a.Release(ctx, objects, service, nil))
}

// asService returns nil for anything that is no Service.
func asService(object runtime.Object) *api.Service {
	service, _ := object.(*api.Service)
	return service
}

// addressesOf returns the addresses a Service holds.
func addressesOf(service *api.Service) []string {
	if service == nil || service.Spec.Type == api.ServiceTypeExternalName || isHeadless(service) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(service.Spec.ClusterIPs), func(address string) bool { return address == "" })
}

func isHeadless(service *api.Service) bool {
	return service.Spec.ClusterIP == api.ClusterIPNone || slices.Contains(service.Spec.ClusterIPs, api.ClusterIPNone)
}
