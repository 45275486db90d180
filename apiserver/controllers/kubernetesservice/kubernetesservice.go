// Package kubernetesservice manages the Service default/kubernetes and its endpoints, which are the addresses of the
// live replicas.
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

	// Interval is the period of the reconciliation.
	Interval = 10 * time.Second
	// readyInterval is the period at which readiness is checked at the start.
	readyInterval = 100 * time.Millisecond
	// retryInterval is the delay after a failed reconciliation. After urgentRetries failures, the delay doubles with
	// each failure, up to Interval.
	retryInterval = time.Second
	// urgentRetries is the number of retries with the initial delay. They last until the lease of the replica expires:
	// it is renewed every 10 s and valid for 15 s.
	urgentRetries = 5
)

var (
	services       = schema.GroupResource{Resource: "services"}
	endpoints      = schema.GroupResource{Resource: "endpoints"}
	endpointSlices = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
)

// Options configure a Controller.
type Options struct {
	Objects resource.Client
	// Addresses determines the endpoints. If it is nil, the endpoints are not managed.
	Addresses  Addresses
	ServiceIP  string // cluster IP of the Service
	PublicIP   string // address of this replica
	PublicPort int
	NodePort   int // 0: not a NodePort Service
	// Ready reports whether this replica serves requests.
	Ready  func(context.Context) bool
	Clock  clock.Clock
	Logger logr.Logger
}

// Addresses determines the live replicas.
type Addresses interface {
	// Renew records that a replica is live.
	Renew(ctx context.Context, ip string) error
	// Remove records that a replica is not live, and reports whether it was recorded as live.
	Remove(ctx context.Context, ip string) (found bool, err error)
	// Wanted returns the desired addresses of the endpoints, given the present ones. It fails if the result would be
	// empty, unless the replica is leaving.
	Wanted(ctx context.Context, ip string, present []string, leaving bool) ([]string, error)
}

// Controller manages the Service and its endpoints.
type Controller struct {
	Options
	failure string // last logged error; empty: the last reconciliation succeeded
}

// New returns a controller. Begin, Run and End must be called in this order.
func New(options Options) *Controller { return &Controller{Options: options} }

// Begin removes the address of this replica if an earlier process has left it after a crash. It keeps the only address,
// because the endpoints must not become empty.
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
	c.Logger.Info("The previous process of this replica did not shut down gracefully; removing its address until this "+
		"one is ready", "address", c.PublicIP)
	return c.reconcile(ctx, true)
}

// Run reconciles the Service and its endpoints from the moment this replica is ready until ctx ends.
func (c *Controller) Run(ctx context.Context) {
	for !c.Ready(ctx) {
		if !c.sleep(ctx, readyInterval) {
			return
		}
	}
	for failures := 0; ; {
		wait := Interval
		err := c.once(system.WithServerUser(ctx))
		c.logFailure(ctx, err)
		switch {
		case err == nil:
			failures = 0
		case !c.isLoopback():
			wait = retryDelay(failures)
			failures++
		}
		if !c.sleep(ctx, wait) {
			return
		}
	}
}

// retryDelay returns the delay after a failure, given the number of consecutive failures before it.
func retryDelay(failures int) time.Duration {
	delay := retryInterval
	for range failures - urgentRetries {
		delay = min(2*delay, Interval)
	}
	return delay
}

// isLoopback reports whether the address is a loopback address, which is not a valid endpoint.
func (c *Controller) isLoopback() bool {
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

// logFailure logs an error unless it is equal to the last logged error: the error of a loopback address occurs in every
// reconciliation.
func (c *Controller) logFailure(ctx context.Context, err error) {
	if err == nil {
		c.failure = ""
		return
	}
	if err.Error() == c.failure || ctx.Err() != nil {
		return
	}
	c.failure = err.Error()
	if apierrors.IsInvalid(err) {
		c.Logger.Info("The address of this replica is not a valid endpoint of the kubernetes Service", "address",
			c.PublicIP, "reason", err.Error())
		return
	}
	c.Logger.Error(err, "Failed to reconcile the kubernetes Service; retrying", "interval", Interval)
}

// End removes this replica's address, so that clients stop connecting to it. Run must have returned.
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
		c.Logger.Error(err, "Failed to remove the address of this replica from the kubernetes Service", "address", c.PublicIP)
	}
}

func (c *Controller) once(ctx context.Context) error {
	if err := c.ensureService(ctx); err != nil {
		return fmt.Errorf("create the Service: %w", err)
	}
	if c.Addresses == nil {
		return nil
	}
	if err := c.Addresses.Renew(ctx, c.PublicIP); err != nil {
		return err
	}
	return c.reconcile(ctx, false)
}

// ensureService creates the Service if it does not exist. It does not change an existing Service.
func (c *Controller) ensureService(ctx context.Context) error {
	key := resource.Key{GroupResource: services, Namespace: metav1.NamespaceDefault, Name: name}
	_, err := c.Objects.Get(ctx, key, resource.ReadOptions{Cached: true})
	if !apierrors.IsNotFound(err) {
		return err
	}
	service := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Namespace: metav1.NamespaceDefault, Labels: map[string]string{
				"provider": "kubernetes", "component": "apiserver",
			},
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
	// The Service may exist now, created by another replica: then its name or cluster IP is taken.
	if _, missing := c.Objects.Get(ctx, key, resource.ReadOptions{}); missing == nil {
		return nil
	}
	return err
}

// create stores an object in the namespace of the Service, given in a served version.
func (c *Controller) create(ctx context.Context, gr schema.GroupResource, external runtime.Object) error {
	internal, err := system.ToInternal(external)
	if err != nil {
		return err
	}
	_, err = c.Objects.Create(ctx,
		resource.Key{GroupResource: gr, Namespace: metav1.NamespaceDefault}, internal, resource.WriteOptions{})
	return err
}
