package metrics

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/stages"
	"quorate.dev/operator/rotation"
	"quorate.dev/operator/status"
)

var (
	expirationMetric = prometheus.NewDesc("quorate_certificate_expiration_timestamp_seconds",
		"Expiry time of the certificate in a Secret of an ApiServerCluster, by namespace, cluster and secret, in seconds "+
			"since 1970.",
		[]string{"namespace", "cluster", "secret"}, nil)
	notBeforeMetric = prometheus.NewDesc("quorate_certificate_not_before_timestamp_seconds",
		"Time at which the certificate in a Secret of an ApiServerCluster was created, by namespace, cluster and secret, "+
			"in seconds since 1970.", []string{"namespace", "cluster", "secret"}, nil)
	stageMetric = prometheus.NewDesc("quorate_credentials_rotation_stage",
		"Stage of the replacement of the credentials of an ApiServerCluster, by namespace, cluster and credentials "+
			"(authorities or service-account-keys): 0 none, 1 TrustBoth, 2 Reissue, 3 DropOld.",
		[]string{"namespace", "cluster", "credentials"}, nil)
	apiServiceMetric = prometheus.NewDesc("quorate_apiservice_available",
		"Whether an APIService that the operator manages for an ApiServerCluster is available (1) or not (0), by "+
			"namespace, cluster and apiservice.", []string{"namespace", "cluster", "apiservice"}, nil)
	memberLabels   = []string{"namespace", "cluster", "member"}
	databaseMetric = prometheus.NewDesc("quorate_etcd_database_size_bytes",
		"Size of the database file of an etcd member, by namespace, cluster and member.", memberLabels, nil)
	inUseMetric = prometheus.NewDesc("quorate_etcd_database_in_use_bytes",
		"Bytes of the database file of an etcd member that hold data, by namespace, cluster and member.", memberLabels, nil)
	quotaMetric = prometheus.NewDesc("quorate_etcd_database_quota_bytes",
		"Quota of the database file of an etcd member, by namespace, cluster and member.", memberLabels, nil)
	defragmentTimeMetric = prometheus.NewDesc("quorate_etcd_last_defragmentation_timestamp_seconds",
		"Time of the last defragmentation of an etcd member by the operator, by namespace, cluster and member, in seconds "+
			"since 1970.",
		memberLabels, nil)
	defragmentationsMetric = prometheus.NewDesc("quorate_etcd_defragmentations_total",
		"Defragmentations of etcd members by the operator since it started, by namespace, cluster and result (success or "+
			"failure).",
		[]string{"namespace", "cluster", "result"}, nil)
)

// Metrics are the metrics of the reconciliations of all clusters. It is a prometheus.Collector and safe for concurrent
// use. A nil *Metrics records nothing.
type Metrics struct {
	mu              sync.Mutex
	clusters        map[types.NamespacedName]credentialMetrics
	space           map[types.NamespacedName]spaceMetrics
	reconciliations map[types.NamespacedName]reconciliationMetrics
}

// Reconciliation has the results of a reconciliation of a cluster.
type Reconciliation struct {
	Cluster      *v1alpha1.ApiServerCluster // with its new status
	State        *observed.State            // nil: unknown
	Certificates []status.Expiry
	Updated      *int      // number of pods that were created from the present spec; nil: unknown
	Failed       time.Time // zero: the reconciliation had no errors
}

// spaceMetrics are the metrics of the databases of one cluster.
type spaceMetrics struct {
	members      []etcd.Member
	defragmented map[string]time.Time // time of the last defragmentation, by member
	results      map[string]float64   // number of defragmentations, by result
}

// credentialMetrics are the metrics of the certificates, rotations and APIServices of one cluster.
type credentialMetrics struct {
	certificates map[string]status.Expiry  // by Secret
	stages       map[string]rotation.Stage // by kind of credentials
	apis         map[string]float64        // 1 if available, else 0; by APIService
}

// New returns metrics without clusters.
func New() *Metrics {
	return &Metrics{
		clusters: map[types.NamespacedName]credentialMetrics{}, space: map[types.NamespacedName]spaceMetrics{},
		reconciliations: map[types.NamespacedName]reconciliationMetrics{},
	}
}

// Describe implements prometheus.Collector.
func (m *Metrics) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		expirationMetric, notBeforeMetric, stageMetric, apiServiceMetric, databaseMetric, inUseMetric,
		quotaMetric, defragmentTimeMetric, defragmentationsMetric, updatedMetric, errorTimeMetric,
	} {
		descriptions <- d
	}
}

