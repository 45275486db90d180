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

// Log is one client's place in a log.
type Log struct {
	file    string
	options Options
	watcher *fsnotify.Watcher // of a log that is followed

	open    *os.File
	lines   *bufio.Reader
	partial []byte    // of a line that is being written
	written time.Time // of the last line that had a time
	out     io.Writer
	sent    int64
}

// Open finds the place where a log is to be shown from: what is written from now on is behind it. A file that is not there
// is empty.
func Open(file string, options Options) (*Log, error) {
	l := &Log{file: file, options: options}
	if options.Follow {
		if err := l.watch(); err != nil {
			return nil, err
		}
	}
	if err := l.begin(); err != nil {
		l.Close()
		return nil, err
	}
	l.options.Tail = nil // a file that comes later is new as a whole
	return l, nil
}

// watch asks to be told when more is written.
func (l *Log) watch() error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watching %s: %w", l.file, err)
	}
	if err := watcher.Add(filepath.Dir(l.file)); err != nil {
		watcher.Close()
		return fmt.Errorf("watching %s: %w", l.file, err)
	}
	l.watcher = watcher
	return nil
}

// Copy writes the log to w. Following ends with ctx, or with the container.
func (l *Log) Copy(ctx context.Context, w io.Writer, clock clock.WithTicker) error {
	l.out = w
	if l.watcher != nil {
		return ended(l.follow(ctx, clock))
	}
	return ended(l.read())
}

// Close gives up the place.
func (l *Log) Close() {
	if l.watcher != nil {
		l.watcher.Close()
	}
	l.close()
}

// ended is nil for a log that ended because nothing more was wanted.
func ended(err error) error {
	if errors.Is(err, errLimit) {
		return nil
	}
	return err
}

func (l *Log) close() {
	if l.open != nil {
		_ = l.open.Close()
	}
}

// follow reads what is there, and again whenever there may be more.
func (l *Log) follow(ctx context.Context, clock clock.WithTicker) error {
	ticker := clock.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		more := l.options.Running == nil || l.options.Running() // before reading: what was written until then is shown
		if err := l.read(); err != nil || !more {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-l.watcher.Errors:
			return err
		case <-ticker.C():
		case event := <-l.watcher.Events:
			if event.Name == l.file && event.Has(fsnotify.Create) && l.replaced() {
				l.close()
				l.open, l.partial = nil, nil
			}
		}
	}
}

// replaced reports whether the open file was put aside and another one has its name.
func (l *Log) replaced() bool {
	if l.open == nil {
		return false
	}
	open, err := l.open.Stat()
	if err != nil {
		return false
	}
	present, err := os.Stat(l.file)
	return err == nil && !os.SameFile(open, present)
}

// read sends everything up to the file's present end.
func (l *Log) read() error {
	if l.open == nil {
		if err := l.begin(); err != nil || l.open == nil {
			return err
		}
	}
	for {
		line, err := l.lines.ReadBytes('\n')
		l.partial = append(l.partial, line...)
		if errors.Is(err, io.EOF) {
			if !l.options.Follow && len(l.partial) > 0 {
				return l.send()
			}
			return nil
		}
		if err != nil {
			return err
		}
		if err := l.send(); err != nil {
			return err
		}
	}
}

// begin opens the file, at the first of the last lines that are wanted.
func (l *Log) begin() error {
	file, err := os.Open(l.file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	l.open, l.lines = file, bufio.NewReader(file)
	if l.options.Tail == nil {
		return nil
	}
	start, err := startOf(file, *l.options.Tail)
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
func (l *Log) send() error {
	line := l.partial
	l.partial = nil
	if at, ok := TimeOf(line); ok {
		l.written = at
	}
	if !l.written.IsZero() && l.written.Before(l.options.Since) {
		return nil
	}
	if l.options.Timestamps && !l.written.IsZero() {
		line = append([]byte(l.written.UTC().Format(time.RFC3339Nano)+" "), line...)
	}
	limit := l.options.Limit
	if limit != nil && l.sent+int64(len(line)) >= *limit {
		_, err := l.out.Write(line[:*limit-l.sent])
		return errors.Join(err, errLimit)
	}
	l.sent += int64(len(line))
	_, err := l.out.Write(line)
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
