package metrics

import (
	"os"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
)

// unmixed are the metrics of upstream's mixins that a single server does not export, with the reason.
var unmixed = map[string]string{
	"aggregator_unavailable_apiservice_total": "exists when an extension API server has been unavailable",
	"grpc_server_handling_seconds_bucket":     "etcd exports it only with extensive metrics",
}

// checkMixins checks that a server exports the metrics in testdata/mixins.txt, with the labels that the mixins use.
func checkMixins(t *testing.T, exported map[string]*dto.MetricFamily) {
	t.Helper()
	text, err := os.ReadFile("testdata/mixins.txt")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		if fields[0] == "#" {
			continue
		}
		name := fields[0]
		family := exported[name]
		if family == nil {
			family = exported[histogram(name)]
		}
		switch {
		case family == nil && unmixed[name] == "" && exception(name) == "":
			t.Errorf("%s, which upstream's mixins query, is missing", name)
		case family != nil && unmixed[name] != "":
			t.Errorf("%s is exported, but %s", name, unmixed[name])
		case family != nil:
			for _, label := range fields[1:] {
				if !slices.Contains(labels(family), label) {
					t.Errorf("%s has no label %s, which upstream's mixins use", name, label)
				}
			}
		}
	}
}
