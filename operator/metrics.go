package operator

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/metrics/filters"
	"sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"quorate.dev/operator/desired"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/servingcert"
)

// metricsName is the name of the metrics Service and of the Secret with its certificate, also in the manifests.
const metricsName = "quorate-operator-metrics"

// metrics returns the options of the metrics server. It serves clients with a bearer token that the hosting cluster
// authenticates and authorizes to get /metrics.
func (o *options) metrics(certificate *servingcert.Keeper) server.Options {
	return server.Options{
		BindAddress: o.metricsAddress, SecureServing: true, FilterProvider: filters.WithAuthenticationAndAuthorization,
		TLSOpts: []func(*tls.Config){func(c *tls.Config) {
			// Without HTTP/2, unauthenticated clients cannot open many streams.
			c.MinVersion, c.NextProtos, c.GetCertificate = tls.VersionTLS12, []string{"http/1.1"}, certificate.GetCertificate
		}},
	}
}

// servingCertificate returns the keeper of the metrics certificate. It is stored in a Secret in the namespace of the
// operator's pods, or in memory if the operator does not run as a pod.
func (o *options) servingCertificate(direct client.Client, log logr.Logger) *servingcert.Keeper {
	keeper := &servingcert.Keeper{
		Client: direct, Clock: clock.RealClock{}, Logger: log.WithName("metrics"),
		Leaf: pki.Leaf{
			// The first name is the same in all namespaces, for a ServiceMonitor that is installed in any.
			CommonName: metricsName, DNSNames: []string{metricsName, "localhost"}, Server: true,
			Addresses: []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback},
		},
	}
	if o.podNamespace != "" {
		keeper.Secret = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Name: metricsName, Namespace: o.podNamespace, Labels: map[string]string{desired.ManagedByLabel: desired.ManagedBy},
			OwnerReferences: o.owner,
		}}
		service := metricsName + "." + o.podNamespace
		keeper.Leaf.DNSNames = append(keeper.Leaf.DNSNames, service, service+".svc", service+".svc.cluster.local")
	}
	return keeper
}

// registerMetrics registers collectors. controller-runtime's registry is global to the process, and tests run several
// operators in one process: the collectors of the last one stay registered.
func registerMetrics(registry prometheus.Registerer, collectors ...prometheus.Collector) error {
	for _, collector := range collectors {
		err := registry.Register(collector)
		var registered prometheus.AlreadyRegisteredError
		if errors.As(err, &registered) {
			registry.Unregister(registered.ExistingCollector)
			err = registry.Register(collector)
		}
		if err != nil {
			return fmt.Errorf("register metrics: %w", err)
		}
	}
	return nil
}
