package metrics

import (
	"regexp"

	dto "github.com/prometheus/client_model/go"
)

// hiddenFamily is a deprecated family that kube-apiserver exports only with --show-hidden-metrics-for-version. It has
// the series of another family.
type hiddenFamily struct {
	// since is the release in which the family was deprecated.
	name, since string
	// as is the name of the family that has the series.
	as   string
	kind dto.MetricType
}

var hiddenFamilies = []hiddenFamily{
	{
		"apiserver_flowcontrol_request_concurrency_in_use", "1.31.0",
		"apiserver_flowcontrol_current_executing_seats", dto.MetricType_GAUGE,
	},
	{
		"apiserver_flowcontrol_request_concurrency_limit", "1.30.0",
		"apiserver_flowcontrol_nominal_limit_seats", dto.MetricType_GAUGE,
	},
	{
		"apiserver_request_slo_duration_seconds", "1.27.0", "apiserver_request_sli_duration_seconds",
		dto.MetricType_HISTOGRAM,
	},
	{"etcd_bookmark_counts", "1.36.0", "etcd_bookmark_total", dto.MetricType_GAUGE},
	{
		"kube_apiserver_pod_logs_pods_logs_backend_tls_failure_total", "1.27.0",
		"kube_apiserver_pod_logs_backend_tls_failure_total", dto.MetricType_COUNTER,
	},
	{
		"kube_apiserver_pod_logs_pods_logs_insecure_backend_total", "1.27.0",
		"kube_apiserver_pod_logs_insecure_backend_total", dto.MetricType_COUNTER,
	},
}

// withHidden returns families with the hidden families whose series exist, if show is set. Otherwise it returns
// families unchanged, and the number of hidden families that it left out.
func withHidden(families []*dto.MetricFamily, show bool) (all []*dto.MetricFamily, left int) {
	byName := map[string]*dto.MetricFamily{}
	for _, family := range families {
		byName[family.GetName()] = family
	}
	for _, hidden := range hiddenFamilies {
		switch family := byName[hidden.as]; {
		case family == nil:
		case show:
			families = append(families, hidden.of(family))
		default:
			left++
		}
	}
	return families, left
}

// levelInHelp matches the stability level at the beginning of a help text.
var levelInHelp = regexp.MustCompile(`^\[[A-Z]+\] `)

func (h hiddenFamily) of(family *dto.MetricFamily) *dto.MetricFamily {
	help := "[ALPHA] (Deprecated since " + h.since + ") " + levelInHelp.ReplaceAllString(family.GetHelp(), "")
	result := &dto.MetricFamily{Name: &h.name, Help: &help, Type: h.kind.Enum(), Metric: family.Metric}
	if h.kind != dto.MetricType_GAUGE || family.GetType() != dto.MetricType_COUNTER {
		return result
	}
	result.Metric = nil
	for _, series := range family.GetMetric() {
		result.Metric = append(result.Metric, &dto.Metric{
			Label: series.Label, Gauge: &dto.Gauge{Value: series.GetCounter().Value},
		})
	}
	return result
}
