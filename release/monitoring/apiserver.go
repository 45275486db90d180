package main

func apiServerDashboard() dashboard {
	return dashboard{
		name: "quorate-apiserver", title: "Quorate / API servers", variables: podVariables(),
		rows: []row{
			objectivesRow(), requestsRow(), fairnessRow(), admissionRow(), storageRow(), processRow(selectedPods),
		},
	}
}

// podVariables returns the variables of a dashboard that select API servers by namespace, cluster and pod.
func podVariables() []variable {
	const up = "up{" + apiServerJob
	return []variable{
		{"namespace", up + "}"},
		{"cluster", up + `,namespace=~"$namespace"}`},
		{"pod", up + "," + selectedClusters + "}"},
	}
}

func objectivesRow() row {
	var panels []panel
	for _, o := range objectives() {
		value := "1 - " + inSelectedClusters(o.ratio("3d"))
		panels = append(panels, one(o.title+", 3 days", ratio, value, "namespace", "cluster").withKind(stat))
	}
	panels = append(panels, panel{title: "Missed objectives", unit: ratio, queries: []query{
		{inSelectedClusters(objectives()[0].ratio("5m")), "errors " + legend("namespace", "cluster")},
		{inSelectedClusters(objectives()[1].ratio("5m")), "slow " + legend("namespace", "cluster")},
	}})
	return row{"Objectives", panels}
}

func requestsRow() row {
	return row{"Requests", []panel{
		one("Requests by verb", rate, sumRate("verb", selected("apiserver_request_total")), "verb"),
		one("Requests by code", rate, sumRate("code", selected("apiserver_request_total")), "code"),
		one("Duration, 99th percentile", seconds,
			p99("verb", selected("apiserver_request_sli_duration_seconds_bucket", notSlow)), "verb"),
		one("Errors by resource", rate,
			sumRate("resource, verb", selected("apiserver_request_total", `code=~"5.."`)), "verb", "resource"),
		one("Requests in flight", short,
			"sum by (pod, request_kind) ("+selected("apiserver_current_inflight_requests")+")", "pod", "request_kind"),
		one("Long-running requests", short,
			"topk(10, sum by (verb, resource) ("+selected("apiserver_longrunning_requests")+"))", "verb", "resource"),
		one("Response size by verb", byteRate, sumRate("verb", selected("apiserver_response_sizes_sum")), "verb"),
		one("Terminated requests", rate, sumRate("verb, code", selected("apiserver_request_terminations_total")),
			"verb", "code"),
		one("Deprecated APIs requested", short,
			"max by (group, version, resource, removed_release) ("+selected("apiserver_requested_deprecated_apis")+")",
			"group", "version", "resource", "removed_release"),
	}}
}

func fairnessRow() row {
	return row{"Priority and fairness", []panel{
		one("Rejected requests", rate,
			sumRate("priority_level, reason", selected("apiserver_flowcontrol_rejected_requests_total")),
			"priority_level", "reason"),
		one("Waiting requests", short,
			"sum by (priority_level) ("+selected("apiserver_flowcontrol_current_inqueue_requests")+")", "priority_level"),
		one("Waiting time, 99th percentile", seconds,
			p99("priority_level", selected("apiserver_flowcontrol_request_wait_duration_seconds_bucket")), "priority_level"),
		one("Executing seats", short,
			"sum by (priority_level) ("+selected("apiserver_flowcontrol_current_executing_seats")+")", "priority_level"),
		one("Seats", short,
			"sum by (priority_level) ("+selected("apiserver_flowcontrol_current_limit_seats")+")", "priority_level"),
	}}
}

func admissionRow() row {
	return row{"Admission", []panel{
		one("Duration of steps, 99th percentile", seconds,
			p99("type, operation", selected("apiserver_admission_step_admission_duration_seconds_bucket")), "type", "operation"),
		one("Duration of webhooks, 99th percentile", seconds,
			p99("name", selected("apiserver_admission_webhook_admission_duration_seconds_bucket")), "name"),
		one("Rejections by webhooks", rate,
			sumRate("name, error_type", selected("apiserver_admission_webhook_rejection_count")), "name", "error_type"),
	}}
}

func storageRow() row {
	return row{"Storage", []panel{
		one("Duration of etcd requests, 99th percentile", seconds,
			p99("operation", selected("etcd_request_duration_seconds_bucket")), "operation"),
		one("Requests to etcd", rate, sumRate("operation", selected("etcd_requests_total")), "operation"),
		one("Objects", short,
			"topk(10, max by (group, resource) ("+selected("apiserver_resource_objects")+"))", "resource", "group"),
		one("Watch events", events,
			"topk(10, "+sumRate("group, resource", selected("apiserver_watch_events_total"))+")", "resource", "group"),
		one("Expiry of clients' certificates, 1st percentile", seconds,
			"histogram_quantile(0.01, "+sumRate("le", selected("apiserver_client_certificate_expiration_seconds_bucket"))+")"),
	}}
}
