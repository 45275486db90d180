package stores

import (
	grpcmetrics "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"quorate.dev/apiserver/metrics"
)

// memberFamilies are the prefixes of the metrics of an etcd member. etcd's packages register them in Prometheus'
// default registry.
var memberFamilies = []string{
	"etcd_cluster_", "etcd_debugging_", "etcd_disk_", "etcd_mvcc_", "etcd_network_", "etcd_server_",
	"etcd_snap_", "grpc_server_",
}

// measureMember exports the metrics of the embedded member.
func measureMember(registry *metrics.Registry) {
	registry.MustRegister(metrics.FromUpstream(defaultRegistry{prometheus.DefaultGatherer}, memberFamilies...))
}

// defaultRegistry is Prometheus' default registry. Its metrics cannot be reset.
type defaultRegistry struct{ prometheus.Gatherer }

// Reset implements metrics.Process.
func (defaultRegistry) Reset() {}

// measureRequests returns the options of connections to an external etcd that measure requests as kube-apiserver does.
func measureRequests(registry *metrics.Registry) []grpc.DialOption {
	measured := grpcmetrics.NewClientMetrics()
	registry.MustRegister(measured)
	return []grpc.DialOption{
		grpc.WithChainUnaryInterceptor(measured.UnaryClientInterceptor()),
		grpc.WithChainStreamInterceptor(measured.StreamClientInterceptor()),
	}
}
