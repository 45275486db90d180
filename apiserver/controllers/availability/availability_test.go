package availability_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	clientv3 "go.etcd.io/etcd/client/v3"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/kube-aggregator/pkg/apis/apiregistration"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/discovery"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/aggregator"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/controllers/availability"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/informers"
	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serviceresolver"
)

var (
	apiServices = schema.GroupResource{Group: apiregistration.GroupName, Resource: "apiservices"}
	services    = schema.GroupResource{Resource: "services"}
	slices      = schema.GroupResource{Group: "discovery.k8s.io", Resource: "endpointslices"}
)

// replica is a replica with a controller.
type replica struct {
	*builtintest.Server
	registry *prometheus.Registry
}

// start runs a replica that reaches every server through dial.
func start(
	t *testing.T, client *clientv3.Client, dial func(ctx context.Context, network, address string) (net.Conn, error),
) *replica {
	t.Helper()
	r := &replica{Server: builtintest.NewServerOn(t, client, builtin.Options{}, nil), registry: prometheus.NewRegistry()}
	factory := informers.New(informers.Options{Source: r.Client, Catalog: r.Catalog, Logger: logr.Discard()})
	resolver, err := serviceresolver.New(factory, false)
	if err != nil {
		t.Fatal(err)
	}
	proxy := aggregator.New(aggregator.Options{Resolver: resolver, Dial: dial})
	proxy.Known()
	controller := availability.New(availability.Options{
		Objects: r, Backend: func(name string) *aggregator.Backend { return proxy.Table().Get(name) },
		Services:       factory.Core().V1().Services().Lister(),
		EndpointSlices: factory.Discovery().V1().EndpointSlices().Lister(),
		Follow:         r.Follow, Clock: clock.RealClock{}, Logger: logr.Discard(), Registerer: r.registry,
	})
	builtintest.Background(t, factory.StartWithContext)
	builtintest.Background(t, func(ctx context.Context) {
		if err := controller.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	builtintest.Background(t, func(ctx context.Context) {
		// Follow returns the error of ctx.
		_ = r.Follow(ctx, resource.Key{GroupResource: apiServices}, follow.Options{Objects: func(
			name string, object runtime.Object,
		) {
			proxy.Set(name, object)
			controller.SetAPIService(name, object)
		}})
	})
	return r
}

func (r *replica) create(t *testing.T, name schema.GroupResource, object runtime.Object) {
	t.Helper()
	namespace := ""
	if accessor, ok := object.(metav1.Object); ok {
		namespace = accessor.GetNamespace()
	}
	key := resource.Key{GroupResource: name, Namespace: namespace}
	builtintest.Must[runtime.Object](t)(r.Create(t.Context(), key, object, resource.WriteOptions{}))
}

func apiService(group, service string) *apiregistration.APIService {
	return &apiregistration.APIService{
		ObjectMeta: metav1.ObjectMeta{Name: "v1." + group},
		Spec: apiregistration.APIServiceSpec{
			Group: group, Version: "v1", InsecureSkipTLSVerify: true, GroupPriorityMinimum: 100, VersionPriority: 15,
			Service: &apiregistration.ServiceReference{Namespace: "default", Name: service, Port: 443},
		},
	}
}

// external returns a Service of type ExternalName, which needs no endpoints.
func external(name string) *core.Service {
	return &core.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: core.ServiceSpec{
			Type: core.ServiceTypeExternalName, ExternalName: name + ".example", SessionAffinity: core.ServiceAffinityNone,
		},
	}
}

func (r *replica) condition(t *testing.T, name string) apiregistration.APIServiceCondition {
	t.Helper()
	key := resource.Key{GroupResource: apiServices, Name: name}
	object := builtintest.Must[runtime.Object](t)(r.Get(t.Context(), key, resource.ReadOptions{}))
	condition := apiregistration.GetAPIServiceConditionByType(object.(*apiregistration.APIService),
		apiregistration.Available)
	if condition == nil {
		return apiregistration.APIServiceCondition{}
	}
	return *condition
}

func (r *replica) await(t *testing.T, name, reason string) {
	t.Helper()
	builtintest.Eventually(t, name+" has the reason "+reason, func() bool { return r.condition(t, name).Reason == reason })
}

// serve starts a server that responds to probes with 200.
func serve(t *testing.T) *httptest.Server {
	t.Helper()
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	server.Config.ErrorLog = log.New(io.Discard, "", 0)
	server.StartTLS()
	t.Cleanup(server.Close)
	return server
}

// dialTo returns a dial function that leads to a server, whatever the address.
func dialTo(server *httptest.Server) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, network, server.Listener.Addr().String())
	}
}

