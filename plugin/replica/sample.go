// Package replica reads the metrics of individual API servers of a cluster, which the cluster's Service cannot select.
package replica

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Sample contains metrics of an API server at one time.
type Sample struct {
	Time     time.Time
	Requests float64 // number since the start of the process
	Errors   float64 // number of Requests with a status of 500 or more
	InFlight float64 // requests without watches
	Watches  float64
	CPU      float64 // CPU time since the start of the process, in seconds
	Memory   int64   // resident bytes
	Revision int64   // revision of etcd, or of the watch cache if the API server has no member
	DBSize   int64   // bytes; 0 without a member
	DBInUse  int64   // bytes that would remain after defragmentation
	DBQuota  int64   // bytes
}

// Rates are changes per second between two samples.
type Rates struct {
	Requests, Errors, CPU float64
}

// Rates returns the rates since an earlier sample, and false if there is none or the process has restarted since then.
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

// maxLine limits a line of a response of /metrics, in bytes.
const maxLine = 64 << 10

// Parse reads a sample from a response of /metrics. It parses one line at a time, and only lines of metrics that it
// needs, because the response may be very long or come from another program that listens at the address of a former
// replica.
func Parse(body io.Reader, at time.Time) (Sample, error) {
	s := Sample{Time: at}
	var cached int64 // the highest revision of a watch cache
	lines := bufio.NewScanner(body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		line := lines.Bytes()
		name, _, _ := bytes.Cut(line, []byte("{"))
		name, _, _ = bytes.Cut(name, []byte(" "))
		if !isRead(string(name)) {
			if bytes.HasPrefix(line, []byte("<")) {
				return Sample{}, errors.New("parse metrics: the response is a document")
			}
			continue
		}
		parser := expfmt.NewTextParser(model.UTF8Validation)
		families, err := parser.TextToMetricFamilies(bytes.NewReader(append(line[:len(line):len(line)], '\n')))
		if err != nil {
			return Sample{}, fmt.Errorf("parse metrics: %w", err)
		}
		for _, m := range families[string(name)].GetMetric() {
			s.add(string(name), m)
			if string(name) == cacheRevision {
				cached = max(cached, int64(value(m)))
			}
		}
	}
	if err := lines.Err(); err != nil {
		return Sample{}, fmt.Errorf("parse metrics: %w", err)
	}
	if s.Revision == 0 {
		s.Revision = cached
	}
	return s, nil
}

// Names of metrics.
const (
	requestTotal  = "apiserver_request_total"
	inFlight      = "apiserver_current_inflight_requests"
	longRunning   = "apiserver_longrunning_requests"
	processCPU    = "process_cpu_seconds_total"
	processMemory = "process_resident_memory_bytes"
	etcdRevision  = "etcd_debugging_mvcc_current_revision"
	etcdSize      = "etcd_mvcc_db_total_size_in_bytes"
	etcdInUse     = "etcd_mvcc_db_total_size_in_use_in_bytes"
	etcdQuota     = "etcd_server_quota_backend_bytes"
	cacheRevision = "apiserver_watch_cache_resource_version"
)

// isRead reports whether samples contain a metric.
func isRead(name string) bool {
	switch name {
	case requestTotal, inFlight, longRunning, processCPU, processMemory, etcdRevision, etcdSize, etcdInUse,
		etcdQuota, cacheRevision:
		return true
	}
	return false
}

// add adds the value of one series.
func (s *Sample) add(name string, m *dto.Metric) {
	v := value(m)
	switch name {
	case requestTotal:
		s.Requests += v
		if labelValue(m, "code") >= "500" {
			s.Errors += v
		}
	case inFlight:
		s.InFlight += v
	case longRunning:
		if labelValue(m, "verb") == "WATCH" {
			s.Watches += v
		}
	case processCPU:
		s.CPU += v
	case processMemory:
		s.Memory += int64(v)
	case etcdRevision:
		s.Revision += int64(v)
	case etcdSize:
		s.DBSize += int64(v)
	case etcdInUse:
		s.DBInUse += int64(v)
	case etcdQuota:
		s.DBQuota += int64(v)
	}
}

// maxValue is the largest value that is read, in the unit of the metric. All are counts, seconds or bytes.
const maxValue = 1 << 60

// value returns the value of a series, or 0 if the value is impossible for a count, a time or a size.
func value(m *dto.Metric) float64 {
	v := m.GetCounter().GetValue() + m.GetGauge().GetValue() + m.GetUntyped().GetValue()
	if v >= 0 && v <= maxValue {
		return v
	}
	return 0
}

func labelValue(m *dto.Metric, name string) string {
	for _, label := range m.GetLabel() {
		if label.GetName() == name {
			return label.GetValue()
		}
	}
	return ""
}
