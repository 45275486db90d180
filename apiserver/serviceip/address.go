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

// manager is what kube-apiserver calls itself in the IPAddress objects that it makes for Services.
const manager = "ipallocator.k8s.io"

var addresses = schema.GroupResource{Group: "networking.k8s.io", Resource: "ipaddresses"}

// addressRange are the addresses of one family: size of them from first on. The lower ones, up to reserved, are
// left for those who name their address, as long as there are others.
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
		// The last one is for broadcasts.
		r.size = max(r.size, 1) - 1
	}
	if whole := uint64(1) << hostBits; whole > 16 {
		r.reserved = min(max(whole/16, 16), 256)
	}
	return r
}

// at returns the nth address.
func (r addressRange) at(n uint64) netip.Addr {
	raw := r.first.As16()
	low, carry := bits.Add64(binary.BigEndian.Uint64(raw[8:]), n, 0)
	binary.BigEndian.PutUint64(raw[8:], low)
	binary.BigEndian.PutUint64(raw[:8], binary.BigEndian.Uint64(raw[:8])+carry)
	return netip.AddrFrom16(raw).Unmap()
}

// contains tells whether an address can be given to a Service.
func (r addressRange) contains(address netip.Addr) bool {
	if !r.prefix.Contains(address) || address.Less(r.first) {
		return false
	}
	return address.Is6() || r.size > 0 && !r.last().Less(address)
}

// last returns the last address of an IPv4 range, or the last that is ever given of a larger one.
func (r addressRange) last() netip.Addr { return r.at(r.size - 1) }

// candidates visits every address of the range once, in the order in which they are tried, until visit returns true:
// those above the reserved ones first, each part beginning at a random place.
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

// needsAddresses tells which of a Service's families an address has to be taken for, from the first index on.
func needsAddresses(service, previous *api.Service) (from int, ok bool) {
	switch {
	case service.Spec.Type == api.ServiceTypeExternalName, keepsPreferred(service, previous):
		return 0, false
	case previous == nil || previous.Spec.Type == api.ServiceTypeExternalName:
		return 0, !isHeadless(service)
	case isHeadless(previous):
		return 0, false
	}
	return 1, len(previous.Spec.IPFamilies) == 1 && len(service.Spec.IPFamilies) == 2
}

// takeAddresses gives a Service the addresses that it lacks and returns those taken, also with an error.
func (a *Allocator) takeAddresses(ctx context.Context, objects resource.Client, service, previous *api.Service, dryRun bool) ([]string, error) {
	from, ok := needsAddresses(service, previous)
	if !ok {
		return nil, nil
	}
	var taken []string
	spec := &service.Spec
	spec.ClusterIPs = slices.Clone(spec.ClusterIPs)
	for len(spec.ClusterIPs) < len(spec.IPFamilies) {
		spec.ClusterIPs = append(spec.ClusterIPs, "")
	}
	for i := from; i < len(spec.IPFamilies); i++ {
		address, err := a.takeAddress(ctx, objects, service, spec.IPFamilies[i], spec.ClusterIPs[i], dryRun)
		if err != nil {
			return taken, err
		}
		taken = append(taken, address)
		spec.ClusterIPs[i] = address
	}
	if len(spec.ClusterIPs) > 0 {
		spec.ClusterIP = spec.ClusterIPs[0]
	}
	return taken, nil
}

// takeAddress takes the address that is wanted, or any.
func (a *Allocator) takeAddress(ctx context.Context, objects resource.Client, service *api.Service, family api.IPFamily, wanted string, dryRun bool) (string, error) {
	if wanted == "" {
		var address netip.Addr
		err := a.within(ctx, objects, func(ranges *Ranges) (err error) {
			address, err = a.takeAny(ctx, objects, service, ranges.of(family), dryRun)
			return err
		})
		if errors.Is(err, errFull) {
			return "", apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: %w", service.Name, err))
		}
		if err != nil {
			return "", invalidAddresses(service, fmt.Sprintf("failed to allocate IP: %v", err))
		}
		return address.String(), nil
	}
	address, ok := parseAddress(wanted)
	if !ok {
		return "", apierrors.NewInternalError(fmt.Errorf("failed to parse service IP %q", wanted))
	}
	err := a.within(ctx, objects, func(ranges *Ranges) error {
		return a.takeWanted(ctx, objects, service, address, ranges.of(familyOfAddress(address)), dryRun)
	})
	if err != nil {
		return "", invalidAddresses(service, fmt.Sprintf("failed to allocate IP %v: %v", wanted, err))
	}
	return wanted, nil
}

