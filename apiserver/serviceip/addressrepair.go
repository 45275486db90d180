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
	"quorate.dev/panics"
)

const (
	// creationGrace is the minimum age at which an IPAddress is deleted if its Service does not exist, because the
	// Service may not be stored yet.
	creationGrace = time.Minute
	// rollbackGrace is the minimum age at which an IPAddress is deleted if its Service does not list the address,
	// because a rollback may be about to delete the IPAddress.
	rollbackGrace = 5 * time.Second

	addressController = "ipallocator-repair-controller"
)

// AddressRepair keeps Services and the IPAddresses that allocate their cluster IPs consistent, as kube-apiserver's
// ipallocator-repair-controller does. Two independent watches call SetService and SetIPAddress, so that their states
// may be inconsistent. Invariant: no IPAddress is written before reads from etcd have confirmed the issue.
type AddressRepair struct {
	objects resource.Client
	ranges  *Ranges
	events  *Events
	clock   clock.WithTicker
	logger  logr.Logger
	queue   workqueue.TypedRateLimitingInterface[task]

	mu sync.Mutex
	// services has the states of Services by namespace/name. mu guards it and ipAddresses, and is not held during
	// requests.
	services map[string]*serviceState
	// ipAddresses has the states of IPAddresses by name, which is the address.
	ipAddresses map[string]ipAddressState
}

// task is an item of the queue: a Service or an IPAddress.
type task struct {
	// address is set if key is the name of an IPAddress; otherwise key is namespace/name of a Service.
	address bool
	key     string
}

// serviceState has the fields of a Service that the repair uses.
type serviceState struct {
	// object has only the metadata and the type.
	object    *api.Service
	addresses []string
}

// ipAddressState has the fields of an IPAddress that the repair uses.
type ipAddressState struct {
	object *networking.IPAddress
	// labeled is set if the IPAddress has all labels of the allocator.
	labeled bool
	// managed is set if the IPAddress has the label managed-by of the allocator.
	managed bool
}

// AddressRepairOptions configure an AddressRepair.
type AddressRepairOptions struct {
	Objects    resource.Client
	Ranges     *Ranges
	Events     *Events
	Clock      clock.WithTicker
	Logger     logr.Logger
	Registerer prometheus.Registerer
}

// NewAddressRepair returns a repair that knows no objects.
func NewAddressRepair(options AddressRepairOptions) *AddressRepair {
	r := &AddressRepair{
		objects: options.Objects, ranges: options.Ranges, events: options.Events,
		clock: options.Clock, logger: options.Logger,
		queue: workqueue.NewTypedRateLimitingQueueWithConfig(workqueue.DefaultTypedControllerRateLimiter[task](),
			workqueue.TypedRateLimitingQueueConfig[task]{Name: "ipallocator.k8s.io", Clock: options.Clock}),
		services: map[string]*serviceState{}, ipAddresses: map[string]ipAddressState{},
	}
	options.Registerer.MustRegister(r)
	return r
}

// SetService sets the state of a Service, given in the internal version; nil means that it has been deleted.
func (r *AddressRepair) SetService(key string, object runtime.Object) {
	service := asService(object)
	r.mu.Lock()
	before := r.services[key]
	delete(r.services, key)
	if service != nil {
		r.services[key] = newServiceState(service)
	}
	r.mu.Unlock()
	if before == nil || service == nil || !slices.Equal(before.addresses, clusterIPsOf(service)) {
		r.queue.Add(task{key: key})
	}
	for _, address := range removedAddresses(before, clusterIPsOf(service)) {
		r.queue.Add(task{address: true, key: address})
	}
}

// removedAddresses returns the addresses in before that are not in now.
func removedAddresses(before *serviceState, now []string) []string {
	if before == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(before.addresses), func(address string) bool {
		return slices.Contains(now, address)
	})
}

func newServiceState(service *api.Service) *serviceState {
	note := &api.Service{ObjectMeta: metav1.ObjectMeta{
		Namespace: service.Namespace, Name: service.Name, UID: service.UID, CreationTimestamp: service.CreationTimestamp,
		ResourceVersion: service.ResourceVersion,
	}}
	note.Spec.Type = service.Spec.Type
	return &serviceState{object: note, addresses: clusterIPsOf(service)}
}

