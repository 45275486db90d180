package prometheus

import (
	"fmt"
	"time"
)

// Labels of series.
const (
	demo     = `namespace="ns",cluster="demo"`
	operator = `job="quorate-operator-metrics"`
	server   = `job="quorate-apiserver",` + demo + `,pod="demo-0"`
)

// healthy are the series of a cluster without faults, in the notation of promtool. xN repeats a value until the end.
var healthy = map[string]string{
	`up{` + operator + `,pod="a"}`: "1xN", `up{job="quorate-apiserver",` + demo + `,pod="demo-0"}`: "1xN",
	`controller_runtime_reconcile_errors_total{` + operator + `,controller="apiservercluster"}`: "7xN",
	condition("Available", "a"): "1xN", condition("Available", "b"): "1xN", condition("EtcdQuorum", "a"): "1xN",
	replicas("a"): "3xN", replicas("b"): "3xN",
	condition("Degraded", "a"): "0xN", condition("Progressing", "a"): "0xN",
	member("demo-0", "a"): "1xN", member("demo-1", "a"): "1xN", member("demo-1", "b"): "1xN",
	certificate("expiration"): "7776000xN", certificate("not_before"): "0xN",
	ready: "1xN", lastSuccess: "-90xN",
	`quorate_backup_last_success_timestamp_seconds{` + demo + `}`: "-95xN",
	database("size", "demo-0"):                                    "95xN", database("in_use", "demo-0"): "50xN",
	database("quota", "demo-0"): "100xN", condition("EtcdSpaceAvailable", "a"): "1xN",
	`etcd_server_leader_changes_seen_total{` + server + `}`: "9xN",
	volume("available", "demo-0"):                           "50xN", volume("capacity", "demo-0"): "100xN",
	requests("200"): "0+60xN",
	sli("count"):    "0+60xN", sli(`bucket`, `le="1.0"`): "0+60xN",
}

func condition(name, pod string) string {
	return fmt.Sprintf(`quorate_cluster_status_condition{%s,condition=%q,status="true",pod=%q}`, demo, name, pod)
}

func replicas(pod string) string {
	return fmt.Sprintf(`quorate_cluster_spec_replicas{%s,pod=%q}`, demo, pod)
}

func member(name, pod string) string {
	return fmt.Sprintf(`quorate_cluster_member_ready{%s,member=%q,pod=%q}`, demo, name, pod)
}

func certificate(of string) string {
	return fmt.Sprintf(`quorate_certificate_%s_timestamp_seconds{%s,secret="demo-serving"}`, of, demo)
}

// Series of a backup schedule.
const (
	ready       = `quorate_backup_ready{` + demo + `,schedule="hourly"}`
	lastSuccess = `quorate_backup_schedule_last_success_timestamp_seconds{` + demo + `,schedule="hourly"}`
)

func database(of, member string) string {
	return fmt.Sprintf(`quorate_etcd_database_%s_bytes{%s,member=%q}`, of, demo, member)
}

// volume returns a series of a kubelet, with the labels that kube-prometheus adds.
func volume(of, claim string) string {
	return fmt.Sprintf(`kubelet_volume_stats_%s_bytes{endpoint="https-metrics",instance="10.0.0.1:10250",job="kubelet",`+
		`metrics_path="/metrics",namespace="ns",node="node-1",persistentvolumeclaim=%q,service="kubelet"}`, of, claim)
}

func requests(code string) string {
	return fmt.Sprintf(`apiserver_request_total{%s,verb="GET",code=%q}`, server, code)
}

func sli(of string, labels ...string) string {
	name := "apiserver_request_sli_duration_seconds_" + of + "{" + server + `,verb="GET"`
	for _, label := range labels {
		name += "," + label
	}
	return name + "}"
}

func ownWrites(labels, writer, result string) string {
	return fmt.Sprintf(`quorate_own_writes_total{%s,writer=%q,result=%q}`, labels, writer, result)
}

