// Package services gives Services what they hold exclusively: cluster addresses and node ports.
//
// An address is held by an IPAddress object of its name, as kube-apiserver does it: creating one is atomic for all
// replicas. A node port is held by the Service that names it.
package services

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/resource"
)

// defaultAddresses is the range of a cluster that is given none.
const defaultAddresses = "10.0.0.0/24"

var (
	servicesResource  = schema.GroupResource{Resource: "services"}
	endpointsResource = schema.GroupResource{Resource: "endpoints"}
)

// Allocator gives addresses and ports to Services and takes them back. It is safe for concurrent use.
type Allocator struct {
	ranges []addressRange // of different families; the first is the default one
	ports  utilnet.PortRange
	clock  clock.PassiveClock

	mu sync.Mutex
	// promised are ports that were given to Services which the cache may not show yet.
	promised map[int32]promise
}

// New returns an allocator for the ranges as the flags give them: one CIDR or two of different families, and ports
// such as "30000-32767".
func New(addresses, ports string, clock clock.PassiveClock) (*Allocator, error) {
	a := &Allocator{clock: clock, promised: map[int32]promise{}}
	if addresses == "" {
		addresses = defaultAddresses
	}
	for _, cidr := range strings.Split(addresses, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(cidr))
		if err != nil {
			return nil, fmt.Errorf("range of Service addresses: %w", err)
		}
		a.ranges = append(a.ranges, newAddressRange(prefix))
	}
	if len(a.ranges) > 2 || (len(a.ranges) == 2 && a.ranges[0].family == a.ranges[1].family) {
		return nil, errors.New("ranges of Service addresses must be one, or two of different IP families")
	}
	if err := a.ports.Set(ports); err != nil {
		return nil, fmt.Errorf("range of node ports: %w", err)
	}
	return a, nil
}

// Allocate completes a Service before it is validated: the addresses and ports it needs beyond those of old, which
// is nil for a new one. What it takes is given back by Release if the Service is not stored after all.
func (a *Allocator) Allocate(ctx context.Context, objects resource.Objects, object, old runtime.Object, dryRun bool) error {
	service, previous := asService(object), asService(old)
	if service == nil {
		return nil
	}
	if previous != nil {
		keepAllocated(service, previous)
	}
	alignAddresses(service, previous)
	if err := a.completeFamilies(service, previous); err != nil {
		return err
	}
	taken, err := a.takeAddresses(ctx, objects, service, previous, dryRun)
	if err == nil {
		err = a.takePorts(ctx, objects, service, previous)
	}
	if err != nil && !dryRun {
		for _, address := range taken {
			err = errors.Join(err, release(ctx, objects, service, address))
		}
	}
	return statusError(err)
}

// statusError returns the API status among joined errors, the first of them being what the client did wrong.
func statusError(err error) error {
	var status *apierrors.StatusError
	if errors.As(err, &status) {
		return status
	}
	return err
}

// Release gives back what a Service holds and keep, which may be nil, does not: the new one's after it was not
// stored, the old one's after it was replaced or deleted.
func (a *Allocator) Release(ctx context.Context, objects resource.Objects, object, keep runtime.Object) error {
	service := asService(object)
	if service == nil {
		return nil
	}
	a.forget(service, asService(keep))
	kept := addressesOf(asService(keep))
	var errs []error
	for _, address := range addressesOf(service) {
		if !slices.Contains(kept, address) {
			errs = append(errs, release(ctx, objects, service, address))
		}
	}
	return errors.Join(errs...)
}

// Deleted gives back all that a deleted Service held. Its Endpoints go too, so that another Service of the name
// does not begin with them.
func (a *Allocator) Deleted(ctx context.Context, objects resource.Objects, object runtime.Object) error {
	service := asService(object)
	if service == nil {
		return nil
	}
	err := objects.Delete(ctx, endpointsResource, service.Namespace, service.Name, &metav1.DeleteOptions{})
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
