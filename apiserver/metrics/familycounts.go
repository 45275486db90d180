package metrics

import (
	"cmp"
	"maps"
	"regexp"
	"slices"

	dto "github.com/prometheus/client_model/go"
)

// familyCounts counts metric families for kube-apiserver's metrics about metrics. Families without series are not
// counted.
type familyCounts struct {
	registered                 map[registration]int
	disabled, hidden, replaced int
}

// registration has the label values of one series of registered_metrics_total.
type registration struct{ level, deprecated string }

// stability matches the stability level and the release in which a family was deprecated in kube-apiserver's help
// texts.
var stability = regexp.MustCompile(`^\[([A-Z]+)\] (?:\(Deprecated since ([0-9.]+)\))?`)

func (c *familyCounts) count(family *dto.MetricFamily) {
	if found := stability.FindStringSubmatch(family.GetHelp()); found != nil {
		c.registered[registration{found[1], found[2]}]++
	}
}

// families returns the metrics about metrics.
func (c *familyCounts) families() []*dto.MetricFamily {
	registered := &dto.MetricFamily{
		Name: pointer("registered_metrics_total"), Type: dto.MetricType_COUNTER.Enum(),
		Help: pointer("[BETA] The count of registered metrics broken by stability level and deprecation version."),
	}
	order := func(a, b registration) int {
		return cmp.Or(cmp.Compare(a.level, b.level), cmp.Compare(a.deprecated, b.deprecated))
	}
	for _, of := range slices.SortedFunc(maps.Keys(c.registered), order) {
		registered.Metric = append(registered.Metric, &dto.Metric{
			Label: []*dto.LabelPair{
				{Name: pointer("deprecated_version"), Value: pointer(of.deprecated)},
				{Name: pointer("stability_level"), Value: pointer(of.level)},
			},
			Counter: &dto.Counter{Value: pointer(float64(c.registered[of]))},
		})
	}
	families := []*dto.MetricFamily{
		total("cardinality_enforcement_unexpected_categorizations_total",
			"[ALPHA] The count of unexpected categorizations during cardinality enforcement.", c.replaced),
		total("disabled_metrics_total", "[BETA] The count of disabled metrics.", c.disabled),
		total("hidden_metrics_total", "[BETA] The count of hidden metrics.", c.hidden),
	}
	if len(registered.Metric) > 0 {
		families = append(families, registered)
	}
	return families
}

// total returns a family with one counter.
func total(name, help string, value int) *dto.MetricFamily {
	return &dto.MetricFamily{
		Name: &name, Help: &help, Type: dto.MetricType_COUNTER.Enum(),
		Metric: []*dto.Metric{{Counter: &dto.Counter{Value: pointer(float64(value))}}},
	}
}

func pointer[T any](value T) *T { return &value }
