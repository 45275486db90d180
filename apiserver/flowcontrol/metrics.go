package flowcontrol

import (
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"quorate.dev/apiserver/metrics"
)

const prefix = "apiserver_flowcontrol_"

var (
	levelLabels     = []string{"priority_level"}
	flowLabels      = []string{"priority_level", "flow_schema"}
	durationBuckets = []float64{0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30}
	lengthBuckets   = []float64{0, 10, 25, 50, 100, 250, 500, 1000}
)

// flowMetrics has the metrics of requests, with kube-apiserver's names. Upstream's controller has the metrics of the
// configuration.
type flowMetrics struct {
	rejected, dispatched, noAccommodation                     *prometheus.CounterVec
	inQueue, seatsInQueue, executing, seats                   *prometheus.GaugeVec
	queueLength, waiting, execution, estimated                *prometheus.HistogramVec
	currentR, dispatchR, latestS, nextS, nextDiscountedS, age *prometheus.Desc
	controller                                                *Controller
}

func newFlowMetrics(registerer prometheus.Registerer, c *Controller) *flowMetrics {
	f := promauto.With(registerer)
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return f.NewCounterVec(prometheus.CounterOpts{Name: prefix + name, Help: help}, append(flowLabels[:2:2], labels...))
	}
	gauge := func(name, help string) *prometheus.GaugeVec {
		return f.NewGaugeVec(prometheus.GaugeOpts{Name: prefix + name, Help: help}, flowLabels)
	}
	histogram := func(name, help string, buckets []float64, labels ...string) *prometheus.HistogramVec {
		opts := prometheus.HistogramOpts{Name: prefix + name, Help: help, Buckets: buckets}
		return f.NewHistogramVec(metrics.Histogram(opts), append(flowLabels[:2:2], labels...))
	}
	level := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc(prefix+name, help, append(levelLabels[:1:1], labels...), nil)
	}
	m := &flowMetrics{
		controller: c,
		rejected: counter("rejected_requests_total",
			"Number of requests rejected by API Priority and Fairness subsystem", "reason"),
		dispatched: counter("dispatched_requests_total",
			"[BETA] Number of requests executed by API Priority and Fairness subsystem"),
		noAccommodation: counter("request_dispatch_no_accommodation_total",
			"Number of times a dispatch attempt resulted in a non accommodation due to lack of available seats"),
		inQueue: gauge("current_inqueue_requests",
			"[BETA] Number of requests currently pending in queues of the API Priority and Fairness subsystem"),
		seatsInQueue: gauge("current_inqueue_seats",
			"[ALPHA] Number of seats currently pending in queues of the API Priority and Fairness subsystem"),
		executing: gauge("current_executing_requests", "[BETA] Number of requests in initial (for a WATCH) or any (for a "+
			"non-WATCH) execution stage in the API Priority and Fairness subsystem"),
		seats: gauge("current_executing_seats", "[BETA] Concurrency (number of seats) occupied by the currently executing "+
			"(initial stage for a WATCH, any stage otherwise) requests in the API Priority and Fairness subsystem"),
		queueLength: histogram("request_queue_length_after_enqueue",
			"[ALPHA] Length of queue in the API Priority and Fairness subsystem, as seen by each request after it is enqueued",
			lengthBuckets),
		waiting: histogram("request_wait_duration_seconds",
			"[BETA] Length of time a request spent waiting in its queue", durationBuckets, "execute"),
		execution: histogram("request_execution_seconds",
			"[ALPHA] Duration of initial stage (for a WATCH) or any (for a non-WATCH) stage of request execution in the API "+
				"Priority and Fairness subsystem",
			durationBuckets, "type"),
		estimated: histogram("work_estimated_seats",
			"[ALPHA] Number of estimated seats (maximum of initial and final seats) associated with requests in API Priority "+
				"and Fairness",
			[]float64{1, 2, 4, 8, 16, 32, 64, 100}),
		currentR:  level("current_r", "[ALPHA] R(time of last change)"),
		dispatchR: level("dispatch_r", "[ALPHA] R(time of last dispatch)"),
		latestS:   level("latest_s", "[ALPHA] S(most recently dispatched request)"),
		nextS: level("next_s_bounds", "[ALPHA] min and max, over queues, of S(oldest waiting request in queue)",
			"bound"),
		nextDiscountedS: level("next_discounted_s_bounds",
			"[ALPHA] min and max, over queues, of S(oldest waiting request in queue) - estimated work in progress", "bound"),
		age: level("epoch_advance_total", "Number of times the queueset's progress meter jumped backward", "success"),
	}
	registerer.MustRegister(m)
	return m
}

// Reset makes the next request build a new table, whose flows look up their series again. It must be called after the
// vectors have been reset.
func (m *flowMetrics) Reset() { m.controller.generation.Add(1) }

// Describe implements prometheus.Collector.
func (m *flowMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, desc := range []*prometheus.Desc{m.currentR, m.dispatchR, m.latestS, m.nextS, m.nextDiscountedS, m.age} {
		out <- desc
	}
}

// Collect implements prometheus.Collector.
func (m *flowMetrics) Collect(out chan<- prometheus.Metric) {
	m.controller.mu.Lock()
	defer m.controller.mu.Unlock()
	for name, set := range m.controller.sets {
		m.collect(name, set, out)
	}
}

func (m *flowMetrics) collect(level string, set *queueSet, out chan<- prometheus.Metric) {
	set.mu.Lock()
	r, last, advanced := set.currentR, set.last, set.advanced
	set.mu.Unlock()
	send := func(desc *prometheus.Desc, kind prometheus.ValueType, value float64, labels ...string) {
		out <- prometheus.MustNewConstMetric(desc, kind, value, append([]string{level}, labels...)...)
	}
	send(m.currentR, prometheus.GaugeValue, r.ToFloat())
	for i, success := range []string{"false", "true"} {
		if advanced[i] > 0 {
			send(m.age, prometheus.CounterValue, float64(advanced[i]), success)
		}
	}
	if last == (virtualTimes{}) {
		return
	}
	send(m.dispatchR, prometheus.GaugeValue, last.r.ToFloat())
	send(m.latestS, prometheus.GaugeValue, last.s.ToFloat())
	send(m.nextS, prometheus.GaugeValue, last.smallest.ToFloat(), "min")
	send(m.nextS, prometheus.GaugeValue, last.largest.ToFloat(), "max")
	send(m.nextDiscountedS, prometheus.GaugeValue, last.smallestDiscounted.ToFloat(), "min")
	send(m.nextDiscountedS, prometheus.GaugeValue, last.largestDiscounted.ToFloat(), "max")
}

// series has the metrics of one flow, so that a request does not look them up by their labels.
type series struct {
	dispatched         prometheus.Counter
	executing, seats   prometheus.Gauge
	regular, estimated prometheus.Observer
	// waited is nil if the priority level is exempt.
	waited prometheus.Observer
	// queueLength is nil if the priority level has no queues.
	queueLength prometheus.Observer
}
