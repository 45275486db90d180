package apiserver

import (
	"bytes"
	"strings"
	"testing"

	"quorate.dev/apiserver/config"
)

func TestVModule(t *testing.T) {
	for _, c := range []struct {
		vmodule string
		level   int
		want    string
	}{
		{"", 0, "0"},
		{"", 3, "0 3"},
		{"logging_test=3", 0, "0 3"},
		{"logging_*=5", 0, "0 3 5"},
		{"other=5", 0, "0"},
		{"other=5,logging_test=3", 0, "0 3"},
		{"logging_test=0", 3, "0 3"}, // raises, never lowers
	} {
		var written bytes.Buffer
		logger, _ := newLogger(&written, config.Logging{Format: "text", Verbosity: c.level, VModule: c.vmodule})
		logger = logger.WithName("x").WithValues("a", 1)
		for _, level := range []int{0, 3, 5} {
			logger.V(level).Info("line", "level", level)
		}
		var got []string
		for line := range strings.Lines(written.String()) {
			_, level, _ := strings.Cut(strings.TrimSpace(line), "level=INFO")
			got = append(got, level[strings.LastIndexByte(level, '=')+1:])
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("--vmodule=%s --v=%d: got the levels %q, want %q", c.vmodule, c.level, got, c.want)
		}
	}
}
