package kubernetesservice

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	endpointsv1 "k8s.io/kubernetes/pkg/api/v1/endpoints"
	"k8s.io/kubernetes/pkg/apis/discovery"
	_ "k8s.io/kubernetes/pkg/apis/discovery/install"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/system"
)

// maxAttempts is the number of attempts of a reconciliation that conflicts with writes of other replicas. After a
// failed reconciliation, the next one makes only one attempt, unless the replica is leaving.
const maxAttempts = 5

// reconcile sets the endpoints to the addresses of the live replicas. If leaving is set, it removes the replica's own
// address, even if no other address remains.
func (c *Controller) reconcile(ctx context.Context, leaving bool) error {
	attempts := maxAttempts
	if c.failure != "" && !leaving {
		attempts = 1
	}
	for attempt := 1; ; attempt++ {
		err := c.reconcileOnce(ctx, leaving)
		if !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) || attempt == attempts {
			return err
		}
	}
}

func (c *Controller) reconcileOnce(ctx context.Context, leaving bool) error {
	current, err := c.current(ctx)
	if err != nil || current == nil && leaving {
		return err
	}
	wanted, err := c.Addresses.Wanted(ctx, c.PublicIP, addressesOf(current), leaving)
	if err != nil {
		return err
	}
	next := &corev1.Endpoints{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: metav1.NamespaceDefault}}
	if current != nil {
		next = current.DeepCopy()
	}
	if setAddresses(next, wanted, c.ports(), leaving) {
		c.Logger.Info("Setting the endpoints of the kubernetes Service", "addresses", wanted)
		if err := c.store(ctx, current == nil, next); err != nil {
			return err
		}
	}
	return c.ensureSlice(ctx, sliceOf(next))
}

// current returns the Endpoints, nil if there are none.
func (c *Controller) current(ctx context.Context) (*corev1.Endpoints, error) {
	internal, err := c.Objects.Get(ctx,
		resource.Key{GroupResource: endpoints, Namespace: metav1.NamespaceDefault, Name: name},
		resource.ReadOptions{})
	if apierrors.IsNotFound(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return fromInternal(internal)
}

func fromInternal(internal runtime.Object) (*corev1.Endpoints, error) {
	external := &corev1.Endpoints{}
	return external, legacyscheme.Scheme.Convert(internal, external, nil)
}

func addressesOf(e *corev1.Endpoints) []string {
	var all []string
	if e != nil && len(e.Subsets) > 0 {
		for _, address := range e.Subsets[0].Addresses {
			all = append(all, address.IP)
		}
	}
	return all
}

// ports returns the ports of the endpoints.
func (c *Controller) ports() []corev1.EndpointPort {
	return []corev1.EndpointPort{{Name: portName, Port: int32(c.PublicPort), Protocol: corev1.ProtocolTCP}}
}

// setAddresses sets the addresses of endpoints, in one subset, and reports whether that changed them.
func setAddresses(e *corev1.Endpoints, wanted []string, ports []corev1.EndpointPort, portsToo bool) (changed bool) {
	before := e.DeepCopy()
	// The controller writes the EndpointSlice itself; kube-controller-manager must not mirror these Endpoints.
	metav1.SetMetaDataLabel(&e.ObjectMeta, discoveryv1.LabelSkipMirror, "true")
	if len(e.Subsets) != 1 {
		e.Subsets = []corev1.EndpointSubset{{Ports: ports}}
	}
	if portsToo && !slices.Equal(e.Subsets[0].Ports, ports) {
		e.Subsets[0].Ports = ports
	}
	if !sameSet(addressesOf(e), wanted) {
		e.Subsets[0].Addresses = nil
		for _, ip := range wanted {
			e.Subsets[0].Addresses = append(e.Subsets[0].Addresses, corev1.EndpointAddress{IP: ip})
		}
		e.Subsets = endpointsv1.RepackSubsets(e.Subsets)
	}
	if len(e.Subsets) == 1 && len(e.Subsets[0].Addresses) == 0 && len(e.Subsets[0].NotReadyAddresses) == 0 {
		e.Subsets = nil
	}
	return !equality.Semantic.DeepEqual(before, e)
}

func sameSet(a, b []string) bool {
	a, b = slices.Clone(a), slices.Clone(b)
	slices.Sort(a)
	slices.Sort(b)
	return slices.Equal(a, b)
}

func (c *Controller) store(ctx context.Context, missing bool, e *corev1.Endpoints) error {
	if missing {
		return c.create(ctx, endpoints, e)
	}
	key := resource.Key{GroupResource: endpoints, Namespace: metav1.NamespaceDefault, Name: name}
	_, err := c.Objects.Update(ctx, key, func(object runtime.Object) error {
		return legacyscheme.Scheme.Convert(e.DeepCopy(), object, nil)
	}, resource.WriteOptions{})
	return err
}

// sliceOf returns the EndpointSlice of Endpoints.
func sliceOf(e *corev1.Endpoints) *discoveryv1.EndpointSlice {
	slice := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: e.Name, Namespace: e.Namespace, Labels: map[string]string{discoveryv1.LabelServiceName: e.Name},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if len(e.Subsets) == 0 {
		return slice
	}
	subset := e.Subsets[0]
	for _, port := range subset.Ports {
		slice.Ports = append(slice.Ports, discoveryv1.EndpointPort{
			Name: ptr.To(port.Name), Port: ptr.To(port.Port), Protocol: ptr.To(port.Protocol),
		})
	}
	isIPv6 := func(ip string) bool { return strings.Contains(ip, ":") }
	if all := addressesOf(e); len(all) > 0 && !slices.ContainsFunc(all, func(ip string) bool { return !isIPv6(ip) }) {
		slice.AddressType = discoveryv1.AddressTypeIPv6
	}
	for _, address := range subset.Addresses {
		if isIPv6(address.IP) == (slice.AddressType == discoveryv1.AddressTypeIPv6) {
			slice.Endpoints = append(slice.Endpoints, discoveryv1.Endpoint{
				Addresses: []string{address.IP}, Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true)},
			})
		}
	}
	return slice
}

