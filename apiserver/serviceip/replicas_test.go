package serviceip_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	v1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	testingclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serviceip"
)

func asNodePort(o *v1.Service) { o.Spec.Type = v1.ServiceTypeNodePort }

// Two replicas on one etcd allocate whole ranges without duplicates.
func TestReplicasAllocateEachAddressAndPortOnce(t *testing.T) {
	const size = 30
	client := etcdtest.Client(t)
	replicas := []*serviceReplica{
		newServiceReplica(t, client, "10.20.0.0/27", "30000-30029"),
		newServiceReplica(t, client, "10.20.0.0/27", "30000-30029"),
	}
	var group sync.WaitGroup
	given := make(chan *core.Service, size)
	for i := range size {
		group.Go(func() {
			service, err := replicas[i%2].createService(t, fmt.Sprintf("web-%d", i), asNodePort)
			if err != nil {
				t.Error(err)
				return
			}
			given <- service
		})
	}
	group.Wait()
	close(given)
	owners := map[string]string{}
	for service := range given {
		for _, thing := range []string{service.Spec.ClusterIP, fmt.Sprint(service.Spec.Ports[0].NodePort)} {
			if other, ok := owners[thing]; ok {
				t.Errorf("%s was allocated to %s and %s", thing, other, service.Name)
			}
			owners[thing] = service.Name
		}
	}
	if _, err := replicas[0].createService(t, "late", asNodePort); !apierrors.IsInternalError(err) {
		t.Errorf("allocated from a full range: %v", err)
	}
	key := resource.Key{GroupResource: servicesResource, Namespace: "default", Name: "web-0"}
	if err := replicas[1].Delete(t.Context(), key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "one replica allocates what another one released", func() bool {
		_, err := replicas[0].createService(t, "heir", asNodePort)
		return err == nil
	})
}

