// Package logs reads what containers have written, as a kubelet shows it: from a moment or a line on, up to a size, and
// on as it is written. The files hold what processes wrote and nothing more, so the time of a line is the one in it, or in
// the last line before it that has one.
package logs

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/fsnotify/fsnotify"
	"k8s.io/utils/clock"
)

// Options say what of a log is shown.
type Options struct {
	Tail       *int64    // only the last lines
	Since      time.Time // only what was written after; zero: everything
	Limit      *int64    // bytes
	Timestamps bool      // before each line
	Follow     bool
	// Running tells, in a followed log, whether more is to come.
	Running func() bool
}

// errLimit ends a log at its limit.
var errLimit = errors.New("the limit is reached")

// checkInterval is how often a followed log looks whether its container still runs.
const checkInterval = time.Second

// Copy writes a log to w. A file that is not there is empty. Following ends with ctx, or with the container.
func Copy(ctx context.Context, w io.Writer, file string, options Options, clock clock.WithTicker) error {
	r := &reader{file: file, options: options, out: w}
	defer r.close()
	if options.Follow {
		watcher, err := fsnotify.NewWatcher()
		if err != nil {
			return fmt.Errorf("watching %s: %w", file, err)
		}
		defer watcher.Close()
		if err := watcher.Add(filepath.Dir(file)); err != nil {
			return fmt.Errorf("watching %s: %w", file, err)
		}
		return ended(r.follow(ctx, watcher, clock))
	}
	return ended(r.read())
}

// ended is nil for a log that ended because nothing more was wanted.
func ended(err error) error {
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

// reader is one client's place in a log.
type reader struct {
	file    string
	options Options
	out     io.Writer

	open    *os.File
	lines   *bufio.Reader
	partial []byte    // of a line that is being written
	written time.Time // of the last line that had a time
	sent    int64
}

func (r *reader) close() {
	if r.open != nil {
		_ = r.open.Close()
	}
}

// follow reads what is there, and again whenever there may be more.
func (r *reader) follow(ctx context.Context, watcher *fsnotify.Watcher, clock clock.WithTicker) error {
	ticker := clock.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		more := r.options.Running == nil || r.options.Running() // before reading: what was written until then is shown
		if err := r.read(); err != nil || !more {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-watcher.Errors:
			return err
		case <-ticker.C():
		case event := <-watcher.Events:
			if event.Name == r.file && event.Has(fsnotify.Create) { // the former one was put aside
				r.close()
				r.open, r.partial = nil, nil
			}
		}
	}
}

// read sends everything up to the file's present end.
func (r *reader) read() error {
	if r.open == nil {
		if err := r.begin(); err != nil || r.open == nil {
			return err
		}
	}
	for {
		line, err := r.lines.ReadBytes('\n')
		r.partial = append(r.partial, line...)
		if errors.Is(err, io.EOF) {
			if !r.options.Follow && len(r.partial) > 0 {
				return r.send()
			}
			return nil
		}
		if err != nil {
			return err
		}
		if err := r.send(); err != nil {
			return err
		}
	}
}

// begin opens the file, at the first of the last lines that are wanted.
func (r *reader) begin() error {
	file, err := os.Open(r.file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	r.open, r.lines = file, bufio.NewReader(file)
	if r.options.Tail == nil {
		return nil
	}
	start, err := startOf(file, *r.options.Tail)
	r.options.Tail = nil // a file that takes this one's place is new as a whole
	if err != nil {
		return err
	}
	_, err = file.Seek(start, io.SeekStart)
	return err
}

// startOf returns where the last n lines of a file begin.
func startOf(file *os.File, n int64) (int64, error) {
	end, err := file.Seek(0, io.SeekEnd)
	if err != nil || n == 0 {
		return end, err
	}
	block := make([]byte, 64<<10)
	seen := int64(0)
	for at := end; at > 0; {
		from := max(0, at-int64(len(block)))
		piece := block[:at-from]
		if _, err := file.ReadAt(piece, from); err != nil {
			return 0, err
		}
		for i := len(piece) - 1; i >= 0; i-- {
			if piece[i] != '\n' || from+int64(i) == end-1 { // the end of the last line begins none
				continue
			}
			if seen++; seen == n {
				return from + int64(i) + 1, nil
			}
		}
		at = from
	}
	return 0, nil
}

// send sends the line that is complete, if it is wanted.
func (r *reader) send() error {
	line := r.partial
	r.partial = nil
	if at, ok := TimeOf(line); ok {
		r.written = at
	}
	if !r.written.IsZero() && r.written.Before(r.options.Since) {
		return nil
	}
	if r.options.Timestamps && !r.written.IsZero() {
		line = append([]byte(r.written.UTC().Format(time.RFC3339Nano)+" "), line...)
	}
	limit := r.options.Limit
	if limit != nil && r.sent+int64(len(line)) >= *limit {
		_, err := r.out.Write(line[:*limit-r.sent])
		return errors.Join(err, errLimit)
	}
	r.sent += int64(len(line))
	_, err := r.out.Write(line)
	return err
}

// marks are what stands before the time in a line of this project's logs, and others of their kind.
var marks = [][]byte{[]byte(`time=`), []byte(`"time":"`), []byte(`"ts":"`)}

// TimeOf returns the time that a line says it was written at.
func TimeOf(line []byte) (time.Time, bool) {
	const near = 64 // bytes; a time further on is the message's
	head := line[:min(len(line), near)]
	for _, mark := range marks {
		_, rest, found := bytes.Cut(head, mark)
		if !found {
			continue
		}
		if end := bytes.IndexAny(rest, "\" ,\n"); end >= 0 {
			rest = rest[:end]
		}
		if at, err := time.Parse(time.RFC3339Nano, string(rest)); err == nil {
			return at, true
		}
	}
	return time.Time{}, false
}