// SetIPAddress sets the state of an IPAddress, given in the internal version; nil means that it has been deleted.
func (r *AddressRepair) SetIPAddress(name string, object runtime.Object) {
	r.mu.Lock()
	owner := r.ipAddresses[name].serviceKey()
	delete(r.ipAddresses, name)
	if ipAddress, ok := object.(*networking.IPAddress); ok {
		r.ipAddresses[name] = newIPAddressState(ipAddress)
		owner = r.ipAddresses[name].serviceKey()
	}
	r.mu.Unlock()
	r.queue.Add(task{address: true, key: name})
	r.queue.Add(task{key: owner})
}

func newIPAddressState(ipAddress *networking.IPAddress) ipAddressState {
	managed := ipAddress.Labels[networkingv1.LabelManagedBy] == manager
	note := &networking.IPAddress{
		ObjectMeta: metav1.ObjectMeta{
			Name: ipAddress.Name, UID: ipAddress.UID, CreationTimestamp: ipAddress.CreationTimestamp,
			ResourceVersion: ipAddress.ResourceVersion,
		},
		Spec: ipAddress.Spec,
	}
	family := api.IPv4Protocol
	if strings.Contains(ipAddress.Name, ":") {
		family = api.IPv6Protocol
	}
	return ipAddressState{
		object: note, managed: managed,
		labeled: managed && ipAddress.Labels[networkingv1.LabelIPAddressFamily] == string(family),
	}
}

// Once reconciles all known objects, Services first. It stops at the first error.
func (r *AddressRepair) Once(ctx context.Context) error {
	for _, t := range r.allTasks() {
		if err := r.reconcile(ctx, t); err != nil {
			return fmt.Errorf("repair the addresses of Services: %w", err)
		}
	}
	return nil
}

func (r *AddressRepair) allTasks() []task {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := make([]task, 0, len(r.services)+len(r.ipAddresses))
	for key := range r.services {
		all = append(all, task{key: key})
	}
	for name := range r.ipAddresses {
		all = append(all, task{address: true, key: name})
	}
	return all
}

// Run reconciles changed objects, and all objects once in each interval, until ctx ends.
func (r *AddressRepair) Run(ctx context.Context, interval time.Duration) {
	stop := context.AfterFunc(ctx, r.queue.ShutDown)
	defer stop()
	go r.resync(ctx, interval)
	for {
		t, ended := r.queue.Get()
		if ended {
			return
		}
		if err := panics.Catch(func() error { return r.reconcile(ctx, t) }); err != nil && ctx.Err() == nil {
			r.logger.V(1).Info("Failed to repair the address of a Service; retrying", "key", t.key, "error", err.Error())
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
			for _, t := range r.allTasks() {
				r.queue.Add(t)
			}
		}
	}
}

func (r *AddressRepair) reconcile(ctx context.Context, t task) error {
	ctx = system.WithServerUser(ctx)
	if t.address {
		return r.reconcileIPAddress(ctx, t)
	}
	r.mu.Lock()
	service := r.services[t.key]
	r.mu.Unlock()
	if service == nil {
		return nil
	}
	for _, text := range service.addresses {
		if err := r.reconcileClusterIP(ctx, service, text); err != nil {
			return err
		}
	}
	return nil
}

// issue is the kind of a difference between a cluster IP of a Service and its IPAddress.
type issue int

const (
	none issue = iota
	unreadable
	outOfRange
	notAllocated
	// wrongReference means that the IPAddress references an object that does not use the address.
	wrongReference
	// duplicate means that the IPAddress references another Service that also uses the address.
	duplicate
	wrongLabels
)

// evaluateClusterIP returns the issue of a cluster IP of a Service. ipAddress is the IPAddress of the address, if it
// exists, and other the Service that the IPAddress references, if it exists.
func evaluateClusterIP(
	service *serviceState, address netip.Addr, inRange bool, ipAddress ipAddressState, other *serviceState,
) issue {
	switch {
	case !inRange:
		return outOfRange
	case ipAddress.object == nil:
		return notAllocated
	}
	parent := ipAddress.object.Spec.ParentRef
	if parent == nil || parent.Group != "" || parent.Resource != "services" {
		return wrongReference
	}
	if parent.Namespace != service.object.Namespace || parent.Name != service.object.Name {
		if other == nil {
			return wrongReference
		}
		if slices.ContainsFunc(other.addresses, func(text string) bool { return sameAddress(text, address.String()) }) {
			return duplicate
		}
	}
	if !ipAddress.labeled {
		return wrongLabels
	}
	return none
}

