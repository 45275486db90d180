package serviceip_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	clientv3 "go.etcd.io/etcd/client/v3"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/resource"
)

var (
	servicesResource = schema.GroupResource{Resource: "services"}
	ipAddresses      = schema.GroupResource{Group: "networking.k8s.io", Resource: "ipaddresses"}
	serviceCIDRs     = schema.GroupResource{Group: "networking.k8s.io", Resource: "servicecidrs"}
)

// serviceReplica adds shorthands for requests of Services.
type serviceReplica struct{ *builtintest.ServiceReplica }

func newServiceServer(t *testing.T, addresses string) *serviceReplica {
	t.Helper()
	return newServiceReplica(t, etcdtest.Client(t), addresses, "30000-30003")
}

func newServiceReplica(t *testing.T, client *clientv3.Client, addresses, ports string) *serviceReplica {
	t.Helper()
	return &serviceReplica{builtintest.NewServiceReplica(t, client, addresses, ports)}
}

// metricValue returns the value of the series whose first label is label, or -1 without one.
func metricValue(t *testing.T, metrics prometheus.Gatherer, name, label string) float64 {
	t.Helper()
	for _, family := range must[[]*dto.MetricFamily](t)(metrics.Gather()) {
		for _, metric := range family.GetMetric() {
			if family.GetName() == name && metric.GetLabel()[0].GetValue() == label {
				return metric.GetGauge().GetValue() + metric.GetCounter().GetValue() +
					float64(metric.GetHistogram().GetSampleCount())
			}
		}
	}
	return -1
}

func (s *serviceReplica) createService(t *testing.T, name string, change func(*v1.Service)) (*core.Service, error) {
	t.Helper()
	created, err := s.Create(t.Context(),
		resource.Key{GroupResource: servicesResource, Namespace: "default"},
		builtintest.NewService(t, name, change), resource.WriteOptions{})
	if err != nil {
		return nil, err
	}
	return created.(*core.Service), nil
}

func (s *serviceReplica) updateService(t *testing.T, name string, change func(*core.Service)) (*core.Service, error) {
	t.Helper()
	key := resource.Key{GroupResource: servicesResource, Namespace: "default", Name: name}
	updated, err := s.Update(t.Context(), key, func(object runtime.Object) error {
		change(object.(*core.Service))
		return nil
	}, resource.WriteOptions{})
	if err != nil {
		return nil, err
	}
	return updated.(*core.Service), nil
}

