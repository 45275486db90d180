// Package kubernetesservice keeps the Service by which pods find the API servers, default/kubernetes, and the addresses
// behind it: those of the replicas that are alive.
package kubernetesservice

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	_ "k8s.io/kubernetes/pkg/apis/core/install"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/system"
)

const (
	name        = "kubernetes"
	portName    = "https"
	servicePort = 443

	// Interval is how often Service and addresses are looked after.
	Interval = 10 * time.Second
	// readyInterval is how often it is asked whether this replica is ready.
	readyInterval = 100 * time.Millisecond
	// retryInterval is how soon a round that failed is repeated.
	retryInterval = time.Second
)

var (
	services       = schema.GroupResource{Resource: "services"}
	endpoints      = schema.GroupResource{Resource: "endpoints"}
	endpointSlices = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
)

// Options are what a Controller needs.
type Options struct {
	Objects resource.Client
	// Addresses decides which addresses the Service has; nil: somebody else does.
	Addresses  Addresses
	ServiceIP  string // of the Service
	PublicIP   string // where this replica is reached
	PublicPort int
	NodePort   int // 0: the Service has none
	// Ready tells whether this replica answers requests.
	Ready  func(context.Context) bool
	Clock  clock.Clock
	Logger logr.Logger
}

// Addresses are those of the replicas that are alive.
type Addresses interface {
	// Renew says that a replica is alive.
	Renew(ctx context.Context, ip string) error
	// Remove says that a replica is not alive, and tells whether it was thought to be.
	Remove(ctx context.Context, ip string) (found bool, err error)
	// Wanted returns the addresses that the endpoints shall have, given those that they have. It fails when there
	// would be none, unless the replica is leaving.
	Wanted(ctx context.Context, ip string, present []string, leaving bool) ([]string, error)
}

// Controller keeps the Service and its endpoints.
type Controller struct {
	Options
	failure string // the last one told
}

// New returns a controller. Begin, Run and End are to be called in this order.
func New(options Options) *Controller { return &Controller{Options: options} }

// Begin takes this replica's address away if it is there: a process before this one did not end in order. When it was
// the only one it stays in the endpoints, for want of a better one.
func (c *Controller) Begin(ctx context.Context) error {
	ctx = system.WithServerUser(ctx)
	if c.Addresses == nil {
		return nil
	}
	found, err := c.Addresses.Remove(ctx, c.PublicIP)
	if err != nil || !found {
		return err
	}
	current, err := c.current(ctx)
	if err != nil || !slices.Contains(addressesOf(current), c.PublicIP) {
		return err
	}
	left, err := c.Addresses.Wanted(ctx, c.PublicIP, addressesOf(current), true)
	if err != nil || len(left) == 0 {
		return err
	}
	c.Logger.Info("This replica has not ended in order before; its address is removed until it is ready", "address", c.PublicIP)
	return c.reconcile(ctx, true)
}

// Run makes and keeps the Service and the endpoints from the moment this replica is ready, until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	for !c.Ready(ctx) {
		if !c.sleep(ctx, readyInterval) {
			return
		}
	}
	for {
		wait := Interval
		err := c.once(system.WithServerUser(ctx))
		c.tell(ctx, err)
		if err != nil && !c.forItself() {
			wait = retryInterval
		}
		if !c.sleep(ctx, wait) {
			return
		}
	}
}

// forItself tells whether this replica is reached from its own host only, so that it can be no endpoint.
func (c *Controller) forItself() bool {
	ip, err := netip.ParseAddr(c.PublicIP)
	return err == nil && ip.IsLoopback()
}

func (c *Controller) sleep(ctx context.Context, duration time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-c.Clock.After(duration):
		return true
	}
}

// tell writes a failure into the log, unless it was told and has not changed: endpoints cannot have the address of a
// replica that listens for its own host only, and will not have it in ten seconds.
func (c *Controller) tell(ctx context.Context, err error) {
	if err == nil {
		c.failure = ""
		return
	}
	if err.Error() == c.failure || ctx.Err() != nil {
		return
	}
	c.failure = err.Error()
	if apierrors.IsInvalid(err) {
		c.Logger.Info("The kubernetes Service cannot have the address of this replica", "address", c.PublicIP, "reason", err.Error())
		return
	}
	c.Logger.Error(err, "The kubernetes Service could not be kept; trying again", "interval", Interval)
}

// End takes this replica's address away, so that nobody comes here any more. Run must have returned.
func (c *Controller) End(ctx context.Context) {
	if c.Addresses == nil {
		return
	}
	ctx = system.WithServerUser(ctx)
	_, err := c.Addresses.Remove(ctx, c.PublicIP)
	if err == nil {
		err = c.reconcile(ctx, true)
	}
	if err != nil {
		c.Logger.Error(err, "The address of this replica could not be removed from the kubernetes Service", "address", c.PublicIP)
	}
}

func (c *Controller) once(ctx context.Context) error {
	if err := c.ensureService(ctx); err != nil {
		return fmt.Errorf("make the Service: %w", err)
	}
	if c.Addresses == nil {
		return nil
	}
	if err := c.Addresses.Renew(ctx, c.PublicIP); err != nil {
		return err
	}
	return c.reconcile(ctx, false)
}

// ensureService makes the Service where there is none. One that is there is left as it is.
func (c *Controller) ensureService(ctx context.Context) error {
	key := resource.Key{GroupResource: services, Namespace: metav1.NamespaceDefault, Name: name}
	_, err := c.Objects.Get(ctx, key, resource.ReadOptions{Cached: true})
	if !apierrors.IsNotFound(err) {
		return err
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: metav1.NamespaceDefault, Labels: map[string]string{"provider": "kubernetes", "component": "apiserver"},
		},
		Spec: corev1.ServiceSpec{
			Ports: []corev1.ServicePort{{
				Name: portName, Protocol: corev1.ProtocolTCP, Port: servicePort, TargetPort: intstr.FromInt32(int32(c.PublicPort)),
			}},
			ClusterIP: c.ServiceIP, IPFamilyPolicy: ptr.To(corev1.IPFamilyPolicySingleStack),
			SessionAffinity: corev1.ServiceAffinityNone, Type: corev1.ServiceTypeClusterIP,
		},
	}
	if c.NodePort > 0 {
		service.Spec.Type, service.Spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, int32(c.NodePort)
	}
	if err = c.create(ctx, services, service); err == nil {
		return nil
	}
	// Another replica may have been faster: then the name is taken, or the address.
	if _, missing := c.Objects.Get(ctx, key, resource.ReadOptions{}); missing == nil {
		return nil
	}
	return err
}

// create stores an object of the Service's namespace, given in a served version.
func (c *Controller) create(ctx context.Context, gr schema.GroupResource, external runtime.Object) error {
	internal, err := system.ToInternal(external)
	if err != nil {
		return err
	}
	_, err = c.Objects.Create(ctx,
		resource.Key{GroupResource: gr, Namespace: metav1.NamespaceDefault}, internal, resource.WriteOptions{})
	return err
}
