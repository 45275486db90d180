package flowcontrol

import "k8s.io/apiserver/pkg/util/flowcontrol/metrics"

// Gauges has functions that set the values of the metric apiserver_flowcontrol_read_vs_write_current_requests, which
// are numbers of requests.
type Gauges struct {
	ReadOnlyExecuting, ReadOnlyWaiting, MutatingExecuting, MutatingWaiting func(float64)
}

// ConcurrencyGauges returns upstream's gauges, of which there is one set per process. New registers them.
func ConcurrencyGauges() Gauges {
	return Gauges{
		ReadOnlyExecuting: metrics.GetExecutingReadonlyConcurrency().Set,
		ReadOnlyWaiting:   metrics.GetWaitingReadonlyConcurrency().Set,
		MutatingExecuting: metrics.GetExecutingMutatingConcurrency().Set,
		MutatingWaiting:   metrics.GetWaitingMutatingConcurrency().Set,
	}
}