// held reports whether an address is allocated.
func (s *serviceReplica) held(t *testing.T, address string) bool {
	t.Helper()
	_, err := s.Get(t.Context(), resource.Key{GroupResource: ipAddresses, Name: address}, resource.ReadOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	return err == nil
}

func TestAddressIsReleasedByDeletion(t *testing.T) {
	s := newServiceServer(t, "10.20.0.0/24")
	service := must[*core.Service](t)(s.createService(t, "web", nil))
	address := service.Spec.ClusterIP
	if parsed, err := netip.ParseAddr(address); err != nil || !netip.MustParsePrefix("10.20.0.0/24").Contains(parsed) {
		t.Fatalf("cluster IP %q", address)
	}
	if !slices.Equal(service.Spec.ClusterIPs, []string{address}) ||
		!slices.Equal(service.Spec.IPFamilies, []core.IPFamily{core.IPv4Protocol}) ||
		*service.Spec.IPFamilyPolicy != core.IPFamilyPolicySingleStack {
		t.Errorf("spec %+v", service.Spec)
	}
	if !s.held(t, address) {
		t.Error("the address is not allocated")
	}
	if _, err := s.createService(
		t, "other", func(o *v1.Service) { o.Spec.ClusterIP = address },
	); !apierrors.IsInvalid(err) {
		t.Errorf("an allocated address was allocated again: %v", err)
	}
	updated := must[*core.Service](t)(s.updateService(t, "web", func(o *core.Service) {
		o.Spec.ClusterIP, o.Spec.ClusterIPs = "", nil
	}))
	if updated.Spec.ClusterIP != address {
		t.Errorf("an update without address got %q", updated.Spec.ClusterIP)
	}
	key := resource.Key{GroupResource: servicesResource, Namespace: "default", Name: "web"}
	if err := s.Delete(t.Context(), key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if s.held(t, address) {
		t.Error("the address of a deleted Service is still allocated")
	}
}

func TestRejectedServiceIsRolledBack(t *testing.T) {
	s := newServiceServer(t, "10.20.0.0/24")
	bad := func(o *v1.Service) { o.Spec.ClusterIP, o.Spec.SessionAffinity = "10.20.0.77", "Sometimes" }
	if _, err := s.createService(t, "web", bad); !apierrors.IsInvalid(err) {
		t.Fatalf("got %v", err)
	}
	if s.held(t, "10.20.0.77") {
		t.Error("the address of a rejected Service leaked")
	}
	dryRun := must[runtime.Object](t)(s.Create(t.Context(),
		resource.Key{GroupResource: servicesResource, Namespace: "default"},
		builtintest.NewService(t, "web", nil), resource.WriteOptions{DryRun: true})).(*core.Service)
	if dryRun.Spec.ClusterIP != "10.20.0.0" || s.held(t, dryRun.Spec.ClusterIP) {
		t.Errorf("a dry run returned %q, allocated: %v", dryRun.Spec.ClusterIP, s.held(t, dryRun.Spec.ClusterIP))
	}
}

// Rolling back a rejected Service must not release what other Services have allocated.
func TestRollbackKeepsAllocationsOfOthers(t *testing.T) {
	s := newServiceServer(t, "10.20.0.0/24")
	owner := must[*core.Service](t)(s.createService(t, "owner", func(o *v1.Service) {
		o.Spec.Type = v1.ServiceTypeNodePort
	}))
	port := owner.Spec.Ports[0].NodePort
	if _, err := s.createService(
		t, "wrong", func(o *v1.Service) { o.Spec.Ports[0].NodePort = port },
	); !apierrors.IsInvalid(err) {
		t.Fatalf("a ClusterIP Service with a node port: %v", err)
	}
	if _, err := s.createService(t, "thief", func(o *v1.Service) {
		o.Spec.Type, o.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, port
	}); !apierrors.IsInvalid(err) {
		t.Errorf("an allocated port was allocated again: %v", err)
	}
	must[*core.Service](t)(s.createService(t, "other", nil))
	if _, err := s.updateService(t, "other", func(o *core.Service) {
		o.Spec.ClusterIP, o.Spec.ClusterIPs = owner.Spec.ClusterIP, []string{owner.Spec.ClusterIP}
	}); !apierrors.IsInvalid(err) {
		t.Fatalf("changing an address: %v", err)
	}
	if !s.held(t, owner.Spec.ClusterIP) {
		t.Error("the address of another Service was released")
	}
}

// leaving cancels the context of the request after a create.
type leaving struct {
	resource.Client
	leave context.CancelFunc
}

func (l leaving) Create(
	ctx context.Context, key resource.Key, object runtime.Object, options resource.WriteOptions,
) (runtime.Object, error) {
	defer l.leave()
	return l.Client.Create(ctx, key, object, options)
}

func TestRollbackIgnoresCanceledContext(t *testing.T) {
	s := newServiceServer(t, "10.20.0.0/24")
	ctx, cancel := context.WithCancel(t.Context())
	service := builtintest.NewService(t, "web", func(o *v1.Service) {
		o.Spec.Type, o.Spec.ClusterIP, o.Spec.Ports[0].NodePort = v1.ServiceTypeNodePort, "10.20.0.77", 29999
	})
	if err := s.Allocator.Allocate(ctx, leaving{s, cancel}, service, nil, false); !apierrors.IsInvalid(err) ||
		ctx.Err() == nil {
		t.Fatalf("a port outside the range: %v", err)
	}
	if s.held(t, "10.20.0.77") {
		t.Error("the address of a rejected Service leaked")
	}
}

func TestServiceTypesWithoutAddress(t *testing.T) {
	s := newServiceServer(t, "10.20.0.0/24")
	headless := must[*core.Service](t)(s.createService(t, "headless", func(o *v1.Service) {
		o.Spec.ClusterIP = v1.ClusterIPNone
	}))
	if headless.Spec.ClusterIP != "None" || !slices.Equal(headless.Spec.IPFamilies, []core.IPFamily{core.IPv4Protocol}) {
		t.Errorf("headless: %+v", headless.Spec)
	}
	foreign := must[*core.Service](t)(s.createService(t, "foreign", func(o *v1.Service) {
		o.Spec.ClusterIP, o.Spec.Selector = v1.ClusterIPNone, nil
	}))
	if len(foreign.Spec.IPFamilies) != 2 || *foreign.Spec.IPFamilyPolicy != core.IPFamilyPolicyRequireDualStack {
		t.Errorf("headless without selector: %+v", foreign.Spec)
	}
	must[*core.Service](t)(s.createService(t, "name", func(o *v1.Service) {
		o.Spec = v1.ServiceSpec{Type: v1.ServiceTypeExternalName, ExternalName: "example.com"}
	}))
	changed := must[*core.Service](t)(s.updateService(t, "name", func(o *core.Service) {
		o.Spec.Type, o.Spec.ExternalName, o.Spec.Ports = core.ServiceTypeClusterIP, "", headless.Spec.Ports
		o.Spec.InternalTrafficPolicy = headless.Spec.InternalTrafficPolicy
	}))
	address := changed.Spec.ClusterIP
	if !s.held(t, address) {
		t.Errorf("address %q is not allocated after the type changed", address)
	}
	must[*core.Service](t)(s.updateService(t, "name", func(o *core.Service) {
		o.Spec.Type, o.Spec.ExternalName, o.Spec.ClusterIP, o.Spec.ClusterIPs =
			core.ServiceTypeExternalName, "example.com", "", nil
	}))
	if s.held(t, address) {
		t.Error("a removed address is still allocated")
	}
}

func TestServiceOfTwoFamilies(t *testing.T) {
	s := newServiceServer(t, "10.20.0.0/24,fd00:20::/112")
	both := must[*core.Service](t)(s.createService(t, "both", func(o *v1.Service) {
		policy := v1.IPFamilyPolicyPreferDualStack
		o.Spec.IPFamilyPolicy = &policy
	}))
	if len(both.Spec.ClusterIPs) != 2 ||
		!slices.Equal(both.Spec.IPFamilies, []core.IPFamily{core.IPv4Protocol, core.IPv6Protocol}) {
		t.Fatalf("spec %+v", both.Spec)
	}
	second := both.Spec.ClusterIPs[1]
	one := must[*core.Service](t)(s.updateService(t, "both", func(o *core.Service) {
		policy := core.IPFamilyPolicySingleStack
		o.Spec.IPFamilyPolicy = &policy
	}))
	if len(one.Spec.ClusterIPs) != 1 || s.held(t, second) || !s.held(t, one.Spec.ClusterIP) {
		t.Errorf("after the downgrade: %v, secondary allocated: %v", one.Spec.ClusterIPs, s.held(t, second))
	}
}

func TestConcurrentServicesGetDifferentAddresses(t *testing.T) {
	s := newServiceServer(t, "10.20.0.0/28")
	const size = 14
	var group sync.WaitGroup
	given := make(chan string, size)
	for i := range size {
		group.Go(func() {
			service, err := s.createService(t, fmt.Sprintf("web-%d", i), nil)
			if err != nil {
				t.Error(err)
				return
			}
			given <- service.Spec.ClusterIP
		})
	}
	group.Wait()
	close(given)
	seen := map[string]bool{}
	for address := range given {
		if seen[address] {
			t.Errorf("%s was allocated twice", address)
		}
		seen[address] = true
	}
	if _, err := s.createService(t, "late", nil); !apierrors.IsInternalError(err) {
		t.Errorf("a full range: %v", err)
	}
}

func TestNodePorts(t *testing.T) {
	s := newServiceServer(t, "10.20.0.0/24")
	nodePort := func(ports ...v1.ServicePort) func(*v1.Service) {
		return func(o *v1.Service) { o.Spec.Type, o.Spec.Ports = v1.ServiceTypeNodePort, ports }
	}
	dns := must[*core.Service](t)(s.createService(t, "dns", nodePort(
		v1.ServicePort{Name: "udp", Port: 53, Protocol: v1.ProtocolUDP}, v1.ServicePort{
			Name: "tcp", Port: 53, Protocol: v1.ProtocolTCP,
		})))
	if a, b := dns.Spec.Ports[0].NodePort, dns.Spec.Ports[1].NodePort; a == 0 || a != b {
		t.Errorf("ports of two protocols: %d and %d, want one", a, b)
	}
	taken := dns.Spec.Ports[0].NodePort
	if _, err := s.createService(
		t, "thief", nodePort(v1.ServicePort{Port: 80, NodePort: taken}),
	); !apierrors.IsInvalid(err) {
		t.Errorf("an allocated port was allocated again: %v", err)
	}
	if _, err := s.createService(
		t, "outside", nodePort(v1.ServicePort{Port: 80, NodePort: 29999}),
	); !apierrors.IsInvalid(err) {
		t.Errorf("a port outside the range was allocated: %v", err)
	}
	for i := range 3 {
		must[*core.Service](t)(s.createService(t, fmt.Sprintf("web-%d", i), nodePort(v1.ServicePort{Port: 80})))
	}
	if _, err := s.createService(t, "late", nodePort(v1.ServicePort{Port: 80})); !apierrors.IsInternalError(err) {
		t.Errorf("allocated from a full range: %v", err)
	}
	kept := must[*core.Service](t)(s.updateService(t, "dns", func(o *core.Service) {
		o.Spec.Ports[0].NodePort, o.Spec.Ports[1].NodePort = 0, 0
	}))
	if kept.Spec.Ports[0].NodePort != taken {
		t.Errorf("an update without port got %d, had %d", kept.Spec.Ports[0].NodePort, taken)
	}
	key := resource.Key{GroupResource: servicesResource, Namespace: "default", Name: "dns"}
	if err := s.Delete(t.Context(), key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	must[*core.Service](t)(s.createService(t, "heir", nodePort(v1.ServicePort{Port: 80, NodePort: taken})))
}