func TestReasons(t *testing.T) {
	server := serve(t)
	r := start(t, etcdtest.Client(t), dialTo(server))
	r.create(t, apiServices, apiService("a.example", "a"))
	r.await(t, "v1.a.example", "ServiceNotFound")
	service := &core.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "default"},
		Spec: core.ServiceSpec{
			Type: core.ServiceTypeClusterIP, ClusterIP: "10.0.0.1", ClusterIPs: []string{"10.0.0.1"},
			Ports: []core.ServicePort{{
				Name: "https", Port: 80, TargetPort: intstr.FromInt32(8443), Protocol: core.ProtocolTCP,
			}},
			SessionAffinity:       core.ServiceAffinityNone,
			InternalTrafficPolicy: ptr.To(core.ServiceInternalTrafficPolicyCluster),
			IPFamilies:            []core.IPFamily{core.IPv4Protocol}, IPFamilyPolicy: ptr.To(core.IPFamilyPolicySingleStack),
		},
	}
	r.create(t, services, service)
	r.await(t, "v1.a.example", "ServicePortError")
	r.edit(t, services, "a", func(object runtime.Object) { object.(*core.Service).Spec.Ports[0].Port = 443 })
	r.await(t, "v1.a.example", "EndpointsNotFound")
	r.create(t, slices, &discovery.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Name: "a-1", Namespace: "default", Labels: map[string]string{"kubernetes.io/service-name": "a"},
		},
		AddressType: discovery.AddressTypeIPv4,
		Endpoints: []discovery.Endpoint{{
			Addresses: []string{"192.0.2.1"}, Conditions: discovery.EndpointConditions{Ready: ptr.To(false)},
		}},
		Ports: []discovery.EndpointPort{{
			Name: ptr.To("https"), Port: ptr.To[int32](8443), Protocol: ptr.To(corev1.ProtocolTCP),
		}},
	})
	r.await(t, "v1.a.example", "MissingEndpoints")
	r.edit(t, slices, "a-1", func(object runtime.Object) {
		object.(*discovery.EndpointSlice).Endpoints[0].Conditions.Ready = ptr.To(true)
	})
	r.await(t, "v1.a.example", "Passed")
	server.Close()
	r.edit(t, services, "a", func(object runtime.Object) { object.(*core.Service).Labels = map[string]string{"a": "b"} })
	r.await(t, "v1.a.example", "FailedDiscoveryCheck")
	const want = `
# HELP aggregator_unavailable_apiservice [ALPHA] Gauge of APIServices which are marked as unavailable broken down by APIService name.
# TYPE aggregator_unavailable_apiservice gauge
aggregator_unavailable_apiservice{name="v1.a.example"} 1
# HELP aggregator_unavailable_apiservice_total [ALPHA] Counter of APIServices which are marked as unavailable broken down by APIService name and reason.
# TYPE aggregator_unavailable_apiservice_total counter
aggregator_unavailable_apiservice_total{name="v1.a.example",reason="FailedDiscoveryCheck"} 1
`
	builtintest.Eventually(t, "the transition is counted", func() bool {
		return testutil.GatherAndCompare(r.registry, strings.NewReader(want)) == nil
	})
}

