package request

import (
	"net/http"
	"strings"

	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
)

// CompressAbove is the size in bytes above which responses are compressed for clients that accept gzip.
const CompressAbove = 128 << 10

// Compresses reports whether a response of size bytes is compressed. As in kube-apiserver, a coding with a weight, such
// as "gzip;q=1", does not match.
func Compresses(r *http.Request, size int) bool {
	if size <= CompressAbove || !utilfeature.DefaultFeatureGate.Enabled(features.APIResponseCompression) {
		return false
	}
	for coding := range strings.SplitSeq(r.Header.Get("Accept-Encoding"), ",") {
		if strings.TrimSpace(coding) == "gzip" {
			return true
		}
	}
	return false
}
