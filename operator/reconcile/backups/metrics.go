package backups

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
)

// collectTimeout bounds reading the backups from the cache.
const collectTimeout = 5 * time.Second

var (
	lastSuccess = prometheus.NewDesc("quorate_backup_last_success_timestamp_seconds",
		"Time before which every acknowledged write is in the newest completed backup of a cluster, as seconds since the epoch.",
		[]string{"namespace", "cluster"}, nil)
	lastSize = prometheus.NewDesc("quorate_backup_last_size_bytes",
		"Size of the newest completed backup of a cluster.", []string{"namespace", "cluster"}, nil)
	lastDuration = prometheus.NewDesc("quorate_backup_last_duration_seconds",
		"Duration of the newest completed backup of a cluster.", []string{"namespace", "cluster"}, nil)
	count = prometheus.NewDesc("quorate_backups",
		"Number of ApiServerBackups of a cluster by phase.", []string{"namespace", "cluster", "phase"}, nil)
)

// Collector exports metrics of the backups that exist. It has no state: the values are right after a restart of the
// operator.
type Collector struct{ Reader client.Reader } // a cache

// Describe implements prometheus.Collector.
func (c Collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{lastSuccess, lastSize, lastDuration, count} {
		descriptions <- d
	}
}

// Collect implements prometheus.Collector.
func (c Collector) Collect(metrics chan<- prometheus.Metric) {
	ctx, cancel := context.WithTimeout(context.Background(), collectTimeout)
	defer cancel()
	var backups v1alpha1.ApiServerBackupList
	if err := c.Reader.List(ctx, &backups); err != nil {
		metrics <- prometheus.NewInvalidMetric(count, err)
		return
	}
	type key struct{ namespace, cluster string }
	newest := map[key]*v1alpha1.ApiServerBackup{}
	phases := map[key]map[v1alpha1.BackupPhase]int{}
	for i := range backups.Items {
		b := &backups.Items[i]
		k := key{b.Namespace, b.Spec.ClusterName}
		if phases[k] == nil {
			phases[k] = map[v1alpha1.BackupPhase]int{
				v1alpha1.BackupPending: 0, v1alpha1.BackupRunning: 0, v1alpha1.BackupCompleted: 0, v1alpha1.BackupFailed: 0,
			}
		}
		phase := b.Status.Phase
		if phase == "" {
			phase = v1alpha1.BackupPending
		}
		phases[k][phase]++
		if phase == v1alpha1.BackupCompleted && (newest[k] == nil || newest[k].Status.SnapshotTime.Before(b.Status.SnapshotTime)) {
			newest[k] = b
		}
	}
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	for k, b := range newest {
		s := b.Status
		if s.SnapshotTime == nil || s.StartTime == nil || s.CompletionTime == nil {
			continue
		}
		gauge(lastSuccess, float64(s.SnapshotTime.Unix()), k.namespace, k.cluster)
		gauge(lastSize, float64(s.SizeBytes), k.namespace, k.cluster)
		gauge(lastDuration, s.CompletionTime.Sub(s.StartTime.Time).Seconds(), k.namespace, k.cluster)
	}
	for k, byPhase := range phases {
		for phase, n := range byPhase {
			gauge(count, float64(n), k.namespace, k.cluster, string(phase))
		}
	}
}
