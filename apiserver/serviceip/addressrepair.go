package serviceip

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/util/workqueue"
	api "k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/system"
)

const (
	// creationGrace is how old an IPAddress is left alone whose Service is not there: it may be about to be stored.
	creationGrace = time.Minute
	// undoGrace is the same for one that its Service does not name: it may be about to be given back.
	undoGrace = 5 * time.Second

	addressController = "ipallocator-repair-controller"
)

// AddressRepair keeps Services and the IPAddress objects that hold their addresses consistent with each other.
type AddressRepair struct {
	objects resource.Client
	ranges  *Ranges
	events  *Events
	clock   clock.WithTicker
	logger  logr.Logger
	queue   workqueue.TypedRateLimitingInterface[task]

	mu       sync.Mutex
	services map[string]*owner     // by key
	holders  map[string]holderNote // by name
}

// task is something to look at: a Service, or an IPAddress.
type task struct {
	address bool
	key     string
}

// owner is what matters of a Service.
type owner struct {
	object    *api.Service // without what does not matter here
	addresses []string
}

// holderNote is what matters of an IPAddress.
type holderNote struct {
	object  *networking.IPAddress
	labeled bool // as the allocator labels it
	managed bool // by the allocator
}

// NewAddressRepair returns a repair that knows of nothing yet.
func NewAddressRepair(objects resource.Client, ranges *Ranges, events *Events, c clock.WithTicker, logger logr.Logger, registerer prometheus.Registerer) *AddressRepair {
	r := &AddressRepair{
		objects: objects, ranges: ranges, events: events, clock: c, logger: logger,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.DefaultTypedControllerRateLimiter[task](),
			workqueue.TypedRateLimitingQueueConfig[task]{Clock: c}),
		services: map[string]*owner{}, holders: map[string]holderNote{},
	}
	registerer.MustRegister(r)
	return r
}

// SetService notes a Service, in internal version; nil: that it is gone.
func (r *AddressRepair) SetService(key string, object runtime.Object) {
	service := asService(object)
	r.mu.Lock()
	before := r.services[key]
	delete(r.services, key)
	if service != nil {
		r.services[key] = ownerOf(service)
	}
	r.mu.Unlock()
	if before == nil || service == nil || !slices.Equal(before.addresses, addressesOf(service)) {
		r.queue.Add(task{key: key})
	}
	for _, address := range affected(before, addressesOf(service)) {
		r.queue.Add(task{address: true, key: address})
	}
}

// affected are the addresses that a Service had and has no more.
func affected(before *owner, now []string) []string {
	if before == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(before.addresses), func(address string) bool { return slices.Contains(now, address) })
}

func ownerOf(service *api.Service) *owner {
	note := &api.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: service.Namespace, Name: service.Name, UID: service.UID, CreationTimestamp: service.CreationTimestamp,
		ResourceVersion: service.ResourceVersion,
	}}
	note.Spec.Type = service.Spec.Type
	return &owner{object: note, addresses: addressesOf(service)}
}

// SetHolder notes an IPAddress, in internal version; nil: that it is gone.
func (r *AddressRepair) SetHolder(name string, object runtime.Object) {
	r.mu.Lock()
	owner := r.holders[name].owner()
	delete(r.holders, name)
	if holder, ok := object.(*networking.IPAddress); ok {
		r.holders[name] = noteOf(holder)
		owner = r.holders[name].owner()
	}
	r.mu.Unlock()
	r.queue.Add(task{address: true, key: name})
	r.queue.Add(task{key: owner})
}

func noteOf(holder *networking.IPAddress) holderNote {
	managed := holder.Labels[networkingv1.LabelManagedBy] == manager
	note := &networking.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: holder.Name, UID: holder.UID, CreationTimestamp: holder.CreationTimestamp, ResourceVersion: holder.ResourceVersion,
		},
		Spec: holder.Spec,
	}
	family := api.IPv4Protocol
	if strings.Contains(holder.Name, ":") {
		family = api.IPv6Protocol
	}
	return holderNote{
		object: note, managed: managed,
		labeled: managed && holder.Labels[networkingv1.LabelIPAddressFamily] == string(family),
	}
}

// Once looks at everything that is known, Services first.
func (r *AddressRepair) Once(ctx context.Context) error {
	for _, t := range r.everything() {
		if err := r.look(ctx, t); err != nil {
			return fmt.Errorf("repair the addresses of Services: %w", err)
		}
	}
	return nil
}

func (r *AddressRepair) everything() []task {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]task, 0, len(r.services)+len(r.holders))
	for key := range r.services {
		all = append(all, task{key: key})
	}
	for name := range r.holders {
		all = append(all, task{address: true, key: name})
	}
	return all
}

