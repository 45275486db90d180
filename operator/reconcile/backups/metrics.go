package backups

import (
	"cmp"
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/backup"
)

// collectTimeout bounds the time for reading the backups from the cache.
const collectTimeout = 5 * time.Second

var (
	lastSuccess = prometheus.NewDesc("quorate_backup_last_success_timestamp_seconds",
		"Time of the newest completed backup of a cluster, which contains every write acknowledged before, in seconds "+
			"since 1970.",
		[]string{"namespace", "cluster"}, nil)
	lastFailure = prometheus.NewDesc("quorate_backup_last_failure_timestamp_seconds",
		"Time at which the newest failed backup of a cluster failed, in seconds since 1970.",
		[]string{"namespace", "cluster"}, nil)
	lastSize = prometheus.NewDesc("quorate_backup_last_size_bytes",
		"Size of the newest completed backup of a cluster.", []string{"namespace", "cluster"}, nil)
	lastDuration = prometheus.NewDesc("quorate_backup_last_duration_seconds",
		"Duration of the newest completed backup of a cluster.", []string{"namespace", "cluster"}, nil)
	count = prometheus.NewDesc("quorate_backups",
		"Number of ApiServerBackups of a cluster by phase.", []string{"namespace", "cluster", "phase"}, nil)

	scheduleLabels       = []string{"namespace", "cluster", "schedule"}
	lastScheduledSuccess = prometheus.NewDesc("quorate_backup_schedule_last_success_timestamp_seconds",
		"Completion time of the newest completed backup of an ApiServerBackupSchedule, in seconds since 1970; 0 if there "+
			"is none.",
		scheduleLabels, nil)
	scheduleReady = prometheus.NewDesc("quorate_backup_ready",
		"Whether the newest completed backup of an ApiServerBackupSchedule is current (1) or not (0).",
		scheduleLabels, nil)
)

// Collector exports metrics of all backups and schedules. It stores no state: the values are correct after a restart of
// the operator.
type Collector struct {
	Reader client.Reader // a cache
	Clock  clock.PassiveClock
}

// Describe implements prometheus.Collector.
func (c Collector) Describe(descriptions chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		lastSuccess, lastFailure, lastSize, lastDuration, count, lastScheduledSuccess, scheduleReady,
	} {
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
	clusters := map[clusterKey]*backupSummary{}
	for i := range backups.Items {
		b := &backups.Items[i]
		k := clusterKey{b.Namespace, b.Spec.ClusterName}
		if clusters[k] == nil {
			clusters[k] = newBackupSummary()
		}
		clusters[k].add(b, c.Clock.Now())
	}
	for k, summary := range clusters {
		summary.collect(k, metrics)
	}
	var schedules v1alpha1.ApiServerBackupScheduleList
	if err := c.Reader.List(ctx, &schedules); err != nil {
		metrics <- prometheus.NewInvalidMetric(scheduleReady, err)
		return
	}
	for i := range schedules.Items {
		collectSchedule(&schedules.Items[i], metrics)
	}
}

type clusterKey struct{ namespace, cluster string }

// backupSummary describes the backups of one cluster.
type backupSummary struct {
	completed *v1alpha1.ApiServerBackup // the newest completed one, or nil
	failed    *v1alpha1.ApiServerBackup // the newest failed one, or nil
	phases    map[v1alpha1.BackupPhase]int
}

func newBackupSummary() *backupSummary {
	return &backupSummary{phases: map[v1alpha1.BackupPhase]int{
		v1alpha1.BackupPending: 0, v1alpha1.BackupRunning: 0, v1alpha1.BackupCompleted: 0, v1alpha1.BackupFailed: 0,
	}}
}

// add adds a backup to the summary. It ignores a completion time that lies in the future because of clock skew.
func (s *backupSummary) add(b *v1alpha1.ApiServerBackup, now time.Time) {
	phase := cmp.Or(b.Status.Phase, v1alpha1.BackupPending)
	s.phases[phase]++
	switch {
	case b.Status.CompletionTime != nil && backup.Ahead(b.Status.CompletionTime.Time, now):
	case phase == v1alpha1.BackupCompleted && (s.completed == nil || snapshotTime(s.completed).Before(snapshotTime(b))):
		s.completed = b
	case phase == v1alpha1.BackupFailed &&
		(s.failed == nil || s.failed.Status.CompletionTime.Before(b.Status.CompletionTime)):
		s.failed = b
	}
}

// snapshotTime returns the time of the data of a completed backup, or zero if the pod of the backup did not report it.
func snapshotTime(b *v1alpha1.ApiServerBackup) time.Time {
	return ptr.Deref(b.Status.SnapshotTime, metav1.Time{}).Time
}

func (s *backupSummary) collect(k clusterKey, metrics chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64, labels ...string) {
		labels = append([]string{k.namespace, k.cluster}, labels...)
		metrics <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, value, labels...)
	}
	if b := s.completed; b != nil && b.Status.SnapshotTime != nil && b.Status.StartTime != nil &&
		b.Status.CompletionTime != nil {
		gauge(lastSuccess, float64(b.Status.SnapshotTime.Unix()))
		gauge(lastSize, float64(b.Status.SizeBytes))
		gauge(lastDuration, b.Status.CompletionTime.Sub(b.Status.StartTime.Time).Seconds())
	}
	if b := s.failed; b != nil && b.Status.CompletionTime != nil {
		gauge(lastFailure, float64(b.Status.CompletionTime.Unix()))
	}
	for phase, n := range s.phases {
		gauge(count, float64(n), string(phase))
	}
}

func collectSchedule(s *v1alpha1.ApiServerBackupSchedule, metrics chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, value float64) {
		metrics <- prometheus.MustNewConstMetric(
			d, prometheus.GaugeValue, value, s.Namespace, s.Spec.Template.ClusterName, s.Name)
	}
	if t := s.Status.LastSuccessfulTime; t != nil {
		gauge(lastScheduledSuccess, float64(t.Unix()))
	} else {
		gauge(lastScheduledSuccess, 0)
	}
	if meta.IsStatusConditionTrue(s.Status.Conditions, v1alpha1.BackupReady) {
		gauge(scheduleReady, 1)
	} else {
		gauge(scheduleReady, 0)
	}
}
