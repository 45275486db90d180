package main

import "fmt"

// Templates of the names of objects in the descriptions of alerts.
const (
	clusterName = "ApiServerCluster {{ $labels.namespace }}/{{ $labels.cluster }}"
	podName     = "{{ $labels.namespace }}/{{ $labels.pod }}"
)

// perCluster returns an expression for the greatest value of an operator metric by cluster and by labels, a list that
// is empty or begins with a comma. The maximum merges the replicas of the operator, which export the same series.
func perCluster(series string, labels string) string {
	return "max by (namespace, cluster" + labels + ") (" + series + ")"
}

func operatorAlerts() []alert {
	return []alert{
		{
			name: "QuorateOperatorAbsent", severity: critical, wait: "10m",
			expr:        `absent(up{` + operatorJob + `} == 1)`,
			summary:     "Prometheus does not scrape the operator.",
			description: "Prometheus has scraped no Quorate operator for 10 minutes.",
		},
		{
			// The range is longer than the longest time between retries, 1000 seconds, and shorter than the wait: an error that
			// is not repeated raises no alert.
			name: "QuorateReconcileErrors", severity: warning, wait: "30m",
			expr:        `sum by (controller) (rate(controller_runtime_reconcile_errors_total{` + operatorJob + `}[20m])) > 0`,
			summary:     "Reconciliations fail.",
			description: "Reconciliations of the controller {{ $labels.controller }} have failed for 30 minutes.",
		},
		{
			name: "QuorateOwnWritesRefused", severity: warning, wait: "10m",
			expr:        `sum by (writer) (` + refusedWrites(operatorJob) + `) > 0`,
			summary:     "The operator writes an object again and again.",
			description: "The operator has refused writes of its controller {{ $labels.writer }} for 10 minutes.",
		},
	}
}

// refusedWrites returns the rate of a job's own writes that its limit refuses.
func refusedWrites(job string) string {
	return "rate(quorate_own_writes_total{" + job + `,result="refused"}[20m])`
}

func clusterAlerts() []alert {
	return []alert{
		{
			name: "QuorateClusterUnavailable", severity: critical, wait: "5m",
			expr:        condition("Available") + " == 0" + unlessHibernated,
			summary:     "ApiServerCluster is unavailable.",
			description: clusterName + " has not been available for 5 minutes.",
		},
		{
			// A cluster without members is new: its nodes may still pull the image, or a backup is being restored.
			name: "QuorateEtcdNoQuorum", severity: critical, wait: "1m",
			expr: condition("EtcdQuorum") + " == 0 and on (namespace, cluster) quorate_cluster_member_ready" +
				unlessHibernated,
			summary:     "etcd has no quorum.",
			description: "etcd of " + clusterName + " has had no quorum for a minute.",
		},
		{
			name: "QuorateMemberDown", severity: warning, wait: "5m",
			expr:        perCluster("quorate_cluster_member_ready", ", member") + " == 0" + unlessHibernated,
			summary:     "etcd member is down.",
			description: "Member {{ $labels.member }} of " + clusterName + " has not been ready for 5 minutes.",
		},
		{
			// In the moments in which a repeatedly restarting container runs, the condition is false.
			name: "QuorateClusterDegraded", severity: warning, wait: "30m",
			expr: perCluster(`max_over_time(quorate_cluster_status_condition{condition="Degraded",status="true"}[5m])`,
				"") + " == 1",
			summary:     "ApiServerCluster is degraded.",
			description: clusterName + " has been degraded for 30 minutes.",
		},
		{
			name: "QuorateRollStuck", severity: warning, wait: "1h",
			expr:        condition("Progressing") + " == 1",
			summary:     "A change to an ApiServerCluster does not complete.",
			description: clusterName + " has been progressing for an hour.",
		},
	}
}

// unlessHibernated excludes clusters that are scaled to 0: they have no API server, no quorum and no ready member, and
// cannot be backed up.
const unlessHibernated = " unless on (namespace, cluster) quorate_cluster_spec_replicas == 0"

// condition returns an expression whose value is 1 for clusters with a true condition, and 0 for clusters whose
// condition is false or unknown.
func condition(name string) string {
	return perCluster(`quorate_cluster_status_condition{condition="`+name+`",status="true"}`, "")
}

// certificateAlerts returns the alerts for certificates whose renewal is overdue: the operator, like cert-manager by
// default, renews a certificate when a third of its lifetime remains.
func certificateAlerts() []alert {
	var alerts []alert
	expiration := perCluster("quorate_certificate_expiration_timestamp_seconds", ", secret")
	notBefore := perCluster("quorate_certificate_not_before_timestamp_seconds", ", secret")
	for _, level := range []struct{ severity, remains string }{{warning, "0.25"}, {critical, "0.05"}} {
		alerts = append(alerts, alert{
			name: "QuorateCertificateExpiringSoon", severity: level.severity, wait: "15m",
			expr:    "(" + expiration + " - time()) / (" + expiration + " - " + notBefore + ") < " + level.remains,
			summary: "A certificate is overdue for renewal.",
			description: "The certificate in Secret {{ $labels.namespace }}/{{ $labels.secret }} has " +
				"{{ $value | humanizePercentage }} of its lifetime left.",
		})
	}
	return alerts
}

