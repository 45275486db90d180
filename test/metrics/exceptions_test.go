package metrics

// notExported are families of kube-apiserver that this server does not export, by prefix, with the reason.
var notExported = map[string]string{
	"apiserver_watch_events_dispatch_duration_seconds": "events in the history have no time of their arrival",
	"informer_":               "the informers of this server have no queues and no names",
	"apiextensions_openapi_v": "documents are merged when they are requested, not generated again for each definition",
}

// occasional are families that count rare events, with the reason why a server may have had none.
var occasional = map[string]string{
	"etcd_request_errors_total": "etcd fails requests while a server starts, or not at all",
}

// otherHelp are families whose help differs, with the reason.
var otherHelp = map[string]string{
	"authentication_token_cache_active_fetch_count":       "kube-apiserver has no help",
	"authentication_token_cache_fetch_total":              "kube-apiserver has no help",
	"authentication_token_cache_request_duration_seconds": "kube-apiserver has no help",
	"authentication_token_cache_request_total":            "kube-apiserver has no help",
	"process_start_time_seconds":                          "the collector of the Prometheus client exports it",
}

// notChecked are health checks of kube-apiserver that this server does not have.
var notChecked []string
