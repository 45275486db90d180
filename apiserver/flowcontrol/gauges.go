package flowcontrol

import "k8s.io/apiserver/pkg/util/flowcontrol/metrics"

// Gauges set the numbers of requests of the metric apiserver_flowcontrol_read_vs_write_current_requests.
type Gauges struct {
	ReadOnlyExecuting, ReadOnlyWaiting, MutatingExecuting, MutatingWaiting func(float64)
}

// ConcurrencyGauges returns the gauges, which are upstream's and belong to the process. New registers them.
func ConcurrencyGauges() Gauges {
	return Gauges{
		ReadOnlyExecuting: metrics.GetExecutingReadonlyConcurrency().Set,
		ReadOnlyWaiting:   metrics.GetWaitingReadonlyConcurrency().Set,
		MutatingExecuting: metrics.GetExecutingMutatingConcurrency().Set,
		MutatingWaiting:   metrics.GetWaitingMutatingConcurrency().Set,
	}
}