// within takes from the ranges that are known or, where those do not do, from those that storage has, if they are others:
// a Service may be sent as soon as a client sees that a range is ready.
func (a *Allocator) within(ctx context.Context, objects resource.Client, take func(*Ranges) error) error {
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

// parseAddress reads an address as old clients may write it, with leading zeros.
func parseAddress(text string) (netip.Addr, bool) {
	address, ok := netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	return address.Unmap(), ok
}

// What is wrong with an address, in kube-apiserver's words.
var (
	errFull       = errors.New("range is full")
	errAllocated  = errors.New("provided IP is already allocated")
	errMismatched = errors.New("the provided network does not match the current range")
	errNotReady   = errors.New("allocator not ready")
)

// takeWanted takes one address. A rehearsal asks, as kube-apiserver's does, any one range.
func (a *Allocator) takeWanted(ctx context.Context, objects resource.Client, service *api.Service, address netip.Addr, offers []offer, dryRun bool) error {
	if dryRun {
		switch {
		case len(offers) == 0 || !offers[0].ready:
			return errNotReady
		case !offers[0].contains(address):
			return fmt.Errorf("the provided IP (%v) is not in the valid range. The range of valid IPs is %s", address, offers[0].prefix)
		}
		return nil
	}
	for _, o := range offers {
		if o.ready && o.contains(address) {
			begun := a.clock.Now()
			err := hold(ctx, objects, service, address)
			a.metrics.address(o.prefix, static, a.clock.Since(begun), err)
			return err
		}
	}
	return errMismatched
}

// takeAny takes some address of the first range that has one. A rehearsal takes none and shows the network's.
func (a *Allocator) takeAny(ctx context.Context, objects resource.Client, service *api.Service, offers []offer, dryRun bool) (netip.Addr, error) {
	if dryRun {
		if len(offers) == 0 || !offers[0].ready {
			return netip.Addr{}, errNotReady
		}
		return offers[0].prefix.Addr(), nil
	}
	for _, o := range offers {
		if !o.ready {
			continue
		}
		begun := a.clock.Now()
		address, err := takeFrom(ctx, objects, service, o.addressRange)
		a.metrics.address(o.prefix, dynamic, a.clock.Since(begun), err)
		if !errors.Is(err, errFull) {
			return address, err
		}
	}
	return netip.Addr{}, errFull
}

// takeFrom takes the first free address of a range. It looks into the cache first; where that does not know of an
// address yet that another replica has just taken, creating its IPAddress fails.
func takeFrom(ctx context.Context, objects resource.Client, service *api.Service, r addressRange) (taken netip.Addr, err error) {
	err = errFull
	r.candidates(func(address netip.Addr) bool {
		key := resource.Key{GroupResource: addresses, Name: address.String()}
		if _, cached := objects.Get(ctx, key, resource.ReadOptions{Cached: true}); cached == nil {
			return false
		}
		holding := hold(ctx, objects, service, address)
		if errors.Is(holding, errAllocated) {
			return false
		}
		taken, err = address, holding
		return true
	})
	return taken, err
}

// hold makes the IPAddress that holds an address for a Service; if there is one already, it says so.
func hold(ctx context.Context, objects resource.Client, service *api.Service, address netip.Addr) error {
	_, err := objects.Create(ctx,
		resource.Key{GroupResource: addresses},
		newHolder(address, service.Namespace, service.Name), resource.WriteOptions{})
	if apierrors.IsAlreadyExists(err) {
		return errAllocated
	}
	return err
}

// newHolder is the IPAddress that holds an address for a Service.
func newHolder(address netip.Addr, namespace, name string) *networking.IPAddress {
	return &networking.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: address.String(),
			Labels: map[string]string{
				networkingv1.LabelIPAddressFamily: string(familyOfAddress(address)), networkingv1.LabelManagedBy: manager,
			},
		},
		Spec: networking.IPAddressSpec{ParentRef: &networking.ParentReference{Resource: "services", Namespace: namespace, Name: name}},
	}
}

// release removes the IPAddress that holds an address for a Service. One that holds it for another Service stays, also
// if it takes the other's place meanwhile.
func release(ctx context.Context, objects resource.Client, service *api.Service, text string) error {
	address, ok := parseAddress(text)
	if !ok {
		return fmt.Errorf("release address %q: it cannot be read", text)
	}
	for {
		object, err := objects.Get(ctx,
			resource.Key{GroupResource: addresses, Name: address.String()}, resource.ReadOptions{})
		if err == nil {
			holder := object.(*networking.IPAddress)
			parent := holder.Spec.ParentRef
			if parent == nil || parent.Namespace != service.Namespace || parent.Name != service.Name {
				return nil
			}
			err = removeHolder(ctx, objects, holder)
		}
		switch {
		case err == nil, apierrors.IsNotFound(err):
			return nil
		case !apierrors.IsConflict(err) || ctx.Err() != nil:
			return fmt.Errorf("release address %s: %w", address, err)
		}
	}
}

// removeHolder deletes an IPAddress. The error is a conflict if another one has taken its place.
func removeHolder(ctx context.Context, objects resource.Client, holder *networking.IPAddress) error {
	options := &metav1.DeleteOptions{Preconditions: metav1.NewUIDPreconditions(string(holder.UID))}
	return objects.Delete(ctx, resource.Key{GroupResource: addresses, Name: holder.Name}, options)
}

func invalidAddresses(service *api.Service, detail string) error {
	return invalid(service, field.NewPath("spec", "clusterIPs"), service.Spec.ClusterIPs, detail)
}

func invalid(service *api.Service, path *field.Path, value any, detail string) error {
	return apierrors.NewInvalid(api.Kind("Service"), service.Name, field.ErrorList{field.Invalid(path, value, detail)})
}
