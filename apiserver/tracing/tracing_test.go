package tracing

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestLoad(t *testing.T) {
	const head = "kind: TracingConfiguration\napiVersion: apiserver.config.k8s.io/"
	for content, want := range map[string]string{
		head + "v1\nendpoint: collector:4317\nsamplingRatePerMillion: 100": "",
		head + "v1beta1\nsamplingRatePerMillion: 1000000":                  "",
		head + "v1": "",
		head + "v1\nsamplingRatePerMillion: 1000001": "must be less than or equal to one million",
		head + "v1\nsamplingRatePerMillion: -1":      "must be positive",
		head + "v1\nendpoint: http://x:y":            "failed to validate tracing configuration",
		head + "v1\nnonsense: 1":                     `unknown field "nonsense"`,
		head + "v2":                                  "unable to decode tracing configuration data",
	} {
		file := filepath.Join(t.TempDir(), "tracing.yaml")
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := Load(file)
		if (want == "") != (err == nil) || (err != nil && !strings.Contains(err.Error(), want)) {
			t.Errorf("%q: %v, want %q", content, err, want)
		}
	}
	if _, err := Load("/does/not/exist"); err == nil {
		t.Error("a missing file was read")
	}
}
