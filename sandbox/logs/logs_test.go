package logs

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
)

const written = `begin
time=2026-01-01T00:00:01Z level=INFO msg=a
{"time":"2026-01-01T00:00:02Z","msg":"time=2030-01-01T00:00:00Z"}
  which goes on
{"level":"info","ts":"2026-01-01T00:00:03.5Z"}
the end`

func TestCopy(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, []byte(written), 0o600); err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(written, "\n")
	at := func(seconds int) time.Time { return time.Date(2026, 1, 1, 0, 0, seconds, 0, time.UTC) }
	for name, c := range map[string]struct {
		options Options
		want    string
	}{
		"everything":     {Options{}, written},
		"no lines":       {Options{Tail: ptr.To[int64](0)}, ""},
		"last line":      {Options{Tail: ptr.To[int64](1)}, lines[5]},
		"last lines":     {Options{Tail: ptr.To[int64](3)}, lines[3] + lines[4] + lines[5]},
		"all the lines":  {Options{Tail: ptr.To[int64](6)}, written},
		"more than all":  {Options{Tail: ptr.To[int64](60)}, written},
		"since":          {Options{Since: at(2)}, lines[0] + lines[2] + lines[3] + lines[4] + lines[5]},
		"since later":    {Options{Since: at(3), Tail: ptr.To[int64](2)}, lines[4] + lines[5]},
		"limit":          {Options{Limit: ptr.To[int64](8)}, "begin\nti"},
		"limit of lines": {Options{Limit: ptr.To[int64](6)}, "begin\n"},
		"timestamps": {
			Options{Timestamps: true, Tail: ptr.To[int64](2)},
			"2026-01-01T00:00:03.5Z " + lines[4] + "2026-01-01T00:00:03.5Z the end",
		},
	} {
		t.Run(name, func(t *testing.T) {
			var got bytes.Buffer
			if err := show(t.Context(), &got, file, c.options); err != nil || got.String() != c.want {
				t.Errorf("got %q and %v, want %q", got.String(), err, c.want)
			}
		})
	}
	if err := show(t.Context(), io.Discard, file+"not", Options{}); err != nil {
		t.Errorf("missing file: %v", err)
	}
}

// show opens a log and copies it.
func show(ctx context.Context, w io.Writer, file string, options Options) error {
	log, err := Open(file, options)
	if err != nil {
		return err
	}
	defer log.Close()
	return log.Copy(ctx, w, clock.RealClock{})
}

// TestOpen reads output that is written after Open, even before Copy, and to a file that did not exist.
func TestOpen(t *testing.T) {
	for name, before := range map[string]string{"there": "old\n", "not there": ""} {
		file := filepath.Join(t.TempDir(), "log")
		if before != "" {
			if err := os.WriteFile(file, []byte(before), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		asked := 0
		log, err := Open(file, Options{
			Follow: true, Tail: ptr.To[int64](0), Running: func() bool { asked++; return asked == 1 },
		})
		if err != nil {
			t.Fatal(err)
		}
		defer log.Close()
		if err := os.WriteFile(file, []byte(before+"new\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		var got bytes.Buffer
		if err := log.Copy(t.Context(), &got, clock.RealClock{}); err != nil || got.String() != "new\n" {
			t.Errorf("%s: got %q and %v", name, got.String(), err)
		}
	}
}

// TestFollow follows appended output and rotated files.
func TestFollow(t *testing.T) {
	file := filepath.Join(t.TempDir(), "log")
	write := func(text string) {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		fmt.Fprint(f, text)
	}
	write("one\ntw")
	ctx, cancel := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() { ended <- show(ctx, in, file, Options{Follow: true}) }()
	expect := func(want string) {
		t.Helper()
		got := make([]byte, len(want))
		if _, err := io.ReadFull(out, got); err != nil || string(got) != want {
			t.Fatalf("got %q and %v, want %q", got, err, want)
		}
	}
	expect("one\n")
	write("o\n")
	expect("two\n")
	if err := os.Rename(file, file+".old"); err != nil {
		t.Fatal(err)
	}
	write("three\n")
	expect("three\n")
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
