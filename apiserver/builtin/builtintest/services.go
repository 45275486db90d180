package builtintest

import (
	"context"
	"strings"
	"testing"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	v1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/kubernetes/pkg/api/legacyscheme"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/apis/networking"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/admission/native"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serviceip"
	"quorate.dev/apiserver/storage"
)

// Services is the group and resource of Services.
var Services = schema.GroupResource{Resource: "services"}

// ServiceReplica is a server that also allocates cluster IPs and node ports.
type ServiceReplica struct {
	*Server
	Allocator *serviceip.Allocator
	Ranges    *serviceip.Ranges
	Repair    *serviceip.PortRepair
	Events    *serviceip.Events
	Metrics   *prometheus.Registry
}

// NewServiceReplica returns a replica on an etcd that other replicas may share. addresses are CIDRs separated by
// commas; ports is a range such as "30000-30003".
func NewServiceReplica(t *testing.T, client *clientv3.Client, addresses, ports string) *ServiceReplica {
	t.Helper()
	r := &ServiceReplica{Ranges: serviceip.NewRanges(), Metrics: prometheus.NewRegistry()}
	cidrs := strings.Split(addresses, ",")
	r.Ranges.Set("kubernetes", &networking.ServiceCIDR{Spec: networking.ServiceCIDRSpec{CIDRs: cidrs}})
	r.Allocator = Must[*serviceip.Allocator](t)(serviceip.New(serviceip.Options{
		CIDRs: cidrs, Ranges: r.Ranges, Ports: *utilnet.ParsePortRangeOrDie(ports), Store: storage.New(client, "/registry"),
		Clock: clock.RealClock{}, Logger: logr.Discard(), Registerer: r.Metrics,
	}))
	plugin := &native.ServiceAddresses{Allocator: r.Allocator, Logger: logr.Discard()}
	r.Server = NewServerOn(t, client, builtin.Options{}, &admission.Chain{Reservers: []admission.Reserver{plugin}})
	plugin.Objects = r.Server
	r.Events = &serviceip.Events{Objects: r.Server, Clock: clock.RealClock{}, Logger: logr.Discard(), Instance: "test"}
	all := func(ctx context.Context) ([]runtime.Object, error) {
		return r.List(ctx, resource.Key{GroupResource: Services}, resource.ReadOptions{})
	}
	r.Repair = serviceip.NewPortRepair(r.Allocator, all, r.Events, logr.Discard(), r.Metrics)
	if err := r.Repair.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	return r
}

// NewService returns a valid Service on port 80 in the namespace "default", after applying change and then the
// defaults.
func NewService(t *testing.T, name string, change func(*v1.Service)) *core.Service {
	t.Helper()
	external := &v1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: v1.ServiceSpec{
			Selector: map[string]string{"app": name}, Ports: []v1.ServicePort{{Port: 80, TargetPort: intstr.FromInt32(80)}},
		},
	}
	if change != nil {
		change(external)
	}
	legacyscheme.Scheme.Default(external)
	service := &core.Service{}
	if err := legacyscheme.Scheme.Convert(external, service, nil); err != nil {
		t.Fatal(err)
	}
	return service
}
