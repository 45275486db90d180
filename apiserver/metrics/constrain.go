package metrics

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/yaml"
)

// unexpected replaces label values that are not allowed.
const unexpected = "unexpected"

// Constraints disable metrics and bound the values of labels.
type Constraints struct {
	// Disabled has the names of the families that are not exported.
	Disabled []string
	// Labels maps "family,label" to the allowed values of the label, separated by commas. Other values are replaced by
	// "unexpected".
	Labels map[string]string
	// ShowHidden adds the deprecated metrics that kube-apiserver hides by default.
	ShowHidden bool
}

// ReadLabels reads Labels from the file of --allow-metric-labels-manifest.
func ReadLabels(file string) (map[string]string, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("failed to read allow list manifest: %w", err)
	}
	labels := map[string]string{}
	if err := yaml.Unmarshal(data, &labels); err != nil {
		return nil, fmt.Errorf("failed to parse allow list manifest: %w", err)
	}
	return labels, nil
}

// Constrain returns a gatherer of the metrics that the constraints permit, and of the metrics about these metrics.
// kube-apiserver constrains labels when it observes a value; here series are merged when they are gathered, which has
// the same result.
func Constrain(gatherer prometheus.Gatherer, constraints Constraints) prometheus.Gatherer {
	c := constrained{
		Gatherer: gatherer, disabled: constraints.Disabled, showHidden: constraints.ShowHidden,
		allowed: map[string]map[string][]string{},
	}
	for key, values := range constraints.Labels {
		family, label, _ := strings.Cut(key, ",")
		if c.allowed[family] == nil {
			c.allowed[family] = map[string][]string{}
		}
		c.allowed[family][label] = strings.Split(values, ",")
	}
	return c
}

type constrained struct {
	prometheus.Gatherer
	disabled   []string
	showHidden bool
	// allowed has the allowed values by family and label.
	allowed map[string]map[string][]string
}

// Gather implements prometheus.Gatherer.
func (c constrained) Gather() ([]*dto.MetricFamily, error) {
	families, err := c.Gatherer.Gather()
	about := familyCounts{registered: map[registration]int{}}
	families, about.hidden = withHidden(families, c.showHidden)
	var kept []*dto.MetricFamily
	for _, family := range families {
		about.count(family)
		if slices.Contains(c.disabled, family.GetName()) {
			about.disabled++
			continue
		}
		if allowed := c.allowed[family.GetName()]; allowed != nil {
			var replaced int
			family, replaced = constrain(family, allowed)
			about.replaced += replaced
		}
		kept = append(kept, family)
	}
	for _, family := range about.families() {
		if !slices.Contains(c.disabled, family.GetName()) {
			kept = append(kept, family)
		}
	}
	slices.SortFunc(kept, func(a, b *dto.MetricFamily) int { return strings.Compare(a.GetName(), b.GetName()) })
	return kept, err
}

// constrain returns a family in which label values have been replaced and series with equal labels have been merged.
// replaced is the number of replaced values.
func constrain(family *dto.MetricFamily, allowed map[string][]string) (result *dto.MetricFamily, replaced int) {
	merged := map[string]*dto.Metric{}
	for _, series := range family.GetMetric() {
		var key strings.Builder
		labels := make([]*dto.LabelPair, len(series.GetLabel()))
		for i, label := range series.GetLabel() {
			name, value := label.GetName(), label.GetValue()
			if values, bounded := allowed[name]; bounded && !slices.Contains(values, value) {
				value = unexpected
				replaced++
			}
			labels[i] = &dto.LabelPair{Name: &name, Value: &value}
			fmt.Fprintf(&key, "%q=%q,", name, value)
		}
		if into := merged[key.String()]; into != nil {
			add(into, series)
			continue
		}
		merged[key.String()] = &dto.Metric{
			Label: labels, Counter: series.Counter, Gauge: series.Gauge, Histogram: series.Histogram, Summary: series.Summary,
			Untyped: series.Untyped, TimestampMs: series.TimestampMs,
		}
	}
	result = &dto.MetricFamily{Name: family.Name, Help: family.Help, Type: family.Type, Unit: family.Unit}
	for _, key := range slices.Sorted(maps.Keys(merged)) {
		result.Metric = append(result.Metric, merged[key])
	}
	return result, replaced
}

// add adds the values of a series to the values of another series of the same family.
func add(into, series *dto.Metric) {
	switch {
	case into.Counter != nil:
		into.Counter = &dto.Counter{Value: sum(into.Counter.Value, series.GetCounter().Value)}
	case into.Gauge != nil:
		into.Gauge = &dto.Gauge{Value: sum(into.Gauge.Value, series.GetGauge().Value)}
	case into.Untyped != nil:
		into.Untyped = &dto.Untyped{Value: sum(into.Untyped.Value, series.GetUntyped().Value)}
	// Quantiles cannot be added.
	case into.Summary != nil:
		into.Summary = &dto.Summary{
			SampleCount: sum(into.Summary.SampleCount, series.GetSummary().SampleCount),
			SampleSum:   sum(into.Summary.SampleSum, series.GetSummary().SampleSum),
		}
	case into.Histogram != nil:
		into.Histogram = addHistograms(into.Histogram, series.GetHistogram())
	}
}

// addHistograms returns the sum of two histograms with the same buckets.
func addHistograms(a, b *dto.Histogram) *dto.Histogram {
	result := &dto.Histogram{
		SampleCount: sum(a.SampleCount, b.SampleCount), SampleSum: sum(a.SampleSum, b.SampleSum),
		CreatedTimestamp: a.CreatedTimestamp,
	}
	for i, bucket := range a.GetBucket() {
		result.Bucket = append(result.Bucket, &dto.Bucket{
			UpperBound: bucket.UpperBound, CumulativeCount: sum(bucket.CumulativeCount, b.GetBucket()[i].CumulativeCount),
		})
	}
	return result
}

func sum[T float64 | uint64](a, b *T) *T {
	total := *a + *b
	return &total
}