// Run looks at what changes, and at everything once per interval, until ctx ends.
func (r *AddressRepair) Run(ctx context.Context, interval time.Duration) {
	stop := context.AfterFunc(ctx, r.queue.ShutDown)
	defer stop()
	go r.resync(ctx, interval)
	for {
		t, ended := r.queue.Get()
		if ended {
			return
		}
		if err := r.look(ctx, t); err != nil && ctx.Err() == nil {
			r.logger.V(1).Info("An address could not be repaired; trying again", "key", t.key, "error", err.Error())
			r.queue.AddRateLimited(t)
		} else {
			r.queue.Forget(t)
		}
		r.queue.Done(t)
	}
}

func (r *AddressRepair) resync(ctx context.Context, interval time.Duration) {
	ticker := r.clock.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C():
			for _, t := range r.everything() {
				r.queue.Add(t)
			}
		}
	}
}

func (r *AddressRepair) look(ctx context.Context, t task) error {
	ctx = system.WithServerUser(ctx)
	if t.address {
		return r.lookAtHolder(ctx, t)
	}
	r.mu.Lock()
	service := r.services[t.key]
	r.mu.Unlock()
	if service == nil {
		return nil
	}
	for _, text := range service.addresses {
		if err := r.lookAtAddress(ctx, service, text); err != nil {
			return err
		}
	}
	return nil
}

// flaw is what is wrong with an address of a Service, or with the IPAddress that holds it.
type issue int

const (
	none issue = iota
	unreadable
	outOfRange
	notHeld
	heldWrongly // for something that does not use it
	heldTwice   // for another Service that uses it too
	wrongLabels
)

// addressFlaw judges an address of a Service. holder is what holds it, if there is one, and other the Service that
// it is held for, if that is there.
func addressFlaw(service *owner, address netip.Addr, inRange bool, holder holderNote, other *owner) issue {
	switch {
	case !inRange:
		return outOfRange
	case holder.object == nil:
		return notHeld
	}
	parent := holder.object.Spec.ParentRef
	if parent == nil || parent.Group != "" || parent.Resource != "services" {
		return heldWrongly
	}
	if parent.Namespace != service.object.Namespace || parent.Name != service.object.Name {
		if other == nil {
			return heldWrongly
		}
		if slices.ContainsFunc(other.addresses, func(text string) bool { return sameAddress(text, address.String()) }) {
			return heldTwice
		}
	}
	if !holder.labeled {
		return wrongLabels
	}
	return none
}

func (r *AddressRepair) lookAtAddress(ctx context.Context, service *owner, text string) error {
	address, ok := parseAddress(text)
	if !ok {
		return r.mend(ctx, service, address, holderNote{}, unreadable)
	}
	holder, other := r.known(address.String())
	what := addressFlaw(service, address, r.ranges.contain(address), holder, other)
	if what == none || what == outOfRange {
		return r.mend(ctx, service, address, holder, what)
	}
	// Services and holders are learned of one by one: what looks inconsistent may only be news that are on their way.
	// The holder is read first. It is made before its Service is stored and goes afterwards: if there is none, and the
	// Service still has the address, the address is not held.
	holder, other, err := r.stored(ctx, address.String())
	if err != nil {
		return err
	}
	service, err = r.storedOwner(ctx, service.object.Namespace, service.object.Name)
	if err != nil || service == nil || !slices.Contains(service.addresses, text) {
		return err
	}
	return r.mend(ctx, service, address, holder, addressFlaw(service, address, r.ranges.contain(address), holder, other))
}

// known returns what is known of an address's holder, and the Service that it is held for.
func (r *AddressRepair) known(address string) (holderNote, *owner) {
	r.mu.Lock()
	defer r.mu.Unlock()
	holder := r.holders[address]
	return holder, r.services[holder.owner()]
}

// owner is the key of the Service that an address is held for.
func (h holderNote) owner() string {
	if h.object == nil || h.object.Spec.ParentRef == nil {
		return ""
	}
	return h.object.Spec.ParentRef.Namespace + "/" + h.object.Spec.ParentRef.Name
}

// stored is known as storage has it.
func (r *AddressRepair) stored(ctx context.Context, address string) (holder holderNote, service *owner, err error) {
	object, err := r.objects.Get(ctx, resource.Key{GroupResource: addresses, Name: address}, resource.ReadOptions{})
	if apierrors.IsNotFound(err) {
		return holderNote{}, nil, nil
	}
	if err != nil {
		return holderNote{}, nil, err
	}
	holder = noteOf(object.(*networking.IPAddress))
	if parent := holder.object.Spec.ParentRef; parent != nil {
		service, err = r.storedOwner(ctx, parent.Namespace, parent.Name)
	}
	return holder, service, err
}

