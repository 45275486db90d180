package main

func etcdDashboard() dashboard {
	return dashboard{
		name: "quorate-etcd", title: "Quorate / etcd", variables: podVariables(),
		rows: []row{consensusRow(), diskRow(), networkRow(), processRow(selectedPods)},
	}
}

func consensusRow() row {
	return row{"Consensus", []panel{
		one("Members with a leader", short,
			"sum by (namespace, cluster) ("+selected("etcd_server_has_leader")+")", "namespace", "cluster").withKind(stat),
		one("Leader", short, selected("etcd_server_is_leader"), "pod").withKind(timeline),
		one("Leader changes per hour", short,
			"max by (namespace, cluster) (increase("+selected("etcd_server_leader_changes_seen_total")+"[1h]))",
			"namespace", "cluster"),
		{title: "Proposals", unit: events, queries: []query{
			{sumRate("pod", selected("etcd_server_proposals_committed_total")), "committed " + legend("pod")},
			{sumRate("pod", selected("etcd_server_proposals_applied_total")), "applied " + legend("pod")},
			{sumRate("pod", selected("etcd_server_proposals_failed_total")), "failed " + legend("pod")},
		}},
		one("Pending proposals", short, selected("etcd_server_proposals_pending"), "pod"),
		{title: "Slow operations", unit: events, queries: []query{
			{sumRate("pod", selected("etcd_server_slow_apply_total")), "applies " + legend("pod")},
			{sumRate("pod", selected("etcd_server_slow_read_indexes_total")), "read indexes " + legend("pod")},
			{sumRate("pod", selected("etcd_server_heartbeat_send_failures_total")), "heartbeats " + legend("pod")},
		}},
	}}
}

func diskRow() row {
	return row{"Disk", []panel{
		one("WAL fsync, 99th percentile", seconds, p99("pod", selected("etcd_disk_wal_fsync_duration_seconds_bucket")),
			"pod"),
		one("Backend commit, 99th percentile", seconds,
			p99("pod", selected("etcd_disk_backend_commit_duration_seconds_bucket")), "pod"),
		{title: "Database", unit: byteUnit, queries: []query{
			{selected("etcd_mvcc_db_total_size_in_bytes"), "size " + legend("pod")},
			{selected("etcd_mvcc_db_total_size_in_use_in_bytes"), "in use " + legend("pod")},
			{
				"max by (namespace, cluster) (" + selected("etcd_server_quota_backend_bytes") + ")",
				"quota " + legend("namespace", "cluster"),
			},
		}},
		one("Volume space left", ratio,
			`kubelet_volume_stats_available_bytes{namespace=~"$namespace",persistentvolumeclaim=~"$pod"}`+
				` / kubelet_volume_stats_capacity_bytes{namespace=~"$namespace",persistentvolumeclaim=~"$pod"}`,
			"persistentvolumeclaim"),
		one("Compaction, 99th percentile", seconds,
			"histogram_quantile(0.99, "+
				sumRate("pod, le", selected("etcd_debugging_mvcc_db_compaction_total_duration_milliseconds_bucket"))+") / 1000",
			"pod"),
	}}
}

func networkRow() row {
	return row{"Network", []panel{
		one("Round trips between members, 99th percentile", seconds,
			p99("pod, To", selected("etcd_network_peer_round_trip_time_seconds_bucket")), "pod", "To"),
		{title: "Traffic between members", unit: byteRate, queries: []query{
			{sumRate("pod", selected("etcd_network_peer_sent_bytes_total")), "sent " + legend("pod")},
			{sumRate("pod", selected("etcd_network_peer_received_bytes_total")), "received " + legend("pod")},
		}},
		{title: "Traffic of clients", unit: byteRate, queries: []query{
			{sumRate("pod", selected("etcd_network_client_grpc_sent_bytes_total")), "sent " + legend("pod")},
			{sumRate("pod", selected("etcd_network_client_grpc_received_bytes_total")), "received " + legend("pod")},
		}},
		one("Requests of clients by code", rate, sumRate("grpc_method, grpc_code", selected("grpc_server_handled_total")),
			"grpc_method", "grpc_code"),
	}}
}
