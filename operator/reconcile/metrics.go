package reconcile

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/rotation"
	"quorate.dev/operator/status"
)

var (
	expirationMetric = prometheus.NewDesc("quorate_certificate_expiration_timestamp_seconds",
		"Expiry time of the certificate in a Secret of an ApiServerCluster, by namespace, cluster and secret, in seconds since 1970.",
		[]string{"namespace", "cluster", "secret"}, nil)
	stageMetric = prometheus.NewDesc("quorate_credentials_rotation_stage",
		"Stage of the replacement of the credentials of an ApiServerCluster, by namespace, cluster and credentials (authorities or "+
			"service-account-keys): 0 none, 1 TrustBoth, 2 Reissue, 3 DropOld.",
		[]string{"namespace", "cluster", "credentials"}, nil)
	apiServiceMetric = prometheus.NewDesc("quorate_apiservice_available",
		"Whether an APIService that the operator manages for an ApiServerCluster is available (1) or not (0), by namespace, cluster "+
			"and apiservice.", []string{"namespace", "cluster", "apiservice"}, nil)
)

// Metrics are those of all clusters. It is a prometheus.Collector and safe for concurrent use.
type Metrics struct {
	mu       sync.Mutex
	clusters map[types.NamespacedName]credentialMetrics
}

// credentialMetrics are the metrics of one cluster.
type credentialMetrics struct {
	expiry map[string]time.Time      // by Secret
	stages map[string]rotation.Stage // by kind of credentials
	apis   map[string]float64        // by APIService
}

// NewMetrics returns metrics without clusters.
func NewMetrics() *Metrics { return &Metrics{clusters: map[types.NamespacedName]credentialMetrics{}} }

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(descriptions chan<- *prometheus.Desc) {
	descriptions <- expirationMetric
	descriptions <- stageMetric
	descriptions <- apiServiceMetric
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(metrics chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	for cluster, c := range m.clusters {
		for secret, at := range c.expiry {
			metrics <- prometheus.MustNewConstMetric(
				expirationMetric, prometheus.GaugeValue, float64(at.Unix()), cluster.Namespace, cluster.Name, secret)
		}
		for kind, stage := range c.stages {
			metrics <- prometheus.MustNewConstMetric(
				stageMetric, prometheus.GaugeValue, stageNumbers[stage], cluster.Namespace, cluster.Name, kind)
		}
		for name, available := range c.apis {
			metrics <- prometheus.MustNewConstMetric(
				apiServiceMetric, prometheus.GaugeValue, available, cluster.Namespace, cluster.Name, name)
		}
	}
}

var stageNumbers = map[rotation.Stage]float64{rotation.TrustBoth: 1, rotation.Reissue: 2, rotation.DropOld: 3}

// observe replaces the metrics of a cluster. m may be nil.
func (m *Metrics) observe(cluster types.NamespacedName, p *pass) {
	if m == nil || len(p.input.Certificates) == 0 {
		return
	}
	authorities, _ := stageOf(authoritiesOf(p.cluster))
	keys, _ := stageOf(keysOf(p.cluster))
	c := credentialMetrics{
		expiry: expiries(p.input.Certificates),
		stages: map[string]rotation.Stage{"authorities": authorities, "service-account-keys": keys},
		apis:   availability(p.cluster.Status.APIServices),
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.clusters[cluster] = c
}

func availability(services []v1alpha1.APIServiceStatus) map[string]float64 {
	all := make(map[string]float64, len(services))
	for _, service := range services {
		all[service.Name] = 0
		if service.Available == metav1.ConditionTrue {
			all[service.Name] = 1
		}
	}
	return all
}

func expiries(certificates []status.Expiry) map[string]time.Time {
	all := make(map[string]time.Time, len(certificates))
	for _, certificate := range certificates {
		all[certificate.Secret] = certificate.At
	}
	return all
}

// forget removes the metrics of a deleted cluster. m may be nil.
func (m *Metrics) forget(cluster types.NamespacedName) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.clusters, cluster)
}
