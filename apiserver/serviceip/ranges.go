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

// Ranges are the ranges of addresses that ServiceCIDRs offer, kept up to date by Set.
type Ranges struct {
	mu     sync.RWMutex
	byName map[string][]offer
}

// offer is one range of one ServiceCIDR.
type offer struct {
	addressRange
	ready bool // may new addresses be taken from it?
}

// NewRanges returns none.
func NewRanges() *Ranges { return &Ranges{byName: map[string][]offer{}} }

// Set notes a ServiceCIDR, in internal version; nil: that it is gone.
func (r *Ranges) Set(name string, object runtime.Object) {
	var offers []offer
	if cidr, ok := object.(*networking.ServiceCIDR); ok {
		for _, text := range cidr.Spec.CIDRs {
			if prefix, err := netip.ParsePrefix(text); err == nil { // it has been validated
				offers = append(offers, offer{newAddressRange(prefix), isReady(cidr)})
			}
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byName, name)
	if len(offers) > 0 {
		r.byName[name] = offers
	}
}

// storedRanges are those that storage has, which may be a moment ahead of those that Set was told of. They are good for
// one request: from then on the news count, which come in order.
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

// equal tells whether the same is offered by ranges that nobody else has.
func (r *Ranges) equal(others *Ranges) bool {
	r.mu.RLock()
	defer r.mu.RUnlock()
	return maps.EqualFunc(r.byName, others.byName, slices.Equal)
}

// isReady tells whether addresses of a ServiceCIDR may be given. Where nobody says whether it is ready, it is: the
// controller manager, which would, need not run.
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

// of returns the ranges of a family in random order, each once. A range that several ServiceCIDRs offer is ready if
// one of them is.
func (r *Ranges) of(family api.IPFamily) []offer {
	r.mu.RLock()
	defer r.mu.RUnlock()
	var all []offer
	for _, offers := range r.byName {
		for _, candidate := range offers {
			if candidate.family != family {
				continue
			}
			same := slices.IndexFunc(all, func(o offer) bool { return o.prefix == candidate.prefix })
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

// contain tells whether an address is in a range that some ServiceCIDR offers, ready or not.
func (r *Ranges) contain(address netip.Addr) bool {
	for _, o := range r.of(familyOfAddress(address)) {
		if o.contains(address) {
			return true
		}
	}
	return false
}