// Alerts in the format of evaluate.
const (
	available  = `QuorateClusterUnavailable{cluster="demo", namespace="ns", severity="critical"} ApiServerCluster ns/demo has not been available for 5 minutes.`
	noQuorum   = `QuorateEtcdNoQuorum{cluster="demo", namespace="ns", severity="critical"} etcd of ApiServerCluster ns/demo has had no quorum for a minute.`
	memberDown = `QuorateMemberDown{cluster="demo", member="demo-1", namespace="ns", severity="warning"} Member demo-1 of ApiServerCluster ns/demo has not been ready for 5 minutes.`
)

const firstMemberDown = `QuorateMemberDown{cluster="demo", member="demo-0", namespace="ns", severity="warning"} ` +
	`Member demo-0 of ApiServerCluster ns/demo has not been ready for 5 minutes.`

const degraded = `QuorateClusterDegraded{cluster="demo", namespace="ns", severity="warning"} ` +
	`ApiServerCluster ns/demo has been degraded for 30 minutes.`

const reconcileErrors = `QuorateReconcileErrors{controller="apiservercluster", severity="warning"} ` +
	`Reconciliations of the controller apiservercluster have failed for 30 minutes.`

func burns(alert, severity, long, short, part, does string) string {
	return fmt.Sprintf(`%s{cluster="demo", long=%q, namespace="ns", severity=%q, short=%q} %s of the requests to ApiServerCluster ns/demo %s, over %s.`,
		alert, long, severity, short, part, does, long)
}

func expires(severity, left string) string {
	return fmt.Sprintf(`QuorateCertificateExpiringSoon{cluster="demo", namespace="ns", secret="demo-serving", severity=%q} `+
		`The certificate in Secret ns/demo-serving has %s of its lifetime left.`, severity, left)
}

// firing contains all firing alerts, by the time since the start.
type firing map[time.Duration][]string

const minute = time.Minute