func backupAlerts() []alert {
	succeeded := perCluster("quorate_backup_schedule_last_success_timestamp_seconds", ", schedule")
	ready := perCluster("quorate_backup_ready", ", schedule")
	failure := perCluster("quorate_backup_last_failure_timestamp_seconds", "")
	success := perCluster("quorate_backup_last_success_timestamp_seconds", "")
	return []alert{
		{
			// With an hourly schedule, one failed backup raises only QuorateBackupFailed.
			name: "QuorateBackupTooOld", severity: warning, wait: "90m",
			expr:    succeeded + " and " + ready + " == 0" + unlessHibernated,
			summary: "Scheduled backups do not complete.",
			description: "ApiServerBackupSchedule {{ $labels.namespace }}/{{ $labels.schedule }} of " + clusterName +
				" has had no up-to-date backup for 90 minutes. " +
				"{{ if $value }}The newest completed at {{ $value | humanizeTimestamp }}.{{ else }}None has completed.{{ end }}",
		},
		{
			name: "QuorateBackupFailed", severity: warning, wait: "1m",
			expr:    fmt.Sprintf("%s unless %s > %s", failure, success, failure) + unlessHibernated,
			summary: "A backup failed.",
			description: "A backup of " + clusterName +
				" failed at {{ $value | humanizeTimestamp }}, and none has completed since then.",
		},
	}
}

func etcdAlerts() []alert {
	const claims = `group by (namespace, cluster, persistentvolumeclaim) ` +
		`(label_replace(quorate_cluster_member_ready, "persistentvolumeclaim", "$1", "member", "(.+)"))`
	return []alert{
		{
			// The operator defragments the database, so that only the data in use counts.
			name: "QuorateEtcdDatabaseNearQuota", severity: warning, wait: "10m",
			expr: perCluster("quorate_etcd_database_in_use_bytes", ", member") + " / " +
				perCluster("quorate_etcd_database_quota_bytes", ", member") + " > 0.8",
			summary: "etcd's database is nearly full.",
			description: "The data of member {{ $labels.member }} of " + clusterName +
				" uses {{ $value | humanizePercentage }} of its quota.",
		},
		{
			name: "QuorateEtcdNoSpace", severity: critical, wait: "5m",
			expr:        condition("EtcdSpaceAvailable") + " == 0",
			summary:     "etcd is out of space and writes are rejected.",
			description: "etcd of " + clusterName + " has had no space for new objects for 5 minutes.",
		},
		{
			name: "QuorateVolumeNearlyFull", severity: warning, wait: "10m",
			expr: "(min by (namespace, persistentvolumeclaim) (kubelet_volume_stats_available_bytes / " +
				"kubelet_volume_stats_capacity_bytes) < 0.1) * on (namespace, persistentvolumeclaim) group_left (cluster) " +
				claims,
			summary: "A member's volume is nearly full.",
			description: "PersistentVolumeClaim {{ $labels.namespace }}/{{ $labels.persistentvolumeclaim }} of " + clusterName +
				" has {{ $value | humanizePercentage }} of its space left.",
		},
		{
			name: "QuorateEtcdLeaderChanges", severity: warning, wait: "5m",
			expr: "max by (namespace, cluster) (increase(etcd_server_leader_changes_seen_total{" + apiServerJob +
				"}[15m])) > 4",
			summary:     "etcd changes its leader too often.",
			description: "etcd of " + clusterName + " has had {{ $value | humanize }} leader changes within 15 minutes.",
		},
	}
}

func apiServerAlerts() []alert {
	return []alert{
		{
			name: "QuorateAPIServersNotScraped", severity: warning, wait: "10m",
			expr:        "max by (namespace, cluster) (up{" + apiServerJob + "}) == 0",
			summary:     "Prometheus does not scrape the API servers of a cluster.",
			description: "Prometheus has scraped no API server of " + clusterName + " for 10 minutes.",
		},
		{
			name: "QuorateOverload", severity: warning, wait: "10m",
			expr: "sum by (namespace, cluster, priority_level) (rate(apiserver_flowcontrol_rejected_requests_total{" +
				apiServerJob + "}[5m])) > 0.1",
			summary: "The API servers reject requests.",
			description: "Priority level {{ $labels.priority_level }} of " + clusterName +
				" rejects {{ $value | humanize }} requests per second.",
		},
		{
			name: "QuorateOwnWritesRefused", severity: warning, wait: "10m",
			expr:    "sum by (namespace, cluster, writer) (" + refusedWrites(apiServerJob) + ") > 0",
			summary: "The API servers write an object again and again.",
			description: "The API servers of " + clusterName +
				" have refused writes of their controller {{ $labels.writer }} for 10 minutes.",
		},
		{
			name: "QuorateBackgroundPanics", severity: warning, wait: "1m",
			expr: "sum by (namespace, cluster, pod, loop) (increase(quorate_background_panics_total{" +
				apiServerJob + "}[1h])) > 0",
			summary:     "Background work of an API server panics.",
			description: "{{ $labels.loop }} in the API server of pod " + podName + " has panicked in the last hour.",
		},
	}
}
