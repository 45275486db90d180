package serviceip_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"github.com/go-logr/logr"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/kubernetes/pkg/features"
	testingclock "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serviceip"
)

// storeOldService stores a Service as Kubernetes 1.19 did, without fields of later releases. holder is the name of its
// IPAddress.
func storeOldService(t *testing.T, s *serviceReplica, name, address, holder string) {
	t.Helper()
	old := &v1.Service{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Service"},
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: "old", CreationTimestamp: metav1.Now()},
		Spec: v1.ServiceSpec{
			ClusterIP: address, Type: v1.ServiceTypeClusterIP, SessionAffinity: v1.ServiceAffinityNone,
			Ports: []v1.ServicePort{{Protocol: v1.ProtocolTCP, Port: 80}},
		},
	}
	data := must[[]byte](t)(runtime.Encode(protobuf.NewSerializer(legacyscheme.Scheme, legacyscheme.Scheme), old))
	if _, err := s.Etcd.Put(t.Context(), "/registry/services/specs/default/"+name, string(data)); err != nil {
		t.Fatal(err)
	}
	must[runtime.Object](t)(s.Create(t.Context(),
		resource.Key{GroupResource: ipAddresses}, newIPAddress(holder, name), resource.WriteOptions{}))
}

// newIPAddress returns the IPAddress of a Service.
func newIPAddress(address, name string) *networking.IPAddress {
	return &networking.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: address, Labels: map[string]string{
			"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io", "ipaddress.kubernetes.io/ip-family": "IPv4",
		}},
		Spec: networking.IPAddressSpec{
			ParentRef: &networking.ParentReference{Resource: "services", Namespace: "default", Name: name},
		},
	}
}

func label(o *core.Service) { o.Labels = map[string]string{"updated": "yes"} }

// mustHave checks the address of a Service.
func mustHave(t *testing.T, what string, service *core.Service, address string) {
	t.Helper()
	addresses, families := service.Spec.ClusterIPs, service.Spec.IPFamilies
	if !slices.Equal(addresses, []string{address}) || !slices.Equal(families, []core.IPFamily{"IPv4"}) {
		t.Errorf("%s: addresses %v of families %v, want %s", what, addresses, families, address)
	}
}

func TestOldServiceIsCompletedWhenItIsUpdated(t *testing.T) {
	s := newServiceServer(t, "10.20.0.0/24")
	storeOldService(t, s, "old", "10.20.0.7", "10.20.0.7")
	shown := must[runtime.Object](t)(s.Get(t.Context(),
		resource.Key{GroupResource: servicesResource, Namespace: "default", Name: "old"},
		resource.ReadOptions{})).(*core.Service)
	mustHave(t, "shown", shown, "10.20.0.7")
	mustHave(t, "updated", must[*core.Service](t)(s.updateService(t, "old", label)), "10.20.0.7")
}

