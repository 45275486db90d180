package metrics

import (
	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	metricsfeatures "k8s.io/component-base/metrics/features"
)

// Native histograms have the same options as the native histograms of component-base/metrics.
const (
	nativeFactor     = 1.1
	nativeMaxBuckets = 160
)

// Histogram returns the options of a histogram. If the feature gate NativeHistograms is enabled, the histogram has
// native buckets in addition to classic buckets; clients get native buckets in the protobuf format only. If options
// has no Buckets, the classic buckets are prometheus.DefBuckets, because client_golang creates no classic buckets for
// a histogram with native buckets and without Buckets.
func Histogram(options prometheus.HistogramOpts) prometheus.HistogramOpts {
	if options.Buckets == nil {
		options.Buckets = prometheus.DefBuckets
	}
	if NativeHistograms() {
		options.NativeHistogramBucketFactor, options.NativeHistogramMaxBucketNumber = nativeFactor, nativeMaxBuckets
	}
	return options
}

// NativeHistograms reports whether the feature gate NativeHistograms is enabled. A process that has not registered the
// gate has it disabled.
func NativeHistograms() bool {
	if _, known := utilfeature.DefaultMutableFeatureGate.GetAll()[metricsfeatures.NativeHistograms]; !known {
		return false
	}
	return utilfeature.DefaultFeatureGate.Enabled(metricsfeatures.NativeHistograms)
}

// WithNative returns a histogram with the classic buckets of classic and the native buckets of native. Both
// histograms must have observed the same values.
func WithNative(classic, native prometheus.Metric) prometheus.Metric {
	return bothHistograms{classic, native}
}

type bothHistograms struct {
	prometheus.Metric
	native prometheus.Metric
}

// Write implements prometheus.Metric.
func (b bothHistograms) Write(out *dto.Metric) error {
	if err := b.native.Write(out); err != nil {
		return err
	}
	var classic dto.Metric
	if err := b.Metric.Write(&classic); err != nil {
		return err
	}
	out.Histogram.Bucket = classic.GetHistogram().GetBucket()
	return nil
}
