package serviceip

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"

	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/runtime"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"

	"quorate.dev/apiserver/resource"
)

// Ranges are the address ranges of all ServiceCIDRs. Set keeps them up to date.
type Ranges struct {
	mu     sync.RWMutex
	byName map[string][]serviceRange
}

// serviceRange is one range of a ServiceCIDR.
type serviceRange struct {
	addressRange
	// ready is set if new addresses may be allocated from the range.
	ready bool
}

// NewRanges returns Ranges without any ServiceCIDR.
func NewRanges() *Ranges { return &Ranges{byName: map[string][]serviceRange{}} }

// Set sets the ranges of a ServiceCIDR, given in the internal version; nil means that it has been deleted.
func (r *Ranges) Set(name string, object runtime.Object) {
	var ranges []serviceRange
	if cidr, ok := object.(*networking.ServiceCIDR); ok {
		for _, text := range cidr.Spec.CIDRs {
			// The API has validated the CIDR.
			if prefix, err := netip.ParsePrefix(text); err == nil {
				ranges = append(ranges, serviceRange{newAddressRange(prefix), isReady(cidr)})
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byName, name)
	if len(ranges) > 0 {
		r.byName[name] = ranges
	}
}

// storedRanges reads the ServiceCIDRs from etcd, because the events that Set receives may lag. The caller uses the
// result for a single request.
func storedRanges(ctx context.Context, objects resource.Client) (*Ranges, error) {
	all, err := objects.List(ctx, resource.Key{GroupResource: cidrs}, resource.ReadOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the ServiceCIDRs: %w", err)
	}
	stored := NewRanges()
	for _, object := range all {
		if cidr, ok := object.(*networking.ServiceCIDR); ok {
			stored.Set(cidr.Name, cidr)
		}
	}
	return stored, nil
}

// equal reports whether others has the same ranges. The caller must own others, which is read without its lock.
func (r *Ranges) equal(others *Ranges) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return maps.EqualFunc(r.byName, others.byName, slices.Equal)
}

// isReady reports whether addresses of a ServiceCIDR may be allocated. A ServiceCIDR without the condition Ready is
// ready, because kube-controller-manager, which sets the condition, need not run.
func isReady(cidr *networking.ServiceCIDR) bool {
	if cidr.DeletionTimestamp != nil {
		return false
	}
	for _, condition := range cidr.Status.Conditions {
		if condition.Type == networkingv1.ServiceCIDRConditionReady {
			return condition.Status == "True"
		}
	}
	return true
}

// of returns the ranges of an IP family in random order. A prefix that several ServiceCIDRs contain is returned once;
// it is ready if it is ready in any of them.
func (r *Ranges) of(family api.IPFamily) []serviceRange {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var all []serviceRange
	for _, ranges := range r.byName {
		for _, candidate := range ranges {
			if candidate.family != family {
				continue
			}
			same := slices.IndexFunc(all, func(o serviceRange) bool { return o.prefix == candidate.prefix })
			if same < 0 {
				all = append(all, candidate)
				continue
			}
			all[same].ready = all[same].ready || candidate.ready
		}
	}
	rand.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// contains reports whether an address is in a range of a ServiceCIDR, ready or not.
func (r *Ranges) contains(address netip.Addr) bool {
	for _, o := range r.of(familyOfAddress(address)) {
		if o.contains(address) {
			return true
		}
	}
	return false
}
