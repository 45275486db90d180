package metrics

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
)

// collectTimeout bounds the time for reading the clusters from the cache.
const collectTimeout = 5 * time.Second

var (
	infoMetric = prometheus.NewDesc("quorate_cluster_info",
		"Constant 1, by namespace, cluster, version of Kubernetes and image of an ApiServerCluster.",
		[]string{"namespace", "cluster", "version", "image"}, nil)
	conditionMetric = prometheus.NewDesc("quorate_cluster_status_condition",
		"Whether a condition of an ApiServerCluster has a status (1) or not (0), by namespace, cluster, condition and "+
			"status (true, false or unknown).", []string{"namespace", "cluster", "condition", "status"}, nil)
	desiredReplicasMetric = prometheus.NewDesc("quorate_cluster_spec_replicas",
		"Number of desired API server pods of an ApiServerCluster, 0 while it is hibernated, by namespace and cluster.",
		[]string{"namespace", "cluster"}, nil)
	replicasMetric = prometheus.NewDesc("quorate_cluster_status_replicas",
		"Number of API server pods of an ApiServerCluster, including terminating ones, by namespace and cluster.",
		[]string{"namespace", "cluster"}, nil)
	readyReplicasMetric = prometheus.NewDesc("quorate_cluster_status_ready_replicas",
		"Number of ready API server pods of an ApiServerCluster, by namespace and cluster.",
		[]string{"namespace", "cluster"}, nil)
	membersMetric = prometheus.NewDesc("quorate_cluster_members",
		"Number of etcd members of an ApiServerCluster, by namespace, cluster and role (leader, voter or learner).",
		[]string{"namespace", "cluster", "role"}, nil)
	memberReadyMetric = prometheus.NewDesc("quorate_cluster_member_ready",
		"Whether an etcd member of an ApiServerCluster is healthy and its API server ready (1) or not (0), by namespace, "+
			"cluster and member.", []string{"namespace", "cluster", "member"}, nil)
)

// StateCollector exports metrics of the status of all clusters. It stores no state: the values are correct after a
// restart of the operator, and the series of a deleted cluster disappear.
type StateCollector struct{ Reader client.Reader } // a cache

// Describe implements prometheus.Collector.
func (c StateCollector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		infoMetric, conditionMetric, desiredReplicasMetric, replicasMetric, readyReplicasMetric,
		membersMetric, memberReadyMetric,
	} {
		descriptions <- d
	}
}

// Collect implements prometheus.Collector.
func (c StateCollector) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	var clusters v1alpha1.ApiServerClusterList
	if err := c.Reader.List(ctx, &clusters); err != nil {
		metrics <- prometheus.NewInvalidMetric(infoMetric, err)
		return
	}
	for i := range clusters.Items {
		collectState(&clusters.Items[i], metrics)
	}
}

func collectState(cluster *v1alpha1.ApiServerCluster, metrics chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		labels = append([]string{cluster.Namespace, cluster.Name}, labels...)
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	s := cluster.Status
	gauge(infoMetric, 1, s.Version, s.Image)
	gauge(desiredReplicasMetric, float64(cluster.ReplicaCount()))
	gauge(replicasMetric, float64(s.Replicas))
	gauge(readyReplicasMetric, float64(s.ReadyReplicas))
	for _, condition := range s.Conditions {
		for status, label := range statusLabels {
			gauge(conditionMetric, number(condition.Status == status), condition.Type, label)
		}
	}
	if len(s.Members) == 0 { // the etcd is external or not bootstrapped
		return
	}
	roles := map[string]int{"leader": 0, "voter": 0, "learner": 0}
	for _, member := range s.Members {
		if member.Role != "" {
			roles[member.Role]++
		}
		gauge(memberReadyMetric, number(member.Ready), member.Name)
	}
	for role, n := range roles {
		gauge(membersMetric, float64(n), role)
	}
}

var statusLabels = map[metav1.ConditionStatus]string{
	metav1.ConditionTrue: "true", metav1.ConditionFalse: "false", metav1.ConditionUnknown: "unknown",
}

func number(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