func (r *AddressRepair) reconcileClusterIP(ctx context.Context, service *serviceState, text string) error {
	address, ok := parseAddress(text)
	if !ok {
		return r.repair(ctx, service, address, ipAddressState{}, unreadable)
	}
	ipAddress, other := r.cached(address.String())
	found := evaluateClusterIP(service, address, r.ranges.contains(address), ipAddress, other)
	if found == none || found == outOfRange {
		return r.repair(ctx, service, address, ipAddress, found)
	}
	// The two watches are not ordered, so that the issue may be transient. Reads from etcd confirm it. The IPAddress is
	// read first: it is created before its Service is stored and deleted after the Service. If the IPAddress is
	// missing, and a later read shows the address in the Service, the address is not allocated.
	ipAddress, other, err := r.readIPAddress(ctx, address.String())
	if err != nil {
		return err
	}
	service, err = r.readService(ctx, service.object.Namespace, service.object.Name)
	if err != nil || service == nil || !slices.Contains(service.addresses, text) {
		return err
	}
	return r.repair(ctx, service, address, ipAddress,
		evaluateClusterIP(service, address, r.ranges.contains(address), ipAddress, other))
}

// cached returns the known IPAddress of an address and the known Service that it references.
func (r *AddressRepair) cached(address string) (ipAddressState, *serviceState) {
	r.mu.Lock()
	defer r.mu.Unlock()
	ipAddress := r.ipAddresses[address]
	return ipAddress, r.services[ipAddress.serviceKey()]
}

// serviceKey returns namespace/name of the Service that the IPAddress references, or "".
func (h ipAddressState) serviceKey() string {
	if h.object == nil || h.object.Spec.ParentRef == nil {
		return ""
	}
	return h.object.Spec.ParentRef.Namespace + "/" + h.object.Spec.ParentRef.Name
}

// readIPAddress returns the same as cached, but reads from etcd.
func (r *AddressRepair) readIPAddress(
	ctx context.Context, address string,
) (ipAddress ipAddressState, service *serviceState, err error) {
	object, err := r.objects.Get(ctx, resource.Key{GroupResource: addresses, Name: address}, resource.ReadOptions{})
	if apierrors.IsNotFound(err) {
		return ipAddressState{}, nil, nil
	}
	if err != nil {
		return ipAddressState{}, nil, err
	}
	ipAddress = newIPAddressState(object.(*networking.IPAddress))
	if parent := ipAddress.object.Spec.ParentRef; parent != nil {
		service, err = r.readService(ctx, parent.Namespace, parent.Name)
	}
	return ipAddress, service, err
}

