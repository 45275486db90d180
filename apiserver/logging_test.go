package apiserver

import (
	"bytes"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	testingclock "k8s.io/utils/clock/testing"

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
		logger, _ := newLogger(&written, io.Discard, config.Logging{Format: "text", Verbosity: c.level, VModule: c.vmodule})
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

// TestVModuleOfAccessLog: the pattern by which kube-apiserver logs requests works here, too.
func TestVModuleOfAccessLog(t *testing.T) {
	for _, pattern := range []string{"httplog", "http*", "access_log"} {
		if files := parseFileLevels(pattern + "=3"); !files[0].matches("access_log") &&
			!files[0].matches(upstreamFiles["access_log"]) {
			t.Errorf("%s does not match the access log", pattern)
		}
	}
	if _, err := os.Stat("filters/access_log.go"); err != nil {
		t.Error(err)
	}
}

// TestBlockedLog blocks a write of a line for longer than permitted.
func TestBlockedLog(t *testing.T) {
	reader, writer := io.Pipe()
	now := testingclock.NewFakeClock(time.Now())
	w := &logWriter{Writer: writer, clock: now}
	written := make(chan struct{})
	go func() {
		defer close(written)
		_, _ = w.Write([]byte("line\n"))
	}()
	if _, err := reader.Read(make([]byte, 1)); err != nil { // the write has begun
		t.Fatal(err)
	}
	now.Step(blockedAfter)
	if err := w.Blocked(t.Context()); err != nil {
		t.Errorf("blocked after %v: %v", blockedAfter, err)
	}
	now.Step(time.Second)
	if err := w.Blocked(t.Context()); err == nil {
		t.Error("not blocked")
	}
	if _, err := reader.Read(make([]byte, 100)); err != nil {
		t.Fatal(err)
	}
	<-written
	if err := w.Blocked(t.Context()); err != nil {
		t.Errorf("still blocked after the write: %v", err)
	}
}

// TestSplitLog checks that a split log has its errors in one stream and its other lines in another stream, and that
// the second stream is buffered until it is flushed.
func TestSplitLog(t *testing.T) {
	for _, format := range []string{"text", "json"} {
		for _, buffer := range []int64{0, 300} {
			c := config.Default().Logging
			routing := &c.Options.Text.OutputRoutingOptions
			if c.Format = format; format == "json" {
				routing = &c.Options.JSON.OutputRoutingOptions
			}
			routing.SplitStream = true
			if err := routing.InfoBufferSize.Set(strconv.FormatInt(buffer, 10)); err != nil {
				t.Fatal(err)
			}
			var failures, info bytes.Buffer
			logger, level := newLogger(&failures, &info, c)
			logger.Info("level=ERROR,\"level\":\"ERROR\"")
			logger.Error(nil, "broken")
			if written := info.Len() > 0; written != (buffer == 0) {
				t.Errorf("%s with a buffer of %d bytes: got %q", format, buffer, info.String())
			}
			for range 3 { // exceeds the buffer
				logger.Info(strings.Repeat("x", 100))
			}
			if !strings.HasSuffix(info.String(), "\n") {
				t.Errorf("%s with a buffer of %d bytes: the last line of %q is incomplete", format, buffer, info.String())
			}
			level.split.flush()
			if lines := strings.Count(info.String(), "\n"); lines != 4 {
				t.Errorf("%s with a buffer of %d bytes: %d lines, want 4", format, buffer, lines)
			}
			if got := failures.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "broken") {
				t.Errorf("%s: got the errors %q", format, got)
			}
		}
	}
}
