// Package logs reads the logs of containers with the options of the kubelet's logs endpoint. The files contain only the
// output of processes, without the timestamps of a container runtime. The time of a line is the timestamp at its
// beginning, or else the time of the preceding line.
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

// Options select the part of a log to read, and its format.
type Options struct {
	Tail       *int64    // number of last lines; nil: all
	Since      time.Time // lines before this time are skipped; zero: none
	Limit      *int64    // maximum number of bytes; nil: no limit
	Timestamps bool      // prefix each line with its time
	Follow     bool
	// Running reports whether the container of a followed log may write more output. nil: always.
	Running func() bool
}

// errLimit is the error that ends a log at Options.Limit.
var errLimit = errors.New("limit reached")

// checkInterval is the interval of calls to Options.Running.
const checkInterval = time.Second

// Log is an open log with a position. The caller must Close it.
type Log struct {
	file    string
	options Options
	watcher *fsnotify.Watcher // of the log's folder; nil unless the log is followed

	open    *os.File
	lines   *bufio.Reader
	partial []byte    // beginning of a line whose end is not written yet
	written time.Time // time of the last line with a timestamp
	out     io.Writer
	sent    int64
}

// Open opens a log at the position that the options select, before any later output. A file that does not exist counts
// as empty.
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
	l.options.Tail = nil // a file that is created later is read from its beginning
	return l, nil
}

// watch watches the folder of the log, so that it also notices the creation and the rotation of the file.
func (l *Log) watch() error {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return fmt.Errorf("watch %s: %w", l.file, err)
	}
	if err := watcher.Add(filepath.Dir(l.file)); err != nil {
		watcher.Close()
		return fmt.Errorf("watch %s: %w", l.file, err)
	}
	l.watcher = watcher
	return nil
}

// Copy writes the log to w. It follows a followed log until ctx is done or the container has terminated.
func (l *Log) Copy(ctx context.Context, w io.Writer, clock clock.WithTicker) error {
	l.out = w
	if l.watcher != nil {
		return ended(l.follow(ctx, clock))
	}
	return ended(l.read())
}

// Close closes the file and the watcher of the log.
func (l *Log) Close() {
	if l.watcher != nil {
		l.watcher.Close()
	}
	l.close()
}

// ended returns nil for the error that ends a log normally.
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

// follow reads the log whenever it has changed.
func (l *Log) follow(ctx context.Context, clock clock.WithTicker) error {
	ticker := clock.NewTicker(checkInterval)
	defer ticker.Stop()
	for {
		more := l.options.Running == nil || l.options.Running() // before reading, so that the last output is read
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

// replaced reports whether another file has replaced the open one: the log was rotated.
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

// read sends all lines up to the present end of the file.
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

// begin opens the file, if it exists, at the first line that Options.Tail selects.
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

// startOf returns the offset at which the last n lines of a file begin.
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
			if piece[i] != '\n' || from+int64(i) == end-1 { // the newline at the end of the file begins no line
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

// send sends the line in partial if the options select it.
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

// marks are the texts that precede the time in log lines.
var marks = [][]byte{[]byte(`time=`), []byte(`"time":"`), []byte(`"ts":"`)}

// TimeOf returns the time at the beginning of a log line.
func TimeOf(line []byte) (time.Time, bool) {
	const near = 64 // bytes; a later time is part of the message
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