// A replica allocates from a ServiceCIDR, and rejects addresses of a deleted one, before it receives the event.
func TestAllocationFromNewServiceCIDR(t *testing.T) {
	client, observed := etcdtest.Client(t), &builtintest.Etcd{}
	observed.BeforeRead = func(key string) {
		if key == "/registry/" { // a read of the current revision, for which the cache waits
			observed.Release()
		}
	}
	other := newServiceReplica(t, client, "10.20.0.0/30", "30000-30003")
	s := newServiceReplica(t, observed.Client(t, client), "10.20.0.0/30", "30000-30003")
	must[[]runtime.Object](t)(s.List(t.Context(),
		resource.Key{GroupResource: serviceCIDRs}, resource.ReadOptions{})) // starts the watch cache
	wants := func(address string) func(*v1.Service) {
		return func(o *v1.Service) { o.Spec.ClusterIP = address }
	}

	observed.Hold()
	more := &networking.ServiceCIDR{
		ObjectMeta: metav1.ObjectMeta{Name: "more"}, Spec: networking.ServiceCIDRSpec{CIDRs: []string{"10.30.0.0/24"}},
	}
	must[runtime.Object](t)(other.Create(t.Context(),
		resource.Key{GroupResource: serviceCIDRs}, more, resource.WriteOptions{}))
	must[*core.Service](t)(s.createService(t, "named", wants("10.30.0.5")))
	observed.Hold()
	if _, err := s.createService(t, "elsewhere", wants("10.40.0.5")); !apierrors.IsInvalid(err) {
		t.Errorf("an address outside all ranges: %v", err)
	}

	observed.Hold()
	if err := other.Delete(t.Context(),
		resource.Key{GroupResource: serviceCIDRs, Name: "more"}, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.createService(t, "late", wants("10.30.0.6")); !apierrors.IsInvalid(err) {
		t.Errorf("an address of a deleted range: %v", err)
	}
}

// A port shared by two protocols is released once: another Service may have allocated it before a second release.
func TestSharedPortIsReleasedOnce(t *testing.T) {
	client, observed := etcdtest.Client(t), &builtintest.Etcd{}
	other := newServiceReplica(t, client, "10.20.0.0/24", "30000-30003")
	const port = 30002
	shared := func(o *v1.Service) {
		asNodePort(o)
		o.Spec.Ports = []v1.ServicePort{
			{Name: "udp", Port: 53, Protocol: v1.ProtocolUDP, NodePort: port}, {
				Name: "tcp", Port: 53, Protocol: v1.ProtocolTCP, NodePort: port,
			},
		}
	}
	writes := 0
	observed.AfterWrite = func(key string) {
		if key != "/registry/ranges/servicenodeports" {
			return
		}
		if writes++; writes == 2 { // allocated, released
			if _, err := other.createService(t, "between", shared); err != nil {
				t.Error(err)
			}
		}
	}
	s := newServiceReplica(t, observed.Client(t, client), "10.20.0.0/24", "30000-30003")
	if _, err := s.createService(
		t, "refused", func(o *v1.Service) { shared(o); o.Spec.SessionAffinity = "Sometimes" },
	); !apierrors.IsInvalid(err) {
		t.Fatalf("got %v", err)
	}
	if writes < 2 {
		t.Fatalf("the ports were written %d times, want an allocation and a release", writes)
	}
	if _, err := other.createService(t, "thief", shared); !apierrors.IsInvalid(err) {
		t.Errorf("a port allocated in between was allocated again: %v", err)
	}
}

func TestPortRepair(t *testing.T) {
	client := etcdtest.Client(t)
	s := newServiceReplica(t, client, "10.20.0.0/24", "30000-30003")
	service := must[*core.Service](t)(s.createService(t, "web", asNodePort))
	port := service.Spec.Ports[0].NodePort
	wants := func(number int32) func(*v1.Service) {
		return func(o *v1.Service) { asNodePort(o); o.Spec.Ports[0].NodePort = number }
	}

	// Ports of Services that are missing in the bitmap are restored.
	must[any](t)(client.Delete(t.Context(), "/registry/ranges/servicenodeports"))
	repaired := newServiceReplica(t, client, "10.20.0.0/24", "30000-30003")
	if _, err := repaired.createService(t, "thief", wants(port)); !apierrors.IsInvalid(err) {
		t.Errorf("an allocated port was allocated again after the repair: %v", err)
	}
	key := resource.Key{GroupResource: schema.GroupResource{Resource: "events"}}
	if events := must[[]runtime.Object](t)(s.List(t.Context(), key, resource.ReadOptions{})); len(events) != 1 {
		t.Errorf("%d events, want one about the port", len(events))
	}

	// Ports without a Service are released, after several repairs.
	must[any](t)(client.Delete(t.Context(), "/registry/services/specs/default/web"))
	for range 2 {
		if err := s.Repair.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := repaired.createService(t, "early", wants(port)); !apierrors.IsInvalid(err) {
			t.Fatalf("a port in its grace period was allocated again: %v", err)
		}
	}
	if err := s.Repair.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	must[*core.Service](t)(repaired.createService(t, "heir", wants(port)))
}

// Retries because of conflicts count as one repair, and a port that was released and allocated again starts at zero.
func TestConsecutivePortRepairsAreCounted(t *testing.T) {
	client := etcdtest.Client(t)
	s, other := newServiceReplica(t, client, "10.20.0.0/24", "30000-30009"), newServiceReplica(t, client,
		"10.20.0.0/24", "30000-30009")
	disturbances := 2
	disturbed := func(ctx context.Context) ([]runtime.Object, error) {
		if disturbances > 0 {
			must[*core.Service](t)(other.createService(t, fmt.Sprintf("web-%d", disturbances), asNodePort))
			disturbances--
		}
		return s.List(ctx, resource.Key{GroupResource: servicesResource}, resource.ReadOptions{})
	}
	measured := prometheus.NewRegistry()
	repair := serviceip.NewPortRepair(s.Allocator, disturbed, s.Events, logr.Discard(), measured)
	once := func() {
		t.Helper()
		if err := repair.Once(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	coming := builtintest.NewService(t, "coming", asNodePort) // allocated, not stored
	take := func() {
		t.Helper()
		if err := s.Allocator.Allocate(t.Context(), s, coming, nil, false); err != nil {
			t.Fatal(err)
		}
	}
	given := func() bool {
		t.Helper()
		_, err := other.createService(t, "thief", func(o *v1.Service) {
			asNodePort(o)
			o.Spec.Ports[0].NodePort = coming.Spec.Ports[0].NodePort
		})
		return err == nil
	}

	take()
	if once(); given() {
		t.Fatal("a port was released after one repair with three attempts")
	}
	for _, kind := range []string{"leak", "repair"} {
		if got := metricValue(t, measured, "apiserver_nodeport_repair_port_errors_total", kind); got != -1 {
			t.Errorf("counted %v of kind %s in attempts that failed", got, kind)
		}
	}
	if err := s.Allocator.Rollback(t.Context(), s, coming, nil); err != nil {
		t.Fatal(err)
	}
	once()
	take()
	once()
	if once(); given() {
		t.Error("a port was released two repairs after its allocation")
	}
	if once(); !given() {
		t.Error("a port without a Service was not released after three repairs")
	}
}

func TestFailedWarningIsWrittenAgain(t *testing.T) {
	s := newServiceServer(t, "10.20.0.0/24")
	service := must[*core.Service](t)(s.createService(t, "web", nil))
	recorded := func(ctx context.Context) int {
		t.Helper()
		s.Events.Warn(ctx, service, serviceip.Warning{
			Controller: "controller", Reason: "Wrong", Action: "Look", Note: "Something is wrong",
		})
		key := resource.Key{GroupResource: schema.GroupResource{Resource: "events"}}
		return len(must[[]runtime.Object](t)(s.List(t.Context(), key, resource.ReadOptions{})))
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	for i, ctx := range []context.Context{ended, t.Context(), t.Context()} {
		if got, want := recorded(ctx), min(i, 1); got != want {
			t.Errorf("%d warnings, the first with a canceled context, created %d events; want %d", i+1, got, want)
		}
	}
}

// runAddressRepair runs the repair until the test ends.
func (r *serviceReplica) runAddressRepair(t *testing.T, clock *testingclock.FakeClock) *serviceip.AddressRepair {
	t.Helper()
	repair := serviceip.NewAddressRepair(serviceip.AddressRepairOptions{
		Objects: r.Server, Ranges: r.Ranges, Events: r.Events, Clock: clock, Logger: logr.Discard(), Registerer: r.Metrics,
	})
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	synced := make(chan struct{}, 2)
	done := func() { synced <- struct{}{} }
	group.Go(func() {
		_ = r.Follow(ctx, resource.Key{GroupResource: servicesResource}, follow.Options{
			Objects: repair.SetService, Synced: done,
		})
	})
	group.Go(func() {
		_ = r.Follow(ctx, resource.Key{GroupResource: ipAddresses}, follow.Options{
			Objects: repair.SetIPAddress, Synced: done,
		})
	})
	t.Cleanup(func() { cancel(); group.Wait() })
	<-synced
	<-synced
	if err := repair.Once(ctx); err != nil {
		t.Fatal(err)
	}
	group.Go(func() { repair.Run(ctx, 3*time.Minute) })
	return repair
}

func TestAddressRepair(t *testing.T) {
	s := newServiceReplica(t, etcdtest.Client(t), "10.20.0.0/24", "30000-30003")
	clock := testingclock.NewFakeClock(time.Now())
	address := must[*core.Service](t)(s.createService(t, "web", nil)).Spec.ClusterIP
	s.runAddressRepair(t, clock)
	for name, want := range map[string]float64{
		"allocated_ips": 1, "available_ips": 253, "allocation_total": 1, "allocation_duration_seconds": 1,
	} {
		if got := metricValue(t, s.Metrics, "kube_apiserver_clusterip_allocator_"+name, "10.20.0.0/24"); got != want {
			t.Errorf("%s is %v, want %v", name, got, want)
		}
	}

	key := resource.Key{GroupResource: ipAddresses, Name: address}
	if err := s.Delete(t.Context(), key, &metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the address of a Service is allocated again", func() bool { return s.held(t, address) })

	leaked := &networking.IPAddress{
		ObjectMeta: metav1.ObjectMeta{Name: "10.20.0.9", Labels: map[string]string{
			"ipaddress.kubernetes.io/managed-by": "ipallocator.k8s.io", "ipaddress.kubernetes.io/ip-family": "IPv4",
		}},
		Spec: networking.IPAddressSpec{
			ParentRef: &networking.ParentReference{Resource: "services", Namespace: "default", Name: "missing"},
		},
	}
	must[runtime.Object](t)(s.Create(t.Context(),
		resource.Key{GroupResource: ipAddresses}, leaked.DeepCopy(), resource.WriteOptions{}))
	foreign := leaked.DeepCopy()
	foreign.Name, foreign.Labels = "10.20.0.8", nil
	must[runtime.Object](t)(s.Create(t.Context(),
		resource.Key{GroupResource: ipAddresses}, foreign, resource.WriteOptions{}))
	// The queue and the repair have a ticker each.
	eventually(t, "the leak is queued", func() bool { return clock.Waiters() > 2 })
	if !s.held(t, "10.20.0.9") {
		t.Fatal("an address in its grace period was released")
	}
	eventually(t, "a leaked address is released", func() bool {
		clock.Step(30 * time.Second)
		return !s.held(t, "10.20.0.9")
	})
	if !s.held(t, "10.20.0.8") || !s.held(t, address) {
		t.Error("an address of another manager, or in use, was released")
	}
}
