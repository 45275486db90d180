package serviceip

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"net/netip"
	"slices"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/validation/field"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	netutils "k8s.io/utils/net"

	"quorate.dev/apiserver/resource"
)

// manager is the value of the label managed-by of the IPAddresses that kube-apiserver creates for Services.
const manager = "ipallocator.k8s.io"

var addresses = schema.GroupResource{Group: "networking.k8s.io", Resource: "ipaddresses"}

// addressRange is a CIDR of one family, with size allocatable addresses that start at first. As in upstream's
// ipallocator, addresses below first+reserved are allocated dynamically only when all other addresses are in use.
type addressRange struct {
	prefix   netip.Prefix
	family   api.IPFamily
	first    netip.Addr
	size     uint64
	reserved uint64
}

func newAddressRange(prefix netip.Prefix) addressRange {
	prefix = prefix.Masked()
	r := addressRange{prefix: prefix, family: familyOfAddress(prefix.Addr()), first: prefix.Addr().Next()}
	hostBits := min(prefix.Addr().BitLen()-prefix.Bits(), 63)
	r.size = 1<<hostBits - 1
	if prefix.Addr().Is4() {
		// The broadcast address is not allocatable.
		r.size = max(r.size, 1) - 1
	}
	if whole := uint64(1) << hostBits; whole > 16 {
		r.reserved = min(max(whole/16, 16), 256)
	}
	return r
}

// at returns the address at index n of the range.
func (r addressRange) at(n uint64) netip.Addr {
	raw := r.first.As16()
	low, carry := bits.Add64(binary.BigEndian.Uint64(raw[8:]), n, 0)
	binary.BigEndian.PutUint64(raw[8:], low)
	binary.BigEndian.PutUint64(raw[:8], binary.BigEndian.Uint64(raw[:8])+carry)
	return netip.AddrFrom16(raw).Unmap()
}

// contains reports whether an address of the range's family is allocatable.
func (r addressRange) contains(address netip.Addr) bool {
	if !r.prefix.Contains(address) || address.Less(r.first) {
		return false
	}
	return address.Is6() || r.size > 0 && !r.last().Less(address)
}

// last returns the last allocatable address. For an IPv6 range of more than 2^63 addresses, it returns the last address
// that candidates visits.
func (r addressRange) last() netip.Addr { return r.at(r.size - 1) }

// candidates calls visit once for each address until visit returns true: first for the addresses above the reserved
// part, then for the reserved part, each starting at a random address.
func (r addressRange) candidates(visit func(netip.Addr) (done bool)) {
	for _, part := range []struct{ from, size uint64 }{{r.reserved, r.size - r.reserved}, {0, r.reserved}} {
		if part.size == 0 {
			continue
		}
		start := rand.Uint64N(part.size)
		for n := range part.size {
			if visit(r.at(part.from + (start+n)%part.size)) {
				return
			}
		}
	}
}

// needsAddresses reports whether addresses must be allocated for a Service. from is the index of the first IP family
// that has no address.
func needsAddresses(service, previous *api.Service) (from int, ok bool) {
	switch {
	case service.Spec.Type == api.ServiceTypeExternalName, matchesPreferDualStack(service, previous):
		return 0, false
	case previous == nil || previous.Spec.Type == api.ServiceTypeExternalName:
		return 0, !isHeadless(service)
	case isHeadless(previous):
		return 0, false
	}
	return 1, len(previous.Spec.IPFamilies) == 1 && len(service.Spec.IPFamilies) == 2
}

// allocateAddresses allocates the missing addresses of a Service. It returns the allocated addresses, also together
// with an error.
func (a *Allocator) allocateAddresses(
	ctx context.Context, objects resource.Client, service, previous *api.Service, dryRun bool,
) ([]string, error) {
	from, ok := needsAddresses(service, previous)
	if !ok {
		return nil, nil
	}
	request := addressRequest{objects, service, dryRun}
	var allocated []string
	spec := &service.Spec
	spec.ClusterIPs = slices.Clone(spec.ClusterIPs)
	for len(spec.ClusterIPs) < len(spec.IPFamilies) {
		spec.ClusterIPs = append(spec.ClusterIPs, "")
	}
	for i := from; i < len(spec.IPFamilies); i++ {
		address, err := a.allocateAddress(ctx, request, spec.IPFamilies[i], spec.ClusterIPs[i])
		if err != nil {
			return allocated, err
		}
		allocated = append(allocated, address)
		spec.ClusterIPs[i] = address
	}
	if len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	return allocated, nil
}

