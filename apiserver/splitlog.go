package apiserver

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"sync"
	"time"
)

// maxInfoBuffer bounds the buffer of a splitLog in bytes, as in component-base.
const maxInfoBuffer = 2 << 30

// splitLog writes lines of errors to one stream, and all other lines to another one, which may be buffered. As in
// kube-apiserver, the streams are not ordered among each other.
type splitLog struct {
	errors io.Writer
	// separator and level begin the second field of the lines of errors. The first field is the time.
	separator, level []byte

	mu   sync.Mutex
	info *bufio.Writer
	// unbuffered makes Write flush info.
	unbuffered bool
}

func newSplitLog(errors, info io.Writer, format string, buffer int64) *splitLog {
	s := &splitLog{errors: errors, separator: []byte(" "), level: []byte("level=ERROR"), unbuffered: buffer <= 0}
	if format == "json" {
		s.separator, s.level = []byte(","), []byte(`"level":"ERROR"`)
	}
	s.info = bufio.NewWriterSize(info, int(min(buffer, maxInfoBuffer)))
	return s
}

// Write implements io.Writer for one line. A line that does not fit into the buffer is preceded by the lines there, so
// that no line is written in parts.
func (s *splitLog) Write(line []byte) (int, error) {
	if _, rest, _ := bytes.Cut(line, s.separator); bytes.HasPrefix(rest, s.level) {
		return s.errors.Write(line)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(line) > s.info.Available() {
		if err := s.info.Flush(); err != nil {
			return 0, err
		}
	}
	written, err := s.info.Write(line)
	if err == nil && s.unbuffered {
		err = s.info.Flush()
	}
	return written, err
}

// flush writes the buffered lines. A nil splitLog has none.
func (s *splitLog) flush() {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_ = s.info.Flush() // nothing can be logged about a log that cannot be written
}

// flushEvery writes the buffered lines at an interval until ctx ends, and then again.
func (s *splitLog) flushEvery(ctx context.Context, interval time.Duration) {
	defer s.flush()
	if s == nil || s.unbuffered {
		return
	}
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			s.flush()
		case <-ctx.Done():
			return
		}
	}
}
