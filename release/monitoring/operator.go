package main

func operatorDashboard() dashboard {
	return dashboard{
		name: "quorate-operator", title: "Quorate / operator and clusters",
		variables: []variable{
			{"namespace", "quorate_cluster_info"}, {"cluster", `quorate_cluster_info{namespace=~"$namespace"}`},
		},
		rows: []row{clustersRow(), credentialsRow(), backupsRow(), spaceRow(), controllersRow(), processRow(operatorJob)},
	}
}

// maxBy returns the expression of perCluster for the clusters that the dashboard selects, with further matchers.
func maxBy(metric, labels string, matchers ...string) string {
	return "max by (namespace, cluster" + labels + ") (" + inSelectedClusters(metric, matchers...) + ")"
}

func clustersRow() row {
	return row{"Clusters", []panel{
		one("Available", short, maxBy("quorate_cluster_status_condition", "", `condition="Available",status="true"`),
			"namespace", "cluster").withKind(timeline),
		one("Other conditions that are true", short,
			maxBy("quorate_cluster_status_condition", ", condition", `condition!="Available",status="true"`)+" == 1",
			"namespace", "cluster", "condition"),
		{title: "Replicas", unit: short, queries: []query{
			{maxBy("quorate_cluster_spec_replicas", ""), "desired " + legend("namespace", "cluster")},
			{maxBy("quorate_cluster_status_replicas", ""), "all " + legend("namespace", "cluster")},
			{maxBy("quorate_cluster_status_ready_replicas", ""), "ready " + legend("namespace", "cluster")},
			{maxBy("quorate_cluster_updated_replicas", ""), "updated " + legend("namespace", "cluster")},
		}},
		one("Members by role", short, maxBy("quorate_cluster_members", ", role"), "namespace", "cluster", "role"),
		one("Ready members", short,
			maxBy("quorate_cluster_member_ready", ", member"), "namespace", "member").withKind(timeline),
		one("Versions", short, "count by (version, image) (max by (namespace, cluster, version, image) ("+
			inSelectedClusters("quorate_cluster_info")+"))", "version", "image"),
	}}
}

func credentialsRow() row {
	expiration := maxBy("quorate_certificate_expiration_timestamp_seconds", ", secret")
	notBefore := maxBy("quorate_certificate_not_before_timestamp_seconds", ", secret")
	return row{"Credentials", []panel{
		one("Certificates that expire next", seconds, "bottomk(10, "+expiration+" - time())", "namespace", "secret"),
		one("Lifetime left", ratio,
			"bottomk(10, ("+expiration+" - time()) / ("+expiration+" - "+notBefore+"))", "namespace", "secret"),
		one("Stage of rotations", short, maxBy("quorate_credentials_rotation_stage", ", credentials"),
			"namespace", "cluster", "credentials").withKind(timeline),
	}}
}

func backupsRow() row {
	return row{"Backups", []panel{
		one("Age of the newest backup", seconds, "time() - "+maxBy("quorate_backup_last_success_timestamp_seconds", ""),
			"namespace", "cluster"),
		one("Schedules with a current backup", short,
			maxBy("quorate_backup_ready", ", schedule"), "namespace", "schedule").withKind(timeline),
		one("Age of the newest scheduled backup", seconds,
			"time() - ("+maxBy("quorate_backup_schedule_last_success_timestamp_seconds", ", schedule")+" > 0)",
			"namespace", "schedule"),
		one("Backups by phase", short, maxBy("quorate_backups", ", phase"), "namespace", "cluster", "phase"),
		one("Size of the newest backup", byteUnit, maxBy("quorate_backup_last_size_bytes", ""), "namespace", "cluster"),
		one("Duration of the newest backup", seconds, maxBy("quorate_backup_last_duration_seconds", ""),
			"namespace", "cluster"),
	}}
}

func spaceRow() row {
	inUse := maxBy("quorate_etcd_database_in_use_bytes", ", member")
	return row{"Space in etcd", []panel{
		one("Data, of the quota", ratio,
			inUse+" / "+maxBy("quorate_etcd_database_quota_bytes", ", member"), "namespace", "member"),
		one("Unused space in database files", byteUnit,
			maxBy("quorate_etcd_database_size_bytes", ", member")+" - "+inUse, "namespace", "member"),
		one("Defragmentations per day", short,
			"sum by (namespace, cluster, result) (increase("+inSelectedClusters("quorate_etcd_defragmentations_total")+"[1d]))",
			"namespace", "cluster", "result"),
		one("Time since the last defragmentation", seconds,
			"time() - "+maxBy("quorate_etcd_last_defragmentation_timestamp_seconds", ", member"), "namespace", "member"),
	}}
}

func controllersRow() row {
	of := func(metric string) string { return metric + "{" + operatorJob + "}" }
	return row{"Controllers", []panel{
		one("Leader", short, of("leader_election_master_status"), "pod").withKind(timeline),
		one("Reconciliations", rate, sumRate("controller, result", of("controller_runtime_reconcile_total")),
			"controller", "result"),
		one("Errors", rate, sumRate("controller", of("controller_runtime_reconcile_errors_total")), "controller"),
		one("Time since the last error of a cluster", seconds,
			"time() - "+maxBy("quorate_cluster_last_reconcile_error_timestamp_seconds", ""), "namespace", "cluster"),
		one("Duration, 99th percentile", seconds,
			p99("controller", of("controller_runtime_reconcile_time_seconds_bucket")), "controller"),
		one("Queued", short, "sum by (name) ("+of("workqueue_depth")+")", "name"),
		one("Requests to the hosting cluster", rate,
			sumRate("method, code", "rest_client_requests_total{"+operatorJob+`,host!="managed"}`), "method", "code"),
		one("Requests to clusters", rate,
			sumRate("method, code", "rest_client_requests_total{"+operatorJob+`,host="managed"}`), "method", "code"),
	}}
}
