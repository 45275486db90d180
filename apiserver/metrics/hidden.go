package metrics

import (
	"regexp"
	"slices"

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
	{"etcd_bookmark_counts", "1.36.0", "etcd_bookmark_total", dto.MetricType_GAUGE},
}

// deprecatedFamilies are registered, but exported only with --show-hidden-metrics-for-version, as in kube-apiserver.
var deprecatedFamilies = []string{
	"apiserver_cache_list_fetched_objects_total", "apiserver_cache_list_returned_objects_total",
	"apiserver_cache_list_total", "apiserver_storage_objects",
}

// withHidden returns families with the hidden families whose series exist, if show is set. Otherwise it returns
// families without deprecatedFamilies, and the number of hidden families that it left out.
func withHidden(families []*dto.MetricFamily, show bool) (all []*dto.MetricFamily, left int) {
	byName := map[string]*dto.MetricFamily{}
	for _, family := range families {
		byName[family.GetName()] = family
		if !show && slices.Contains(deprecatedFamilies, family.GetName()) {
			left++
			continue
		}
		all = append(all, family)
	}
	for _, hidden := range hiddenFamilies {
		switch family := byName[hidden.as]; {
		case family == nil:
		case show:
			all = append(all, hidden.of(family))
		default:
			left++
		}
	}
	return all, left
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
