package config

import "testing"

func TestCheckSkew(t *testing.T) {
	for previous, want := range map[string]string{
		"":        "",
		"v1.37.0": "",
		"v1.37.9": "",
		"v1.36.7": "",
		"v1.38.0": "this API server is Kubernetes 1.37 and the cluster has run v1.38.0: a downgrade to an older minor " +
			"version is not supported; use an image of 1.38 or 1.39",
		"v1.35.2": "this API server is Kubernetes 1.37 and the cluster has run v1.35.2: minor versions cannot be skipped; " +
			"upgrade to an image of 1.36 first",
		"newest": `QUORATE_PREVIOUS_VERSION: could not parse "newest" as version`,
	} {
		got := ""
		if err := CheckSkew(previous); err != nil {
			got = err.Error()
		}
		if got != want {
			t.Errorf("%s: %q, want %q", previous, got, want)
		}
	}
}
