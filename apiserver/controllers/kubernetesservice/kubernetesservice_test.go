package kubernetesservice_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	clientv3 "go.etcd.io/etcd/client/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/discovery"
	testingclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/controllers/kubernetesservice"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/storage"
)

var (
	endpointsResource = schema.GroupResource{Resource: "endpoints"}
	slicesResource    = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
)

// member is a replica with a controller.
type member struct {
	*builtintest.ServiceReplica
	controller *kubernetesservice.Controller
	clock      *testingclock.FakeClock
	stop       func() // like a crash: without End
}

func newMember(t *testing.T, client *clientv3.Client, ip string, addresses kubernetesservice.Addresses) *member {
	t.Helper()
	m := &member{
		ServiceReplica: builtintest.NewServiceReplica(t, client, "10.20.0.0/24", "30000-30003"),
		clock:          testingclock.NewFakeClock(time.Now()),
	}
	m.controller = kubernetesservice.New(kubernetesservice.Options{
		Objects: m.ServiceReplica, Addresses: addresses, ServiceIP: "10.20.0.1", PublicIP: ip, PublicPort: 6443,
		Ready: func(context.Context) bool { return true }, Clock: m.clock, Logger: logr.Discard(),
	})
	return m
}

func newLeases(client *clientv3.Client) kubernetesservice.Addresses {
	return kubernetesservice.NewLeases(storage.New(client, "/registry"))
}

func (m *member) start(t *testing.T) {
	t.Helper()
	if err := m.controller.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var group sync.WaitGroup
	group.Go(func() { m.controller.Run(ctx) })
	m.stop = func() { cancel(); group.Wait() }
	t.Cleanup(m.stop)
}

// behind returns the addresses of the kubernetes Service, if Endpoints and EndpointSlice agree.
func (m *member) behind(t *testing.T) []string {
	t.Helper()
	object, err := m.Get(t.Context(),
		resource.Key{GroupResource: endpointsResource, Namespace: "default", Name: "kubernetes"},
		resource.ReadOptions{})
	if err != nil {
		return nil
	}
	var inEndpoints, inSlice []string
	for _, subset := range object.(*core.Endpoints).Subsets {
		for _, address := range subset.Addresses {
			inEndpoints = append(inEndpoints, address.IP)
		}
	}
	key := resource.Key{GroupResource: slicesResource, Namespace: "default", Name: "kubernetes"}
	if object, err = m.Get(t.Context(), key, resource.ReadOptions{}); err != nil {
		return nil
	}
	for _, endpoint := range object.(*discovery.EndpointSlice).Endpoints {
		inSlice = append(inSlice, endpoint.Addresses...)
	}
	slices.Sort(inEndpoints)
	slices.Sort(inSlice)
	if !slices.Equal(inEndpoints, inSlice) {
		return []string{"Endpoints and EndpointSlice differ"}
	}
	return inEndpoints
}

func (m *member) await(t *testing.T, what string, wanted ...string) {
	t.Helper()
	eventually(t, what, func() bool { return slices.Equal(m.behind(t), wanted) })
}

func TestReplicasBehindTheKubernetesService(t *testing.T) {
	client := etcdtest.Client(t)
	first, second := newMember(t, client, "192.0.2.1", newLeases(client)), newMember(t, client,
		"192.0.2.2", newLeases(client))
	first.start(t)
	first.await(t, "the first replica is behind the Service", "192.0.2.1")
	service := must[*core.Service](t)(asType[*core.Service](first.Get(t.Context(),
		resource.Key{GroupResource: builtintest.Services, Namespace: "default", Name: "kubernetes"},
		resource.ReadOptions{})))
	if service.Spec.ClusterIP != "10.20.0.1" || service.Spec.Ports[0].Port != 443 ||
		service.Spec.Ports[0].TargetPort.IntValue() != 6443 {
		t.Errorf("the Service is %+v", service.Spec)
	}
	second.start(t)
	first.await(t, "both are", "192.0.2.1", "192.0.2.2")

	// The other replicas remove a crashed one when its lease has expired.
	second.stop()
	must[any](t)(client.Delete(t.Context(), "/registry/masterleases/192.0.2.2"))
	first.clock.Step(kubernetesservice.Interval)
	first.await(t, "one that died is not", "192.0.2.1")

	// A replica that shuts down removes its own address, even the last one.
	first.stop()
	first.controller.End(t.Context())
	if left := first.behind(t); len(left) > 0 {
		t.Errorf("addresses after the shutdown: %v", left)
	}
	if leases := must[*clientv3.GetResponse](t)(
		client.Get(t.Context(), "/registry/masterleases/", clientv3.WithPrefix()),
	); leases.Count != 0 {
		t.Errorf("%d leases are left", leases.Count)
	}
}

func TestRestartedReplicaRemovesItsAddress(t *testing.T) {
	client := etcdtest.Client(t)
	first, second := newMember(t, client, "192.0.2.1", newLeases(client)), newMember(t, client,
		"192.0.2.2", newLeases(client))
	first.start(t)
	second.start(t)
	eventually(t, "both are behind the Service", func() bool {
		for _, m := range []*member{first, second} {
			m.clock.Step(time.Second) // both may have tried to create the Service
		}
		return slices.Equal(first.behind(t), []string{"192.0.2.1", "192.0.2.2"})
	})
	second.stop()
	again := newMember(t, client, "192.0.2.2", newLeases(client))
	if err := again.controller.Begin(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := first.behind(t); !slices.Equal(got, []string{"192.0.2.1"}) {
		t.Errorf("after the restart of a crashed replica: %v", got)
	}
}

func TestCountedReplicas(t *testing.T) {
	client := etcdtest.Client(t)
	for _, ip := range []string{"192.0.2.1", "192.0.2.3"} {
		m := newMember(t, client, ip, kubernetesservice.Count(2))
		m.start(t)
		eventually(t, ip+" is behind the Service", func() bool { return slices.Contains(m.behind(t), ip) })
		m.stop()
	}
	third := newMember(t, client, "192.0.2.2", kubernetesservice.Count(2))
	third.start(t)
	third.await(t, "the next after the newcomer goes", "192.0.2.1", "192.0.2.2")
	third.stop()
	third.controller.End(t.Context())
	third.await(t, "the one that leaves is gone", "192.0.2.1")
}

func TestLoopbackAddressIsNoEndpoint(t *testing.T) {
	client := etcdtest.Client(t)
	m := newMember(t, client, "127.0.0.1", newLeases(client))
	m.start(t)
	eventually(t, "the replica has a lease", func() bool {
		leases, err := client.Get(t.Context(), "/registry/masterleases/127.0.0.1")
		return err == nil && leases.Count == 1
	})
	eventually(t, "the controller waits for the next period", m.clock.HasWaiters)
	if got := m.behind(t); len(got) > 0 {
		t.Errorf("endpoints %v", got)
	}
	key := resource.Key{GroupResource: builtintest.Services, Namespace: metav1.NamespaceDefault, Name: "kubernetes"}
	if _, err := m.Get(t.Context(), key, resource.ReadOptions{}); err != nil {
		t.Errorf("the Service: %v", err)
	}
}

func asType[T any, O any](object O, err error) (T, error) {
	typed, _ := any(object).(T)
	return typed, err
}