// Collect implements prometheus.Collector.
func (m *Metrics) Collect(metrics chan<- prometheus.Metric) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.collectSpace(metrics)
	m.collectReconciliations(metrics)
	for cluster, c := range m.clusters {
		gauge := func(d *prometheus.Desc, value float64, label string) {
			metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, cluster.Namespace, cluster.Name, label)
		}
		for secret, certificate := range c.certificates {
			gauge(expirationMetric, float64(certificate.At.Unix()), secret)
			gauge(notBeforeMetric, float64(certificate.Created.Unix()), secret)
		}
		for kind, stage := range c.stages {
			gauge(stageMetric, stageNumbers[stage], kind)
		}
		for name, available := range c.apis {
			gauge(apiServiceMetric, available, name)
		}
	}
}

func (m *Metrics) collectSpace(metrics chan<- prometheus.Metric) {
	for cluster, s := range m.space {
		gauge := func(d *prometheus.Desc, value float64, member string) {
			metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, cluster.Namespace, cluster.Name, member)
		}
		for _, member := range s.members {
			gauge(databaseMetric, float64(member.DBSize), member.Name)
			gauge(inUseMetric, float64(member.InUse), member.Name)
			gauge(quotaMetric, float64(member.Quota), member.Name)
			if at, ok := s.defragmented[member.Name]; ok {
				gauge(defragmentTimeMetric, float64(at.Unix()), member.Name)
			}
		}
		for result, n := range s.results {
			metrics <- prometheus.MustNewConstMetric(
				defragmentationsMetric, prometheus.CounterValue, n, cluster.Namespace, cluster.Name, result)
		}
	}
}

// observeSpace replaces the database metrics of a cluster, unless its members could not be read. A member that does not
// respond has no size, and so no series: a size of 0 would look like an empty database.
func (m *Metrics) observeSpace(cluster types.NamespacedName, r Reconciliation) {
	if r.State == nil || r.State.EtcdErr != nil {
		return
	}
	s := spaceMetrics{defragmented: map[string]time.Time{}}
	for _, member := range r.State.Members {
		if member.DBSize > 0 {
			s.members = append(s.members, member)
		}
	}
	for _, member := range r.Cluster.Status.Members {
		if member.LastDefragmentTime != nil {
			s.defragmented[member.Name] = member.LastDefragmentTime.Time
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s.results = m.space[cluster].results
	m.space[cluster] = s
}

// Defragmented counts one defragmentation by its result.
func (m *Metrics) Defragmented(cluster types.NamespacedName, success bool) {
	if m == nil {
		return
	}
	result := "failure"
	if success {
		result = "success"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.space[cluster]
	if s.results == nil {
		s.results = map[string]float64{"success": 0, "failure": 0}
	}
	s.results[result]++
	m.space[cluster] = s
}

// stageNumbers are the values of the metric of stages. The absent stage None is 0.
var stageNumbers = map[rotation.Stage]float64{rotation.TrustBoth: 1, rotation.Reissue: 2, rotation.DropOld: 3}

// Observe replaces the metrics of a cluster with the results of a reconciliation. Metrics that the reconciliation did
// not get to are kept. The stages of rotations and the APIServices are taken from the status that the reconciliation
// has computed.
func (m *Metrics) Observe(cluster types.NamespacedName, r Reconciliation) {
	if m == nil {
		return
	}
	m.observeSpace(cluster, r)
	m.observeReconciliation(cluster, r)
	if len(r.Certificates) == 0 {
		return
	}
	authorities, _ := stages.Authorities.Stage(r.Cluster)
	keys, _ := stages.ServiceAccountKeys.Stage(r.Cluster)
	c := credentialMetrics{
		certificates: bySecret(r.Certificates),
		stages:       map[string]rotation.Stage{"authorities": authorities, "service-account-keys": keys},
		apis:         availability(r.Cluster.Status.APIServices),
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

func bySecret(certificates []status.Expiry) map[string]status.Expiry {
	all := make(map[string]status.Expiry, len(certificates))
	for _, certificate := range certificates {
		all[certificate.Secret] = certificate
	}
	return all
}

// Forget removes the metrics of a deleted cluster.
func (m *Metrics) Forget(cluster types.NamespacedName) {
	if m == nil {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.clusters, cluster)
	delete(m.space, cluster)
	delete(m.reconciliations, cluster)
}