func (r *AddressRepair) readService(ctx context.Context, namespace, name string) (*serviceState, error) {
	object, err := r.objects.Get(ctx,
		resource.Key{GroupResource: servicesResource, Namespace: namespace, Name: name}, resource.ReadOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return newServiceState(object.(*api.Service)), nil
}

// repair warns about an issue and repairs it if possible. ipAddress is the IPAddress of the address, if it exists.
func (r *AddressRepair) repair(
	ctx context.Context, service *serviceState, address netip.Addr, ipAddress ipAddressState, found issue,
) error {
	warn := func(reason, action, format string, arguments ...any) {
		r.events.Warn(ctx, service.object, Warning{
			Controller: addressController, Reason: reason, Action: action, Note: fmt.Sprintf(format, arguments...),
		})
	}
	family := familyOfAddress(address)
	namespace, name := service.object.Namespace, service.object.Name
	switch found {
	case unreadable:
		warn("ClusterIPNotValid", "ClusterIPValidation", "Cluster IP %s is not a valid IP; please recreate Service", "<nil>")
	case outOfRange:
		warn("ClusterIPOutOfRange", "ClusterIPAllocation",
			"Cluster IP [%v]: %s is not within any configured Service CIDR; please recreate service", family, address)
	case duplicate:
		warn("ClusterIPAlreadyAllocated", "ClusterIPAllocation",
			"Cluster IP [%v]:%s was assigned to multiple services; please recreate service", family, address)
	case notAllocated:
		warn("ClusterIPNotAllocated", "ClusterIPAllocation", "Cluster IP [%v]: %s is not allocated; repairing",
			family, address)
		return r.create(ctx, service, address)
	case wrongReference:
		warn("ClusterIPNotAllocated", "ClusterIPAllocation",
			"the ClusterIP [%v]: %s for Service %s/%s has a wrong reference; repairing", family, address, namespace, name)
		return r.recreate(ctx, service, address, ipAddress)
	case wrongLabels:
		return r.recreate(ctx, service, address, ipAddress)
	}
	return nil
}

func (r *AddressRepair) create(ctx context.Context, service *serviceState, address netip.Addr) error {
	_, err := r.objects.Create(ctx, resource.Key{GroupResource: addresses},
		newIPAddress(address, service.object.Namespace, service.object.Name), resource.WriteOptions{})
	if apierrors.IsAlreadyExists(err) {
		// Another replica has created the IPAddress.
		return nil
	}
	return err
}

func (r *AddressRepair) recreate(
	ctx context.Context, service *serviceState, address netip.Addr, ipAddress ipAddressState,
) error {
	if err := r.remove(ctx, ipAddress); err != nil {
		return err
	}
	return r.create(ctx, service, address)
}

// remove deletes an IPAddress. If an IPAddress with the same name has been created since, the error makes the caller
// retry.
func (r *AddressRepair) remove(ctx context.Context, ipAddress ipAddressState) error {
	err := deleteIPAddress(ctx, r.objects, ipAddress.object)
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// decision is the result of evaluateIPAddress.
type decision struct {
	// reason and note describe why the IPAddress is deleted; empty if it is kept.
	reason, note string
	// recheckAfter is the delay of the next evaluation; 0 means that the next event causes it.
	recheckAfter time.Duration
}

// evaluateIPAddress decides whether an IPAddress of the allocator has leaked. service is the Service that it
// references, if it exists.
func evaluateIPAddress(ipAddress ipAddressState, service *serviceState, now time.Time) decision {
	parent := ipAddress.object.Spec.ParentRef
	if parent == nil || parent.Group != "" || parent.Resource != "services" {
		return decision{reason: "IPAddressNotAllocated", note: fmt.Sprintf(
			"IPAddress %s appears to have been modified, not referencing a Service %v: cleaning up",
			ipAddress.object.Name, parent)}
	}
	age := now.Sub(ipAddress.object.CreationTimestamp.Time)
	switch {
	case service == nil && age <= creationGrace:
		return decision{recheckAfter: creationGrace - age + time.Second}
	case service == nil:
		return decision{reason: "IPAddressNotAllocated", note: fmt.Sprintf(
			"IPAddress: %s for Service %s/%s appears to have leaked: cleaning up", ipAddress.object.Name,
			parent.Namespace, parent.Name)}
	case slices.ContainsFunc(service.addresses, func(text string) bool {
		return sameAddress(text, ipAddress.object.Name)
	}):
		return decision{}
	case service.object.Spec.Type == api.ServiceTypeExternalName && age < creationGrace:
		return decision{recheckAfter: creationGrace - age}
	case !ipAddress.object.CreationTimestamp.Before(&service.object.CreationTimestamp) && age < rollbackGrace:
		return decision{recheckAfter: rollbackGrace}
	}
	return decision{reason: "IPAddressWrongReference", note: fmt.Sprintf(
		"IPAddress: %s for Service %s/%s has a wrong reference; cleaning up", ipAddress.object.Name,
		service.object.Namespace, service.object.Name)}
}

func sameAddress(text, name string) bool {
	address, ok := parseAddress(text)
	return ok && address.String() == name
}

func (r *AddressRepair) reconcileIPAddress(ctx context.Context, t task) error {
	ipAddress, service := r.cached(t.key)
	if ipAddress.object == nil || !ipAddress.managed {
		return nil
	}
	decided := evaluateIPAddress(ipAddress, service, r.clock.Now())
	if decided.reason != "" {
		var err error
		if ipAddress, service, err = r.readIPAddress(ctx, t.key); err != nil ||
			ipAddress.object == nil || !ipAddress.managed {
			return err
		}
		decided = evaluateIPAddress(ipAddress, service, r.clock.Now())
	}
	if decided.recheckAfter > 0 {
		r.queue.AddAfter(t, decided.recheckAfter)
	}
	if decided.reason == "" {
		return nil
	}
	r.events.Warn(ctx, ipAddress.object, Warning{
		Controller: addressController, Reason: decided.reason, Action: "IPAddressAllocation", Note: decided.note,
	})
	return r.remove(ctx, ipAddress)
}
