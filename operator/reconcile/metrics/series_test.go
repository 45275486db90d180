package metrics

import (
	"fmt"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/backups"
	"quorate.dev/operator/status"
)

// seriesPerCluster is the number of series of a cluster of three members with a nightly backup. docs/monitoring.md
// contains the same number.
const seriesPerCluster = 84

// TestSeries counts the series of 200 clusters, and checks that none is left after the clusters were deleted.
func TestSeries(t *testing.T) {
	const clusters = 200
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	var objects []client.Object
	m := New()
	var keys []types.NamespacedName
	for i := range clusters {
		cluster, backup, schedule := observedCluster(fmt.Sprintf("cluster-%d", i))
		objects = append(objects, cluster, backup, schedule)
		key := client.ObjectKeyFromObject(cluster)
		keys = append(keys, key)
		m.Observe(key, observedReconciliation(cluster))
		m.Defragmented(key, true)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(objects...).Build()
	collectors := []prometheus.Collector{m, StateCollector{c}, backups.Collector{Reader: c, Clock: clock.RealClock{}}}
	if n := countSeries(collectors); n != clusters*seriesPerCluster {
		t.Errorf("%d clusters have %d series, want %d", clusters, n, clusters*seriesPerCluster)
	}
	for _, object := range objects {
		if err := c.Delete(t.Context(), object); err != nil {
			t.Fatal(err)
		}
	}
	for _, key := range keys {
		m.Forget(key)
	}
	if n := countSeries(collectors); n != 0 {
		t.Errorf("%d series of deleted clusters", n)
	}
}

func countSeries(collectors []prometheus.Collector) (n int) {
	for _, c := range collectors {
		n += testutil.CollectAndCount(c)
	}
	return n
}

// observedCluster returns a healthy cluster with all conditions that apply without special configuration, its backup
// and its schedule.
func observedCluster(
	name string,
) (*v1alpha1.ApiServerCluster, *v1alpha1.ApiServerBackup, *v1alpha1.ApiServerBackupSchedule) {
	now := metav1.Now()
	meta := metav1.ObjectMeta{Namespace: "ns", Name: name}
	cluster := &v1alpha1.ApiServerCluster{ObjectMeta: meta}
	for _, condition := range []string{
		"Available", "Progressing", "Degraded", v1alpha1.EtcdQuorum, v1alpha1.EtcdSpaceAvailable, v1alpha1.CertificatesValid,
		v1alpha1.CredentialsRotating, v1alpha1.BackupReady,
	} {
		cluster.Status.Conditions = append(cluster.Status.Conditions, metav1.Condition{
			Type: condition, Status: metav1.ConditionTrue,
		})
	}
	for i := range 3 {
		cluster.Status.Members = append(cluster.Status.Members, v1alpha1.MemberStatus{
			Name: fmt.Sprintf("%s-%d", name, i), Role: "voter", Ready: true, LastDefragmentTime: &now,
		})
	}
	backup := &v1alpha1.ApiServerBackup{ObjectMeta: meta, Spec: v1alpha1.ApiServerBackupSpec{ClusterName: name}}
	backup.Status = v1alpha1.ApiServerBackupStatus{
		Phase: v1alpha1.BackupCompleted, SnapshotTime: &now, StartTime: &now, CompletionTime: &now,
	}
	schedule := &v1alpha1.ApiServerBackupSchedule{ObjectMeta: meta}
	schedule.Spec.Template.ClusterName = name
	return cluster, backup, schedule
}

// observedReconciliation returns a reconciliation that has observed the certificates and the members of a cluster.
func observedReconciliation(cluster *v1alpha1.ApiServerCluster) Reconciliation {
	r := Reconciliation{Cluster: cluster, State: &observed.State{}, Updated: new(int)}
	for i := range 12 {
		r.Certificates = append(r.Certificates, status.Expiry{Secret: fmt.Sprint("secret-", i), At: time.Unix(1, 0)})
	}
	for _, member := range cluster.Status.Members {
		r.State.Members = append(r.State.Members, etcd.Member{Name: member.Name, DBSize: 1})
	}
	return r
}