// addressRequest has the common arguments of the allocations for one Service.
type addressRequest struct {
	objects resource.Client
	service *api.Service
	dryRun  bool
}

// allocateAddress allocates the requested address, or any address of the family if requested is empty.
func (a *Allocator) allocateAddress(
	ctx context.Context, r addressRequest, family api.IPFamily, requested string,
) (string, error) {
	if requested == "" {
		var address netip.Addr
		err := a.withRanges(ctx, r.objects, func(ranges *Ranges) (err error) {
			address, err = a.allocateDynamic(ctx, r, ranges.of(family))
			return err
		})
		if errors.Is(err, errFull) {
			return "", apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w",
				r.service.Name, err))
		}
		if err != nil {
			return "", invalidAddresses(r.service, fmt.Sprintf("failed to allocate IP: %v", err))
		}
		return address.String(), nil
	}
	address, ok := parseAddress(requested)
	if !ok {
		return "", apierrors.NewInternalError(fmt.Errorf("failed to parse service IP %q", requested))
	}
	err := a.withRanges(ctx, r.objects, func(ranges *Ranges) error {
		return a.allocateStatic(ctx, r, address, ranges.of(familyOfAddress(address)))
	})
	if err != nil {
		return "", invalidAddresses(r.service, fmt.Sprintf("failed to allocate IP %v: %v", requested, err))
	}
	return requested, nil
}

// withRanges calls take with the ranges known from events. If the ranges are full or do not match, it calls take again
// with the ranges stored in etcd: a client may create a Service as soon as it sees that a ServiceCIDR is ready, before
// this replica receives the event.
func (a *Allocator) withRanges(ctx context.Context, objects resource.Client, take func(*Ranges) error) error {
	err := take(a.ranges)
	if !errors.Is(err, errFull) && !errors.Is(err, errMismatched) {
		return err
	}
	stored, failure := storedRanges(ctx, objects)
	if failure != nil {
		return failure
	}
	if a.ranges.equal(stored) {
		return err
	}
	return take(stored)
}

// parseAddress parses an address, which may have leading zeros, because Services stored by former releases may have
// them.
func parseAddress(text string) (netip.Addr, bool) {
	address, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	return address.Unmap(), ok
}

// These errors have kube-apiserver's texts.
var (
	errFull       = errors.New("range is full")
	errAllocated  = errors.New("provided IP is already allocated")
	errMismatched = errors.New("the provided network does not match the current range")
	errNotReady   = errors.New("allocator not ready")
)

// allocateStatic allocates a requested address. As in kube-apiserver, a dry run checks only one range.
func (a *Allocator) allocateStatic(
	ctx context.Context, r addressRequest, address netip.Addr, ranges []serviceRange,
) error {
	if r.dryRun {
		switch {
		case len(ranges) == 0 || !ranges[0].ready:
			return errNotReady
		case !ranges[0].contains(address):
			return fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %s",
				address, ranges[0].prefix)
		}
		return nil
	}
	for _, candidate := range ranges {
		if candidate.ready && candidate.contains(address) {
			begun := a.clock.Now()
			err := createIPAddress(ctx, r.objects, r.service, address)
			a.metrics.address(candidate.prefix, static, a.clock.Since(begun), err)
			return err
		}
	}
	return errMismatched
}