var scenarios = []struct {
	name   string
	series map[string]string // replace those of healthy
	firing firing
}{
	{"healthy", nil, firing{10 * minute: nil, 2 * time.Hour: nil}},
	{
		"no operator is ready", map[string]string{`up{` + operator + `,pod="a"}`: "0xN"},
		firing{
			9 * minute: nil, 10 * minute: {
				`QuorateOperatorAbsent{severity="critical"} Prometheus has scraped no Quorate operator for 10 minutes.`,
			},
		},
	},
	{
		"reconciliations fail", map[string]string{
			`controller_runtime_reconcile_errors_total{` + operator + `,controller="apiservercluster"}`: "7x9 8+1xN",
		},
		firing{39 * minute: nil, 40 * minute: {reconcileErrors}},
	},
	{
		// 1000 seconds is the longest time between retries.
		"reconciliations fail rarely", map[string]string{
			`controller_runtime_reconcile_errors_total{` + operator +
				`,controller="apiservercluster"}`: "7x9 8x16 9x16 10x16 11x16 12x16 13xN",
		},
		firing{39 * minute: nil, 40 * minute: {reconcileErrors}, 90 * minute: {reconcileErrors}},
	},
	{
		"a reconciliation fails once", map[string]string{
			`controller_runtime_reconcile_errors_total{` + operator + `,controller="apiservercluster"}`: "7x9 8xN",
		},
		firing{20 * minute: nil, 2 * time.Hour: nil},
	},
	{
		"unavailable for some time", map[string]string{
			condition("Available", "a"): "0x8 1xN", condition("Available", "b"): "0x8 1xN",
		},
		firing{4 * minute: nil, 5 * minute: {available}, 8 * minute: {available}, 9 * minute: nil},
	},
	{
		"one replica of the operator has a stale cache", map[string]string{
			condition("Available", "b"): "0xN", member("demo-1", "b"): "0xN",
		},
		firing{time.Hour: nil},
	},
	{
		"quorum lost", map[string]string{
			condition("EtcdQuorum", "a"): "0xN", condition("Available", "a"): "0xN", condition("Available", "b"): "0xN",
			member("demo-1", "a"): "0xN", member("demo-1", "b"): "0xN",
		},
		firing{0: nil, minute: {noQuorum}, 5 * minute: {available, noQuorum, memberDown}},
	},
	{
		"hibernated for some time", map[string]string{
			replicas("a"): "0x30 3xN", replicas("b"): "0x30 3xN",
			condition("EtcdQuorum", "a"): "0xN", condition("Available", "a"): "0xN", condition("Available", "b"): "0xN",
			member("demo-0", "a"): "0xN", member("demo-1", "a"): "0xN", member("demo-1", "b"): "0xN",
		},
		firing{30 * minute: nil, 32 * minute: {noQuorum}, 36 * minute: {available, noQuorum, memberDown, firstMemberDown}},
	},
	{
		"backups of a hibernated cluster", map[string]string{
			replicas("a"): "0xN", replicas("b"): "0xN", ready: "0xN",
			`quorate_backup_last_failure_timestamp_seconds{` + demo + `}`: "_x30 1800xN",
		},
		firing{31 * minute: nil, 150 * minute: nil},
	},
	{
		"a new cluster that is not bootstrapped", map[string]string{
			condition("EtcdQuorum", "a"): "0xN", condition("Available", "a"): "0xN", condition("Available", "b"): "0xN",
			member("demo-0", "a"): "_xN", member("demo-1", "a"): "_xN", member("demo-1", "b"): "_xN",
		},
		firing{4 * minute: nil, 5 * minute: {available}},
	},
	{
		"member down", map[string]string{member("demo-1", "a"): "0xN", member("demo-1", "b"): "0xN"},
		firing{4 * minute: nil, 5 * minute: {memberDown}},
	},
	{
		"degraded", map[string]string{condition("Degraded", "a"): "1xN"},
		firing{29 * minute: nil, 30 * minute: {degraded}},
	},
	{
		"degraded except for moments", map[string]string{
			condition("Degraded", "a"): "1x3 0 1x3 0 1x3 0 1x3 0 1x3 0 1x3 0 1x3 0 1x3 0 0xN",
		},
		firing{29 * minute: nil, 30 * minute: {degraded}, 40 * minute: {degraded}, 45 * minute: nil},
	},
	{
		"change stuck", map[string]string{condition("Progressing", "a"): "1xN"},
		firing{59 * minute: nil, 60 * minute: {`QuorateRollStuck{cluster="demo", namespace="ns", severity="warning"} ` +
			`ApiServerCluster ns/demo has been progressing for an hour.`}},
	},
	{
		"certificate of an hour before its renewal", map[string]string{certificate("expiration"): "3600xN"},
		firing{40 * minute: nil},
	},
	{
		"renewal of a certificate overdue", map[string]string{
			certificate("expiration"): "776000xN", certificate("not_before"): "-7000000xN",
		},
		firing{14 * minute: nil, 15 * minute: {expires("warning", "9.968%")}},
	},
	{
		"certificate about to expire", map[string]string{
			certificate("expiration"): "10xN", certificate("not_before"): "-90xN",
		},
		firing{16 * minute: {expires("critical", "-950%"), expires("warning", "-950%")}},
	},
	{
		"scheduled backups fail", map[string]string{ready: "1x59 0xN"},
		firing{145 * minute: nil, 150 * minute: {backupTooOld("The newest completed at 1969-12-31 23:58:30 +0000 UTC.")}},
	},
	{
		"first scheduled backup does not complete", map[string]string{
			ready: "1x10 0xN", lastSuccess: "0xN", `quorate_backup_last_success_timestamp_seconds{` + demo + `}`: "_xN",
		},
		firing{95 * minute: nil, 105 * minute: {backupTooOld("None has completed.")}},
	},
	{
		"one scheduled backup fails", map[string]string{ready: "1x59 0x60 1xN", lastSuccess: "-90x120 7200xN"},
		firing{2 * time.Hour: nil, 4 * time.Hour: nil},
	},
	{
		"backup fails, a later one completes", map[string]string{
			`quorate_backup_last_failure_timestamp_seconds{` + demo + `}`: "_x30 1800xN",
			`quorate_backup_last_success_timestamp_seconds{` + demo + `}`: "-95x39 2300xN",
		},
		firing{30 * minute: nil, 31 * minute: {backupFailed}, 39 * minute: {backupFailed}, 40 * minute: nil},
	},
	{
		"first backup fails", map[string]string{
			`quorate_backup_last_failure_timestamp_seconds{` + demo + `}`: "_x30 1800xN",
			`quorate_backup_last_success_timestamp_seconds{` + demo + `}`: "_xN",
		},
		firing{30 * minute: nil, 31 * minute: {backupFailed}},
	},
	{
		"database nearly full", map[string]string{database("in_use", "demo-0"): "85xN"},
		firing{9 * minute: nil, 10 * minute: {nearQuota("85%")}},
	},
	{
		"database over its soft quota", map[string]string{
			database("in_use", "demo-0"): "92xN", condition("EtcdSpaceAvailable", "a"): "0xN",
		},
		firing{4 * minute: nil, 5 * minute: {noSpace}, 10 * minute: {nearQuota("92%"), noSpace}},
	},
	{
		"full database that is not defragmented", map[string]string{condition("EtcdSpaceAvailable", "a"): "0xN"},
		firing{10 * minute: {noSpace}},
	},
	{
		"volume nearly full", map[string]string{volume("available", "demo-0"): "5xN"},
		firing{9 * minute: nil,
			10 * minute: {`QuorateVolumeNearlyFull{cluster="demo", namespace="ns", persistentvolumeclaim="demo-0", severity="warning"} ` +
				`PersistentVolumeClaim ns/demo-0 of ApiServerCluster ns/demo has 5% of its space left.`}},
	},
	{
		"volume of another application nearly full", map[string]string{
			volume("available", "other-0"): "5xN", volume("capacity", "other-0"): "100xN",
		},
		firing{time.Hour: nil},
	},
	{
		"leader changes", map[string]string{`etcd_server_leader_changes_seen_total{` + server + `}`: "0+1xN"},
		firing{30 * minute: {`QuorateEtcdLeaderChanges{cluster="demo", namespace="ns", severity="warning"} ` +
			`etcd of ApiServerCluster ns/demo has had 15 leader changes within 15 minutes.`}},
	},
	{
		"no API server is scraped", map[string]string{`up{job="quorate-apiserver",` + demo + `,pod="demo-0"}`: "0xN"},
		firing{9 * minute: nil,
			10 * minute: {`QuorateAPIServersNotScraped{cluster="demo", namespace="ns", severity="warning"} ` +
				`Prometheus has scraped no API server of ApiServerCluster ns/demo for 10 minutes.`}},
	},
	{
		"overload", map[string]string{
			`apiserver_flowcontrol_rejected_requests_total{` + server + `,priority_level="workload-low"}`: "0+60xN",
		},
		firing{10 * minute: nil,
			30 * minute: {`QuorateOverload{cluster="demo", namespace="ns", priority_level="workload-low", severity="warning"} ` +
				`Priority level workload-low of ApiServerCluster ns/demo rejects 1 requests per second.`}},
	},
	{
		"a controller of the API servers writes without end", map[string]string{
			ownWrites(server, "customresourcedefinitions", "refused"): "_x30 0+60xN",
			ownWrites(server, "bootstrap", "permitted"):               "0+60xN",
		},
		firing{30 * minute: nil,
			60 * minute: {`QuorateOwnWritesRefused{cluster="demo", namespace="ns", severity="warning", ` +
				`writer="customresourcedefinitions"} The API servers of ApiServerCluster ns/demo have refused writes of their controller ` +
				`customresourcedefinitions for 10 minutes.`}},
	},
	{
		"a controller of the operator writes without end", map[string]string{
			ownWrites(operator, "apiservercluster", "refused"):  "0+60x30 1800xN",
			ownWrites(operator, "apiserverbackup", "permitted"): "0+60xN",
		},
		firing{20 * minute: {`QuorateOwnWritesRefused{severity="warning", writer="apiservercluster"} The operator has refused writes of its ` +
			`controller apiservercluster for 10 minutes.`}, 120 * minute: nil},
	},
	{
		"a background panic", map[string]string{
			`quorate_background_panics_total{` + server + `,loop="controllers"}`: "0x10 1xN",
		},
		firing{9 * minute: nil,
			20 * minute: {`QuorateBackgroundPanics{cluster="demo", loop="controllers", namespace="ns", pod="demo-0", severity="warning"} ` +
				`controllers in the API server of pod ns/demo-0 has panicked in the last hour.`}, 120 * minute: nil},
	},
	{
		"faults of other API servers and etcds", map[string]string{
			`etcd_server_leader_changes_seen_total{job="etcd"}`:        "0+1xN",
			`apiserver_request_total{job="kube-apiserver",code="500"}`: "0+60xN",
			`etcd_mvcc_db_total_size_in_bytes{job="etcd"}`:             "90xN",
			`etcd_server_quota_backend_bytes{job="etcd"}`:              "100xN",
		},
		firing{30 * minute: nil},
	},
	{
		// The series of errors does not exist before the first error.
		"half of the requests fail for some time", map[string]string{requests("500"): "_x60 0+60x60 3600xN"},
		firing{
			60 * minute: nil,
			100 * minute: {
				burns("QuorateAPIErrorBudgetBurn", "critical", "1h", "5m", "40%", "fail"),
				burns("QuorateAPIErrorBudgetBurn", "critical", "6h", "30m", "28.57%", "fail"),
			},
			160 * minute: {burns("QuorateAPIErrorBudgetBurn", "warning", "1d", "2h", "27.27%", "fail")},
		},
	},
	{
		"requests fail slowly", map[string]string{requests("500"): "0+1.2xN"},
		firing{
			175 * minute: nil, 190 * minute: {burns("QuorateAPIErrorBudgetBurn", "warning", "3d", "6h", "1.961%", "fail")},
		},
	},
	{
		"half of the requests are slow", map[string]string{sli("bucket", `le="1.0"`): "0+30xN"},
		firing{
			4 * minute: {burns("QuorateAPILatencyBudgetBurn", "critical", "1h", "5m", "50%", "take longer than a second")},
		},
	},
	{
		"half of the requests are slow, stored by Prometheus 2", map[string]string{
			sli("bucket", `le="1.0"`): "_xN", sli("bucket", `le="1"`): "0+30xN",
		},
		firing{
			4 * minute: {burns("QuorateAPILatencyBudgetBurn", "critical", "1h", "5m", "50%", "take longer than a second")},
		},
	},
	{
		"few requests are slow", map[string]string{sli("bucket", `le="1.0"`): "0+58.8xN"},
		firing{
			175 * minute: nil, 190 * minute: {
				burns("QuorateAPILatencyBudgetBurn", "warning", "3d", "6h", "2%", "take longer than a second"),
			},
		},
	},
	{
		"long-running requests are slow", map[string]string{
			`apiserver_request_sli_duration_seconds_count{` + server + `,verb="WATCH"}`:           "0+60xN",
			`apiserver_request_sli_duration_seconds_bucket{` + server + `,verb="WATCH",le="1.0"}`: "0xN",
		},
		firing{30 * minute: nil},
	},
	{
		"no requests", map[string]string{requests("200"): "9xN", sli("count"): "9xN", sli(`bucket`, `le="1.0"`): "9xN"},
		firing{30 * minute: nil},
	},
}

func backupTooOld(newest string) string {
	return `QuorateBackupTooOld{cluster="demo", namespace="ns", schedule="hourly", severity="warning"} ApiServerBackupSchedule ` +
		`ns/hourly of ApiServerCluster ns/demo has had no up-to-date backup for 90 minutes. ` + newest
}

func nearQuota(part string) string {
	return `QuorateEtcdDatabaseNearQuota{cluster="demo", member="demo-0", namespace="ns", severity="warning"} ` +
		`The data of member demo-0 of ApiServerCluster ns/demo uses ` + part + ` of its quota.`
}

const noSpace = `QuorateEtcdNoSpace{cluster="demo", namespace="ns", severity="critical"} ` +
	`etcd of ApiServerCluster ns/demo has had no space for new objects for 5 minutes.`

const backupFailed = `QuorateBackupFailed{cluster="demo", namespace="ns", severity="warning"} A backup of ApiServerCluster ns/demo ` +
	`failed at 1970-01-01 00:30:00 +0000 UTC, and none has completed since then.`
