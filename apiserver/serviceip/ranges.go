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

// Ranges are the address ranges of all ServiceCIDRs, kept up to date by Set.
type Ranges struct {
	mu     sync.RWMutex
	byName map[string][]serviceRange
}

// serviceRange is one range of a ServiceCIDR.
type serviceRange struct {
	addressRange
	ready bool // new addresses may be allocated
}

// NewRanges returns Ranges without any ServiceCIDR.
func NewRanges() *Ranges { return &Ranges{byName: map[string][]serviceRange{}} }

// Set stores a ServiceCIDR in internal version; nil marks it as deleted.
func (r *Ranges) Set(name string, object runtime.Object) {
	var ranges []serviceRange
	if cidr, ok := object.(*networking.ServiceCIDR); ok {
		for _, text := range cidr.Spec.CIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil { // validated by the API
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

// storedRanges reads the ServiceCIDRs from etcd, which may be ahead of the events. The result is used for one request;
// later requests use the ranges from events.
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

// equal reports whether others has the same ranges. The caller owns others.
func (r *Ranges) equal(others *Ranges) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return maps.EqualFunc(r.byName, others.byName, slices.Equal)
}

// isReady reports whether addresses of a ServiceCIDR may be allocated. Without a Ready condition they may:
// kube-controller-manager, which sets it, need not run.
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

// of returns the ranges of a family in random order, without duplicates. A range of several ServiceCIDRs is ready if
// one of them is.
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

// contains reports whether an address is in a range of any ServiceCIDR, ready or not.
func (r *Ranges) contains(address netip.Addr) bool {
	for _, o := range r.of(familyOfAddress(address)) {
		if o.contains(address) {
			return true
		}
	}
	return false
}
