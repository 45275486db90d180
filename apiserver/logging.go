package apiserver

import (
	"io"
	"log/slog"
	"math"
	"strconv"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"quorate.dev/apiserver/config"
)

// newLogger returns a logger that writes one structured line per event. Its verbosity can be changed later.
func newLogger(w io.Writer, c config.Logging) (logr.Logger, *verbosity) {
	level := &verbosity{}
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

// verbosity is the verbosity of this server's logger and of klog, which is global to the process.
type verbosity struct{ level slog.LevelVar }

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
