package apiserver

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"math"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/serving"
)

// newLogger returns a logger that writes one structured line for each message, and its verbosity, which can be changed
// later. Lines that are not errors go to info if the configuration splits the log.
func newLogger(destination, info io.Writer, c config.Logging) (logr.Logger, *verbosity) {
	w := &logWriter{Writer: destination, clock: clock.RealClock{}}
	if routing := c.Routing(); routing.SplitStream {
		w.split = newSplitLog(destination, info, c.Format, routing.InfoBufferSize.Value())
		w.Writer = w.split
	}
	level := &verbosity{logWriter: w}
	level.level.Set(slog.Level(-c.Verbosity))
	options := &slog.HandlerOptions{Level: &level.level, ReplaceAttr: plainLevel}
	if c.VModule != "" {
		options.Level = slog.Level(math.MinInt)
		every := slog.NewTextHandler(w, options)
		return logr.FromSlogHandler(byFile{every, &level.level, parseFileLevels(c.VModule)}), level
	}
	if c.Format == "json" {
		return logr.FromSlogHandler(slog.NewJSONHandler(w, options)), level
	}
	return logr.FromSlogHandler(slog.NewTextHandler(w, options)), level
}

// Log is the interface to a server's log in addition to its logger.
type Log interface {
	serving.Verbosity
	// Blocked returns an error while a line cannot be written.
	Blocked(context.Context) error
}

// blockedAfter is the duration of a write after which the log counts as blocked, as in kube-apiserver.
const blockedAfter = 2 * time.Minute

// logWriter records when the current write began. The logger calls Write for one line at a time.
type logWriter struct {
	io.Writer
	clock clock.PassiveClock
	// began is the Unix time in nanoseconds at which the current write began; 0 between writes.
	began atomic.Int64
	split *splitLog // nil: the log is one stream
}

// Write implements io.Writer.
func (w *logWriter) Write(line []byte) (int, error) {
	w.began.Store(w.clock.Now().UnixNano())
	defer w.began.Store(0)
	return w.Writer.Write(line)
}

// Blocked implements Log.
func (w *logWriter) Blocked(context.Context) error {
	if began := w.began.Load(); began != 0 && w.clock.Since(time.Unix(0, began)) > blockedAfter {
		return errors.New("logging blocked")
	}
	return nil
}

// verbosity is the verbosity of this server's logger and of klog, which is global to the process.
type verbosity struct {
	level slog.LevelVar
	*logWriter
}

// SetVerbosity implements serving.Verbosity.
func (v *verbosity) SetVerbosity(level uint32) {
	v.level.Set(slog.Level(-int(level)))
	var libraries klog.Level
	if err := libraries.Set(strconv.Itoa(int(level))); err != nil {
		klog.Background().Error(err, "Failed to set the verbosity of klog")
	}
}

// plainLevel formats the levels of verbosity as INFO instead of slog's "DEBUG+3".
func plainLevel(_ []string, a slog.Attr) slog.Attr {
	if level, ok := a.Value.Any().(slog.Level); ok && a.Key == slog.LevelKey && level < slog.LevelInfo {
		return slog.Any(slog.LevelKey, slog.LevelInfo)
	}
	return a
}
