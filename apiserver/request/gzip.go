package request

import (
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/featuregate"
)

// CompressAbove is the size in bytes above which responses are compressed for clients that accept gzip.
const CompressAbove = 128 << 10

// Compresses reports whether a response of size bytes is compressed.
func Compresses(r *http.Request, size int) bool {
	return size > CompressAbove && acceptsGzip(r, features.APIResponseCompression)
}

// CompressesWatch reports whether the response to a watch with initial events is compressed.
func CompressesWatch(r *http.Request) bool { return acceptsGzip(r, features.WatchListCompression) }

// acceptsGzip reports whether the client accepts gzip and the feature gate is enabled. As in kube-apiserver, a coding
// with a weight, such as "gzip;q=1", does not match.
func acceptsGzip(r *http.Request, gate featuregate.Feature) bool {
	if !utilfeature.DefaultFeatureGate.Enabled(gate) {
		return false
	}
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(coding) == "gzip" {
			return true
		}
	}
	return false
}
