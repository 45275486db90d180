package metrics

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/status"
)

func TestStateMetrics(t *testing.T) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "demo"}}
	cluster.Spec.Replicas = ptr.To[int32](0)
	cluster.Status = v1alpha1.ApiServerClusterStatus{
		Replicas: 2, ReadyReplicas: 1, Version: "v1.36.3", Image: "quorate:1",
		Members: []v1alpha1.MemberStatus{
			{Name: "demo-0", Role: "leader", Ready: true}, {Name: "demo-1", Role: "voter"},
		},
		Conditions: []metav1.Condition{{Type: v1alpha1.EtcdQuorum, Status: metav1.ConditionFalse}},
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(cluster).Build()
	const want = `
# HELP quorate_cluster_spec_replicas Number of desired API server pods of an ApiServerCluster, 0 while it is hibernated, by namespace and cluster.
# TYPE quorate_cluster_spec_replicas gauge
quorate_cluster_spec_replicas{cluster="demo",namespace="ns"} 0
# HELP quorate_cluster_member_ready Whether an etcd member of an ApiServerCluster is healthy and its API server ready (1) or not (0), by namespace, cluster and member.
# TYPE quorate_cluster_member_ready gauge
quorate_cluster_member_ready{cluster="demo",member="demo-0",namespace="ns"} 1
quorate_cluster_member_ready{cluster="demo",member="demo-1",namespace="ns"} 0
# HELP quorate_cluster_status_condition Whether a condition of an ApiServerCluster has a status (1) or not (0), by namespace, cluster, condition and status (true, false or unknown).
# TYPE quorate_cluster_status_condition gauge
quorate_cluster_status_condition{cluster="demo",condition="EtcdQuorum",namespace="ns",status="false"} 1
quorate_cluster_status_condition{cluster="demo",condition="EtcdQuorum",namespace="ns",status="true"} 0
quorate_cluster_status_condition{cluster="demo",condition="EtcdQuorum",namespace="ns",status="unknown"} 0
`
	err := testutil.CollectAndCompare(StateCollector{c}, strings.NewReader(want),
		"quorate_cluster_spec_replicas", "quorate_cluster_member_ready", "quorate_cluster_status_condition")
	if err != nil {
		t.Error(err)
	}
	if n := testutil.CollectAndCount(StateCollector{c}); n != 12 {
		t.Errorf("%d series, want 12", n)
	}
	if err := c.Delete(t.Context(), cluster); err != nil {
		t.Fatal(err)
	}
	if n := testutil.CollectAndCount(StateCollector{c}); n != 0 {
		t.Errorf("%d series of a deleted cluster", n)
	}
}

func TestCertificateMetrics(t *testing.T) {
	m := New()
	key := types.NamespacedName{Namespace: "ns", Name: "demo"}
	m.Observe(key, Reconciliation{
		Cluster: &v1alpha1.ApiServerCluster{},
		Certificates: []status.Expiry{
			{Secret: "demo-serving", Created: time.Unix(100, 0), At: time.Unix(400, 0)},
		},
	})
	const want = `
# HELP quorate_certificate_expiration_timestamp_seconds Expiry time of the certificate in a Secret of an ApiServerCluster, by namespace, cluster and secret, in seconds since 1970.
# TYPE quorate_certificate_expiration_timestamp_seconds gauge
quorate_certificate_expiration_timestamp_seconds{cluster="demo",namespace="ns",secret="demo-serving"} 400
# HELP quorate_certificate_not_before_timestamp_seconds Time at which the certificate in a Secret of an ApiServerCluster was created, by namespace, cluster and secret, in seconds since 1970.
# TYPE quorate_certificate_not_before_timestamp_seconds gauge
quorate_certificate_not_before_timestamp_seconds{cluster="demo",namespace="ns",secret="demo-serving"} 100
`
	err := testutil.CollectAndCompare(m, strings.NewReader(want),
		"quorate_certificate_expiration_timestamp_seconds", "quorate_certificate_not_before_timestamp_seconds")
	if err != nil {
		t.Error(err)
	}
	m.Forget(key)
	if n := testutil.CollectAndCount(m); n != 0 {
		t.Errorf("%d series of a deleted cluster", n)
	}
}

func TestReconciliationMetrics(t *testing.T) {
	m := New()
	key := types.NamespacedName{Namespace: "ns", Name: "demo"}
	updated := 1
	failed := Reconciliation{Cluster: &v1alpha1.ApiServerCluster{}, Updated: &updated, Failed: time.Unix(100, 0)}
	m.Observe(key, failed)
	// The reconciliation of a paused cluster has no results.
	m.Observe(key, Reconciliation{Cluster: &v1alpha1.ApiServerCluster{}})
	const want = `
# HELP quorate_cluster_last_reconcile_error_timestamp_seconds Time of the last error in a reconciliation of an ApiServerCluster since the operator started, by namespace and cluster, in seconds since 1970.
# TYPE quorate_cluster_last_reconcile_error_timestamp_seconds gauge
quorate_cluster_last_reconcile_error_timestamp_seconds{cluster="demo",namespace="ns"} 100
# HELP quorate_cluster_updated_replicas Number of API server pods of an ApiServerCluster that were created from its current spec, by namespace and cluster.
# TYPE quorate_cluster_updated_replicas gauge
quorate_cluster_updated_replicas{cluster="demo",namespace="ns"} 1
`
	if err := testutil.CollectAndCompare(m, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}