func (r *AddressRepair) storedOwner(ctx context.Context, namespace, name string) (*owner, error) {
	object, err := r.objects.Get(ctx,
		resource.Key{GroupResource: servicesResource, Namespace: namespace, Name: name}, resource.ReadOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return ownerOf(object.(*api.Service)), nil
}

// mend tells of a flaw and repairs what can be repaired. holder is what holds the address, if there is one.
func (r *AddressRepair) mend(
	ctx context.Context, service *owner, address netip.Addr, holder holderNote, what issue,
) error {
	warn := func(reason, action, format string, arguments ...any) {
		r.events.Warn(ctx, service.object, addressController, reason, action, fmt.Sprintf(format, arguments...))
	}
	family := familyOfAddress(address)
	namespace, name := service.object.Namespace, service.object.Name
	switch what {
	case unreadable:
		warn("ClusterIPNotValid", "ClusterIPValidation", "Cluster IP %s is not a valid IP; please recreate Service", "<nil>")
	case outOfRange:
		warn("ClusterIPOutOfRange", "ClusterIPAllocation", "Cluster IP [%v]: %s is not within any configured Service CIDR; please recreate service", family, address)
	case heldTwice:
		warn("ClusterIPAlreadyAllocated", "ClusterIPAllocation", "Cluster IP [%v]:%s was assigned to multiple services; please recreate service", family, address)
	case notHeld:
		warn("ClusterIPNotAllocated", "ClusterIPAllocation", "Cluster IP [%v]: %s is not allocated; repairing", family, address)
		return r.create(ctx, service, address)
	case heldWrongly:
		warn("ClusterIPNotAllocated", "ClusterIPAllocation", "the ClusterIP [%v]: %s for Service %s/%s has a wrong reference; repairing", family, address, namespace, name)
		return r.recreate(ctx, service, address, holder)
	case wrongLabels:
		return r.recreate(ctx, service, address, holder)
	}
	return nil
}

func (r *AddressRepair) create(ctx context.Context, service *owner, address netip.Addr) error {
	_, err := r.objects.Create(ctx,
		resource.Key{GroupResource: addresses},
		newHolder(address, service.object.Namespace, service.object.Name), resource.WriteOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil // another replica was faster
	}
	return err
}

func (r *AddressRepair) recreate(ctx context.Context, service *owner, address netip.Addr, holder holderNote) error {
	if err := r.remove(ctx, holder); err != nil {
		return err
	}
	return r.create(ctx, service, address)
}

// remove deletes an IPAddress. If another one has taken its place, the error makes the caller look again.
func (r *AddressRepair) remove(ctx context.Context, holder holderNote) error {
	err := removeHolder(ctx, r.objects, holder.object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// verdict is what is to be done about an IPAddress.
type decision struct {
	reason, note string        // to remove it; empty: it may stay
	again        time.Duration // when to look again; 0: when something happens
}

// judge decides about an IPAddress of the allocator's that nothing may need. service is the one that it is held for,
// if that is there.
func judge(holder holderNote, service *owner, now time.Time) decision {
	parent := holder.object.Spec.ParentRef
	if parent == nil || parent.Group != "" || parent.Resource != "services" {
		return decision{reason: "IPAddressNotAllocated", note: fmt.Sprintf(
			"IPAddress %s appears to have been modified, not referencing a Service %v: cleaning up", holder.object.Name, parent)}
	}
	age := now.Sub(holder.object.CreationTimestamp.Time)
	switch {
	case service == nil && age <= creationGrace:
		return decision{again: creationGrace - age + time.Second}
	case service == nil:
		return decision{reason: "IPAddressNotAllocated", note: fmt.Sprintf(
			"IPAddress: %s for Service %s/%s appears to have leaked: cleaning up", holder.object.Name, parent.Namespace, parent.Name)}
	case slices.ContainsFunc(service.addresses, func(text string) bool { return sameAddress(text, holder.object.Name) }):
		return decision{}
	case service.object.Spec.Type == api.ServiceTypeExternalName && age < creationGrace:
		return decision{again: creationGrace - age}
	case !holder.object.CreationTimestamp.Before(&service.object.CreationTimestamp) && age < undoGrace:
		return decision{again: undoGrace}
	}
	return decision{reason: "IPAddressWrongReference", note: fmt.Sprintf(
		"IPAddress: %s for Service %s/%s has a wrong reference; cleaning up", holder.object.Name, service.object.Namespace, service.object.Name)}
}

func sameAddress(text, name string) bool {
	address, ok := parseAddress(text)
	return ok && address.String() == name
}

func (r *AddressRepair) lookAtHolder(ctx context.Context, t task) error {
	holder, service := r.known(t.key)
	if holder.object == nil || !holder.managed {
		return nil
	}
	decided := judge(holder, service, r.clock.Now())
	if decided.reason != "" {
		var err error
		if holder, service, err = r.stored(ctx, t.key); err != nil || holder.object == nil || !holder.managed {
			return err
		}
		decided = judge(holder, service, r.clock.Now())
	}
	if decided.again > 0 {
		r.queue.AddAfter(t, decided.again)
	}
	if decided.reason == "" {
		return nil
	}
	r.events.Warn(ctx, holder.object, addressController, decided.reason, "IPAddressAllocation", decided.note)
	return r.remove(ctx, holder)
}