func TestOldServiceReleasesItsAddress(t *testing.T) {
	s := newServiceServer(t, "10.20.0.0/24")
	storeOldService(t, s, "old", "10.20.0.7", "10.20.0.7")
	key := resource.Key{GroupResource: servicesResource, Namespace: "default", Name: "old"}
	if err := s.Delete(t.Context(), key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if s.held(t, "10.20.0.7") {
		t.Error("the address of a deleted Service is still allocated")
	}
}

// An update may finish a deletion and request an allocation. Both the old and the new allocations are released.
func TestUpdateThatFinishesDeletionReleasesAll(t *testing.T) {
	s := newServiceServer(t, "10.20.0.0/24")
	for name, change := range map[string]func(*core.Service){
		"node-port": func(o *core.Service) {
			o.Spec.Type, o.Spec.ExternalTrafficPolicy = core.ServiceTypeNodePort, core.ServiceExternalTrafficPolicyCluster
		},
		"external": func(o *core.Service) {
			o.Spec.Type, o.Spec.ExternalName = core.ServiceTypeExternalName, "example.com"
			o.Spec.ClusterIP, o.Spec.ClusterIPs = "", nil
		},
	} {
		waiting := func(o *v1.Service) { o.Finalizers = []string{"example.com/wait"} }
		service := must[*core.Service](t)(s.createService(t, name, waiting))
		key := resource.Key{GroupResource: servicesResource, Namespace: "default", Name: name}
		if err := s.Delete(t.Context(), key, &metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		must[*core.Service](t)(s.updateService(t, name, func(o *core.Service) {
			change(o)
			o.Finalizers = nil
		}))
		if _, err := s.Get(t.Context(), key, resource.ReadOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("%s: got %v", name, err)
		}
		if s.held(t, service.Spec.ClusterIP) {
			t.Errorf("%s: the address of a deleted Service is still allocated", name)
		}
	}
	for _, name := range []string{"a", "b", "c", "d"} { // all ports of the range
		must[*core.Service](t)(s.createService(t, name, asNodePort))
	}
}

func TestAddressWithLeadingZeros(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.StrictIPCIDRValidation, false)
	s := newServiceServer(t, "10.20.0.0/24")
	at := func(address string) func(*v1.Service) { return func(o *v1.Service) { o.Spec.ClusterIP = address } }
	service := must[*core.Service](t)(s.createService(t, "web", at("10.20.0.011")))
	if service.Spec.ClusterIP != "10.20.0.011" || !s.held(t, "10.20.0.11") {
		t.Errorf("address %s, allocated: %v", service.Spec.ClusterIP, s.held(t, "10.20.0.11"))
	}
	if _, err := s.createService(t, "other", at("10.20.0.11")); !apierrors.IsInvalid(err) {
		t.Errorf("the address was allocated again in another spelling: %v", err)
	}
	key := resource.Key{GroupResource: servicesResource, Namespace: "default", Name: "web"}
	if err := s.Delete(t.Context(), key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if s.held(t, "10.20.0.11") {
		t.Error("the address of a deleted Service is still allocated")
	}
}

func TestStoredAddressWithLeadingZerosStays(t *testing.T) {
	s := newServiceServer(t, "10.20.0.0/24")
	storeOldService(t, s, "old", "10.20.0.011", "10.20.0.11")
	mustHave(t, "updated", must[*core.Service](t)(s.updateService(t, "old", label)), "10.20.0.011")
}

// exchanging replaces an IPAddress by the IPAddress of another Service just before its deletion.
type exchanging struct {
	resource.Client
	*testing.T
	with *networking.IPAddress
}

func (e *exchanging) Delete(ctx context.Context, key resource.Key, options *metav1.DeleteOptions) error {
	if with := e.with; with != nil && key.GroupResource == ipAddresses && key.Name == with.Name {
		e.with = nil
		if err := e.Client.Delete(ctx, key, &metav1.DeleteOptions{}); err != nil {
			e.Error(err)
		}
		must[runtime.Object](e.T)(e.Client.Create(ctx, key, with, resource.WriteOptions{}))
	}
	return e.Client.Delete(ctx, key, options)
}

// An address may be allocated to another Service between the read of its IPAddress and the delete.
func TestDeleteHasUIDPrecondition(t *testing.T) {
	s := newServiceServer(t, "10.20.0.0/24")
	service := must[*core.Service](t)(s.createService(t, "web", func(o *v1.Service) { o.Spec.ClusterIP = "10.20.0.7" }))
	objects := &exchanging{s, t, newIPAddress("10.20.0.7", "other")}
	if err := s.Allocator.Release(t.Context(), objects, service, nil); err != nil {
		t.Error(err)
	}
	if !s.held(t, "10.20.0.7") {
		t.Error("the allocator has deleted the address of another Service")
	}

	leaked := newIPAddress("10.20.0.8", "missing")
	created := must[runtime.Object](t)(s.Create(t.Context(),
		resource.Key{GroupResource: ipAddresses}, leaked.DeepCopy(), resource.WriteOptions{}))
	later := testingclock.NewFakeClock(time.Now().Add(time.Hour))
	objects = &exchanging{s, t, newIPAddress("10.20.0.8", "web")}
	repair := serviceip.NewAddressRepair(serviceip.AddressRepairOptions{
		Objects: objects, Ranges: s.Ranges, Events: s.Events, Clock: later, Logger: logr.Discard(), Registerer: s.Metrics,
	})
	repair.SetIPAddress(leaked.Name, created)
	_ = repair.Once(t.Context()) // an error makes the queue retry
	if !s.held(t, "10.20.0.8") {
		t.Error("the repair has deleted the address of another Service")
	}
}

// interrupted calls then after the first read.
type interrupted struct {
	resource.Client
	then func()
}

func (o *interrupted) Get(
	ctx context.Context, key resource.Key, options resource.ReadOptions,
) (runtime.Object, error) {
	found, err := o.Client.Get(ctx, key, options)
	if then := o.then; then != nil {
		o.then = nil
		then()
	}
	return found, err
}

// A client may release a secondary address between the events of the Service and of its IPAddress.
func TestRepairIgnoresConcurrentlyReleasedAddress(t *testing.T) {
	s := newServiceServer(t, "10.20.0.0/24,fd00:20::/112")
	service := must[*core.Service](t)(s.createService(t, "web", func(o *v1.Service) {
		o.Spec.IPFamilyPolicy = ptr.To(v1.IPFamilyPolicyRequireDualStack)
	}))
	reduce := func(o *core.Service) { o.Spec.IPFamilyPolicy = ptr.To(core.IPFamilyPolicySingleStack) }
	objects := &interrupted{Client: s, then: func() { must[*core.Service](t)(s.updateService(t, "web", reduce)) }}
	first := must[runtime.Object](t)(s.Get(t.Context(),
		resource.Key{GroupResource: ipAddresses, Name: service.Spec.ClusterIPs[0]}, resource.ReadOptions{}))
	now := testingclock.NewFakeClock(time.Now())
	repair := serviceip.NewAddressRepair(serviceip.AddressRepairOptions{
		Objects: objects, Ranges: s.Ranges, Events: s.Events, Clock: now, Logger: logr.Discard(), Registerer: s.Metrics,
	})
	repair.SetIPAddress(service.Spec.ClusterIPs[0], first)
	repair.SetService("default/web", service)
	if err := repair.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	if s.held(t, service.Spec.ClusterIPs[1]) {
		t.Error("a released address was allocated again")
	}
}
