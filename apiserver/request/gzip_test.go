package request

import (
	"net/http/httptest"
	"testing"

	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
)

func TestCompresses(t *testing.T) {
	for header, want := range map[string]bool{
		"gzip": true, "deflate, gzip": true, "gzip,br": true,
		"": false, "br": false, "*": false, "gzip;q=0": false, "gzip;q=1": false, "x-gzip": false,
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Accept-Encoding", header)
		if got := Compresses(r, CompressAbove+1); got != want {
			t.Errorf("%q: got %v", header, got)
		}
		if Compresses(r, CompressAbove) {
			t.Errorf("%q: a small answer is compressed", header)
		}
	}
}

func TestCompressionIsDisabled(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate, features.APIResponseCompression, false)
	r := httptest.NewRequestWithContext(t.Context(), "GET", "/", nil)
	r.Header.Set("Accept-Encoding", "gzip")
	if Compresses(r, CompressAbove+1) {
		t.Error("compressed")
	}
}