func (r *replica) edit(t *testing.T, name schema.GroupResource, object string, change func(runtime.Object)) {
	t.Helper()
	key := resource.Key{GroupResource: name, Namespace: "default", Name: object}
	builtintest.Must[runtime.Object](t)(r.Update(t.Context(), key, func(object runtime.Object) error {
		change(object)
		return nil
	}, resource.WriteOptions{}))
}

// TestReplicasWriteOnce runs three replicas that agree: the status is written once.
func TestReplicasWriteOnce(t *testing.T) {
	server := serve(t)
	client := etcdtest.Client(t)
	replicas := []*replica{
		start(t, client, dialTo(server)), start(t, client, dialTo(server)), start(t, client, dialTo(server)),
	}
	first := replicas[0]
	first.create(t, services, external("a"))
	first.create(t, apiServices, apiService("a.example", "a"))
	first.await(t, "v1.a.example", "Passed")
	for i, r := range replicas {
		builtintest.Eventually(t, fmt.Sprintf("replica %d has checked", i), func() bool {
			count, err := testutil.GatherAndCount(r.registry, "aggregator_unavailable_apiservice")
			return err == nil && count == 1
		})
	}
	response := builtintest.Must[*clientv3.GetResponse](t)(client.Get(t.Context(),
		"/registry/apiregistration.k8s.io/apiservices/v1.a.example"))
	if got := response.Kvs[0].Version; got != 2 {
		t.Errorf("the APIService was written %d times, want its creation and one status", got)
	}
}

// TestVaryingMessages fails each probe with another error: the status is written once for each spec.
func TestVaryingMessages(t *testing.T) {
	client := etcdtest.Client(t)
	var attempts atomic.Int64
	r := start(t, client, func(context.Context, string, string) (net.Conn, error) {
		return nil, fmt.Errorf("attempt %d", attempts.Add(1))
	})
	r.create(t, services, external("a"))
	r.create(t, apiServices, apiService("a.example", "a"))
	r.await(t, "v1.a.example", "FailedDiscoveryCheck")
	const checked = 30
	builtintest.Eventually(t, "the server is checked again", func() bool { return attempts.Load() > checked })
	version := func() int64 {
		key := "/registry/apiregistration.k8s.io/apiservices/v1.a.example"
		return builtintest.Must[*clientv3.GetResponse](t)(client.Get(t.Context(), key)).Kvs[0].Version
	}
	if got := version(); got != 2 {
		t.Errorf("the APIService was written %d times, want its creation and one status", got)
	}
	key := resource.Key{GroupResource: apiServices, Name: "v1.a.example"}
	builtintest.Must[runtime.Object](t)(r.Update(t.Context(), key, func(object runtime.Object) error {
		object.(*apiregistration.APIService).Spec.Service.Port = 444
		return nil
	}, resource.WriteOptions{}))
	builtintest.Eventually(t, "the message names the new port", func() bool {
		return strings.Contains(r.condition(t, "v1.a.example").Message, ":444")
	})
}

// TestDeadServersDelayNoOther checks an available server while more servers than there are parallel checks never
// respond.
func TestDeadServersDelayNoOther(t *testing.T) {
	const dead = 200
	server := serve(t)
	living := dialTo(server)
	r := start(t, etcdtest.Client(t), func(ctx context.Context, network, address string) (net.Conn, error) {
		if strings.HasPrefix(address, "living.") {
			return living(ctx, network, address)
		}
		<-ctx.Done()
		return nil, ctx.Err()
	})
	r.create(t, services, external("living"))
	r.create(t, services, external("dead"))
	r.create(t, apiServices, apiService("living.example", "living"))
	r.await(t, "v1.living.example", "Passed")
	for i := range dead {
		r.create(t, apiServices, apiService(fmt.Sprintf("dead%d.example", i), "dead"))
	}
	server.Close()
	r.edit(t, services, "living", func(object runtime.Object) {
		object.(*core.Service).Labels = map[string]string{"a": "b"}
	})
	r.await(t, "v1.living.example", "FailedDiscoveryCheck")
}
