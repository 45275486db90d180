package apiserver

import (
	grpcmetrics "github.com/grpc-ecosystem/go-grpc-middleware/providers/prometheus"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"quorate.dev/apiserver/metrics"
)

// memberFamilies are the prefixes of the metrics of an etcd member, which etcd's packages register in Prometheus'
// default registry.
var memberFamilies = []string{
	"etcd_cluster_", "etcd_debugging_", "etcd_disk_", "etcd_mvcc_", "etcd_network_", "etcd_server_", "etcd_snap_", "grpc_server_",
}

// measureMember exports the metrics of the embedded member.
func (s *Server) measureMember() {
	if s.backend.member != nil {
		s.metrics.MustRegister(metrics.Passed(defaultRegistry{prometheus.DefaultGatherer}, memberFamilies...))
	}
}

// defaultRegistry is Prometheus' default registry, which cannot be reset.
type defaultRegistry struct{ prometheus.Gatherer }

// Reset implements metrics.Process.
func (defaultRegistry) Reset() {}

// dialEtcd returns the options of connections to an external etcd, which measure and trace requests as kube-apiserver
// does.
func (s *Server) dialEtcd() []grpc.DialOption {
	measured := grpcmetrics.NewClientMetrics()
	s.metrics.MustRegister(measured)
	return append(s.tracing.dialOptions(),
		grpc.WithChainUnaryInterceptor(measured.UnaryClientInterceptor()),
		grpc.WithChainStreamInterceptor(measured.StreamClientInterceptor()))
}
