package observed

import (
	"strings"
	"testing"
)

func TestParseEncryption(t *testing.T) {
	for metrics, want := range map[string]string{
		"": "",
		"x 1\napiserver_encryption_config_controller_last_config_info{apiserver_id_hash=\"sha256:a\",hash=\"sha256:b\"} 1\ny 2\n": "sha256:b",
		"apiserver_encryption_config_controller_last_config_info{hash=\"sha256:b\",apiserver_id_hash=\"sha256:a\"} 1":             "sha256:b",
	} {
		if got, err := parseEncryption(strings.NewReader(metrics)); got != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", metrics, got, err, want)
		}
	}
}
