package services

import (
	"context"
	"encoding/binary"
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

	"quorate.dev/apiserver/resource"
)

const (
	// manager is what kube-apiserver calls itself in the IPAddress objects that it makes for Services.
	manager = "ipallocator.k8s.io"
	// guesses is how many random addresses are tried before the ones in use are listed.
	guesses = 16
)

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
	r := addressRange{prefix: prefix, family: api.IPv6Protocol, first: prefix.Addr().Next()}
	hostBits := min(prefix.Addr().BitLen()-prefix.Bits(), 63)
	r.size = 1<<hostBits - 1
	if prefix.Addr().Is4() {
		r.family = api.IPv4Protocol
		// The last one is for broadcasts.
		r.size = max(r.size, 1) - 1
	}
	if r.size >= 16 {
		r.reserved = min(max(r.size/16, 16), 256)
	}
	if r.reserved >= r.size {
		r.reserved = 0
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
	return address.Is6() || r.size > 0 && !r.at(r.size-1).Less(address)
}

// guess returns a random address above the reserved ones.
func (r addressRange) guess() netip.Addr {
	return r.at(r.reserved + rand.Uint64N(r.size-r.reserved))
}

// free returns an address that is not used, the reserved ones last. It looks at no more than one address more
// than are used in each part of the range.
func (r addressRange) free(used map[netip.Addr]bool) (netip.Addr, bool) {
	for _, part := range []struct{ from, size uint64 }{{r.reserved, r.size - r.reserved}, {0, r.reserved}} {
		if part.size == 0 {
			continue
		}
		start := rand.Uint64N(part.size)
		for n := range min(part.size, uint64(len(used))+1) {
			if address := r.at(part.from + (start+n)%part.size); !used[address] {
				return address, true
			}
		}
	}
	return netip.Addr{}, false
}

// takeAddresses gives a Service the addresses that it lacks and returns those taken, also with an error.
func (a *Allocator) takeAddresses(ctx context.Context, objects resource.Objects, service, previous *api.Service, dryRun bool) ([]string, error) {
	if service.Spec.Type == api.ServiceTypeExternalName || isHeadless(service) || previous != nil && isHeadless(previous) {
		return nil, nil
	}
	var taken []string
	spec := &service.Spec
	for i := len(addressesOf(previous)); i < len(spec.IPFamilies); i++ {
		if i == len(spec.ClusterIPs) {
			spec.ClusterIPs = append(slices.Clone(spec.ClusterIPs), "")
		}
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
func (a *Allocator) takeAddress(ctx context.Context, objects resource.Objects, service *api.Service, family api.IPFamily, wanted string, dryRun bool) (string, error) {
	r, ok := a.rangeOf(family)
	if !ok {
		return "", apierrors.NewInternalError(fmt.Errorf("no addresses of family %s", family))
	}
	if wanted == "" {
		return takeAny(ctx, objects, service, r, dryRun)
	}
	address, err := netip.ParseAddr(wanted)
	if err == nil && !r.contains(address) {
		err = fmt.Errorf("the provided network does not match the current range: %s", r.prefix)
	}
	if err == nil {
		err = hold(ctx, objects, service, address, dryRun)
	}
	if apierrors.IsAlreadyExists(err) {
		err = fmt.Errorf("provided IP is already allocated")
	}
	if err != nil {
		return "", invalid(service, field.NewPath("spec", "clusterIPs"), service.Spec.ClusterIPs, fmt.Sprintf("failed to allocate IP %v: %v", wanted, err))
	}
	return wanted, nil
}

func (a *Allocator) rangeOf(family api.IPFamily) (addressRange, bool) {
	for _, r := range a.ranges {
		if r.family == family {
			return r, true
		}
	}
	return addressRange{}, false
}

// takeAny takes a random address; when guessing does not help, one that is in no list.
func takeAny(ctx context.Context, objects resource.Objects, service *api.Service, r addressRange, dryRun bool) (string, error) {
	full := apierrors.NewInternalError(fmt.Errorf("failed to allocate a serviceIP for Service %q: range is full", service.Name))
	if r.size == 0 {
		return "", full
	}
	used := map[netip.Addr]bool{}
	for attempt := 0; ; attempt++ {
		address, ok := r.guess(), true
		if attempt == guesses {
			if err := listUsed(ctx, objects, used); err != nil {
				return "", err
			}
		}
		if attempt >= guesses {
			address, ok = r.free(used)
		}
		if !ok {
			return "", full
		}
		err := hold(ctx, objects, service, address, dryRun)
		if err == nil {
			return address.String(), nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return "", err
		}
		used[address] = true
	}
}

func listUsed(ctx context.Context, objects resource.Objects, used map[netip.Addr]bool) error {
	all, err := objects.List(ctx, addresses, "")
	if err != nil {
		return err
	}
	for _, object := range all {
		if address, err := netip.ParseAddr(object.(*networking.IPAddress).Name); err == nil {
			used[address] = true
		}
	}
	return nil
}

// hold makes the IPAddress that holds an address for a Service; if there is one already, it says so.
func hold(ctx context.Context, objects resource.Objects, service *api.Service, address netip.Addr, dryRun bool) error {
	family := api.IPv6Protocol
	if address.Is4() {
		family = api.IPv4Protocol
	}
	_, err := objects.Create(ctx, addresses, "", &networking.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name:   address.String(),
			Labels: map[string]string{networkingv1.LabelIPAddressFamily: string(family), networkingv1.LabelManagedBy: manager},
		},
		Spec: networking.IPAddressSpec{ParentRef: parentOf(service)},
	}, dryRun)
	return err
}

func parentOf(service *api.Service) *networking.ParentReference {
	return &networking.ParentReference{Resource: "services", Namespace: service.Namespace, Name: service.Name}
}

// release removes the IPAddress of a Service's address, unless it is somebody else's.
func release(ctx context.Context, objects resource.Objects, service *api.Service, address string) error {
	object, err := objects.Get(ctx, addresses, "", address)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("find the holder of address %s: %w", address, err)
	}
	holder := object.(*networking.IPAddress)
	if holder.Spec.ParentRef == nil || *holder.Spec.ParentRef != *parentOf(service) {
		return nil
	}
	err = objects.Delete(ctx, addresses, "", address, &metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &holder.UID}})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("release address %s: %w", address, err)
	}
	return nil
}

func invalid(service *api.Service, path *field.Path, value any, detail string) error {
	return apierrors.NewInvalid(api.Kind("Service"), service.Name, field.ErrorList{field.Invalid(path, value, detail)})
}
