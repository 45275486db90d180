package config

import (
	"io"
	"strings"
	"testing"
)

// TestVersionFlag compares the values of --version with verflag's.
func TestVersionFlag(t *testing.T) {
	own := "v" + KubernetesMajor + "." + KubernetesMinor + "." + KubernetesPatch
	for argument, want := range map[string]struct{ value, err string }{
		"--version":                 {value: PrintVersion},
		"--version=true":            {value: PrintVersion},
		"--version=raw":             {value: PrintRawVersion},
		"--version=false":           {},
		"--version=" + own:          {value: own},
		"--version=" + own + "-a+b": {value: own + "-a+b"},
		"--version=v1.2.3":          {err: "must match major/minor/patch of default version"},
		"--version=v1":              {err: "illegal version string"},
		"--version=nonsense":        {err: "invalid syntax"},
	} {
		c := Default()
		flags := c.Flags()
		flags.SetOutput(io.Discard)
		err := flags.Parse([]string{argument})
		if c.API.Version != want.value || (err == nil) != (want.err == "") ||
			err != nil && !strings.Contains(err.Error(), want.err) {
			t.Errorf("%s: %q, %v; want %+v", argument, c.API.Version, err, want)
		}
	}
}