// ensureSlice stores an EndpointSlice. The address type is immutable, so a slice of another type is recreated.
func (c *Controller) ensureSlice(ctx context.Context, wanted *discoveryv1.EndpointSlice) error {
	internal, err := system.ToInternal(wanted)
	if err != nil {
		return err
	}
	next := internal.(*discovery.EndpointSlice)
	key := resource.Key{GroupResource: endpointSlices, Namespace: metav1.NamespaceDefault, Name: name}
	object, err := c.Objects.Get(ctx, key, resource.ReadOptions{})
	if apierrors.IsNotFound(err) {
		return c.createSlice(ctx, next)
	}
	if err != nil {
		return err
	}
	current := object.(*discovery.EndpointSlice)
	if current.AddressType != next.AddressType {
		if err := c.Objects.Delete(ctx, key, &metav1.DeleteOptions{}); err != nil {
			return err
		}
		return c.createSlice(ctx, next)
	}
	if sameSlice(current, next) {
		return nil
	}
	_, err = c.Objects.Update(ctx, key, func(object runtime.Object) error {
		stored := object.(*discovery.EndpointSlice)
		stored.Labels, stored.Endpoints, stored.Ports = next.Labels, next.Endpoints, next.Ports
		return nil
	}, resource.WriteOptions{})
	if err != nil {
		return fmt.Errorf("update the EndpointSlice: %w", err)
	}
	return nil
}

func sameSlice(a, b *discovery.EndpointSlice) bool {
	return equality.Semantic.DeepEqual(a.Endpoints, b.Endpoints) && equality.Semantic.DeepEqual(a.Ports, b.Ports) &&
		equality.Semantic.DeepEqual(a.Labels, b.Labels)
}

func (c *Controller) createSlice(ctx context.Context, slice *discovery.EndpointSlice) error {
	_, err := c.Objects.Create(ctx,
		resource.Key{GroupResource: endpointSlices, Namespace: metav1.NamespaceDefault},
		slice.DeepCopy(), resource.WriteOptions{})
	return err
}
