// Package replica reads the metrics of individual API servers of a cluster, which cannot be selected through the
// cluster's Service.
package replica

import (
	"fmt"
	"io"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Sample is the state of an API server at one time.
type Sample struct {
	Time     time.Time
	Requests float64 // since the start of the process
	Errors   float64 // of Requests, responses with a status of 500 or more
	InFlight float64 // requests, watches excluded
	Watches  float64
	CPU      float64 // seconds since the start of the process
	Memory   int64   // resident bytes
	Revision int64   // of etcd, or of the watch cache if the replica has no member
	DBSize   int64   // bytes; 0 without a member
	DBInUse  int64   // bytes that defragmentation would keep
	DBQuota  int64   // bytes
}

// Rates are the changes between two samples, per second.
type Rates struct {
	Requests, Errors, CPU float64
}

// Rates returns the rates since an earlier sample, or false if the process has restarted in between.
func (s Sample) Rates(earlier Sample) (Rates, bool) {
	seconds := s.Time.Sub(earlier.Time).Seconds()
	if earlier.Time.IsZero() || seconds <= 0 || s.CPU < earlier.CPU || s.Requests < earlier.Requests {
		return Rates{}, false
	}
	return Rates{
		Requests: (s.Requests - earlier.Requests) / seconds, Errors: max(0, s.Errors-earlier.Errors) / seconds,
		CPU: (s.CPU - earlier.CPU) / seconds,
	}, true
}

// Parse reads a sample from a response of /metrics.
func Parse(body io.Reader, at time.Time) (Sample, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(body)
	if err != nil {
		return Sample{}, fmt.Errorf("parse metrics: %w", err)
	}
	f := metrics(families)
	s := Sample{
		Time: at, Requests: f.sum("apiserver_request_total"), InFlight: f.sum("apiserver_current_inflight_requests"),
		Errors:  f.sumIf("apiserver_request_total", "code", func(code string) bool { return code >= "500" }),
		Watches: f.sumIf("apiserver_longrunning_requests", "verb", func(verb string) bool { return verb == "WATCH" }),
		CPU:     f.sum("process_cpu_seconds_total"), Memory: int64(f.sum("process_resident_memory_bytes")),
		Revision: int64(f.sum("etcd_debugging_mvcc_current_revision")),
		DBSize:   int64(f.sum("etcd_mvcc_db_total_size_in_bytes")), DBInUse: int64(f.sum("etcd_mvcc_db_total_size_in_use_in_bytes")),
		DBQuota: int64(f.sum("etcd_server_quota_backend_bytes")),
	}
	if s.Revision == 0 {
		s.Revision = int64(f.highest("apiserver_watch_cache_resource_version"))
	}
	return s, nil
}

// metrics are metric families by name.
type metrics map[string]*dto.MetricFamily

func value(m *dto.Metric) float64 {
	return m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
}

func (f metrics) sum(name string) float64 {
	return f.sumIf(name, "", func(string) bool { return true })
}

// sumIf adds the series whose label satisfies a predicate.
func (f metrics) sumIf(name, label string, selected func(string) bool) float64 {
	sum := 0.0
	for _, m := range f[name].GetMetric() {
		if selected(labelValue(m, label)) {
			sum += value(m)
		}
	}
	return sum
}

func (f metrics) highest(name string) float64 {
	highest := 0.0
	for _, m := range f[name].GetMetric() {
		highest = max(highest, value(m))
	}
	return highest
}

func labelValue(m *dto.Metric, name string) string {
	for _, label := range m.GetLabel() {
		if label.GetName() == name {
			return label.GetValue()
		}
	}
	return ""
}