// allocateDynamic allocates an address from the first range that has a free address. As in kube-apiserver, a dry run
// allocates nothing and returns the network address.
func (a *Allocator) allocateDynamic(ctx context.Context, r addressRequest, ranges []serviceRange) (netip.Addr, error) {
	if r.dryRun {
		if len(ranges) == 0 || !ranges[0].ready {
			return netip.Addr{}, errNotReady
		}
		return ranges[0].prefix.Addr(), nil
	}
	for _, candidate := range ranges {
		if !candidate.ready {
			continue
		}
		begun := a.clock.Now()
		address, err := allocateFrom(ctx, r.objects, r.service, candidate.addressRange)
		a.metrics.address(candidate.prefix, dynamic, a.clock.Since(begun), err)
		if !errors.Is(err, errFull) {
			return address, err
		}
	}
	return netip.Addr{}, errFull
}

// allocateFrom allocates the first free address of a range. It skips addresses that have an IPAddress in the cache. If
// the cache is stale, the create fails with AlreadyExists.
func allocateFrom(
	ctx context.Context, objects resource.Client, service *api.Service, r addressRange,
) (allocated netip.Addr, err error) {
	err = errFull
	r.candidates(func(address netip.Addr) bool {
		key := resource.Key{GroupResource: addresses, Name: address.String()}
		if _, cached := objects.Get(ctx, key, resource.ReadOptions{Cached: true}); cached == nil {
			return false
		}
		holding := createIPAddress(ctx, objects, service, address)
		if errors.Is(holding, errAllocated) {
			return false
		}
		allocated, err = address, holding
		return true
	})
	return allocated, err
}

// createIPAddress creates the IPAddress of an address. The error is errAllocated if the IPAddress exists.
func createIPAddress(ctx context.Context, objects resource.Client, service *api.Service, address netip.Addr) error {
	_, err := objects.Create(ctx, resource.Key{GroupResource: addresses},
		newIPAddress(address, service.Namespace, service.Name), resource.WriteOptions{})
	if apierrors.IsAlreadyExists(err) {
		return errAllocated
	}
	return err
}

// newIPAddress returns the IPAddress that allocates an address to a Service.
func newIPAddress(address netip.Addr, namespace, name string) *networking.IPAddress {
	return &networking.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: address.String(),
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: string(familyOfAddress(address)), networkingv1.LabelManagedBy: manager,
			},
		},
		Spec: networking.IPAddressSpec{
			ParentRef: &networking.ParentReference{Resource: "services", Namespace: namespace, Name: name},
		},
	}
}

// releaseAddress deletes the IPAddress of an address if it references the Service. The UID is a precondition of the
// delete, which protects an IPAddress that is created concurrently for another Service.
func releaseAddress(ctx context.Context, objects resource.Client, service *api.Service, text string) error {
	address, ok := parseAddress(text)
	if !ok {
		return fmt.Errorf("release address %q: not an IP address", text)
	}
	for {
		object, err := objects.Get(ctx,
			resource.Key{GroupResource: addresses, Name: address.String()}, resource.ReadOptions{})
		if err == nil {
			ipAddress := object.(*networking.IPAddress)
			parent := ipAddress.Spec.ParentRef
			if parent == nil || parent.Namespace != service.Namespace || parent.Name != service.Name {
				return nil
			}
			err = deleteIPAddress(ctx, objects, ipAddress)
		}
		switch {
		case err == nil, apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err) || ctx.Err() != nil:
			return fmt.Errorf("release address %s: %w", address, err)
		}
	}
}

// deleteIPAddress deletes an IPAddress. The error is a conflict if the IPAddress has been deleted and created again.
func deleteIPAddress(ctx context.Context, objects resource.Client, ipAddress *networking.IPAddress) error {
	options := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(ipAddress.UID))}
	return objects.Delete(ctx, resource.Key{GroupResource: addresses, Name: ipAddress.Name}, options)
}

func invalidAddresses(service *api.Service, detail string) error {
	return invalid(service, field.NewPath("spec", "clusterIPs"), service.Spec.ClusterIPs, detail)
}

func invalid(service *api.Service, path *field.Path, value any, detail string) error {
	return apierrors.NewInvalid(api.Kind("Service"), service.Name, field.ErrorList{field.Invalid(path, value, detail)})
}
