package apiserver

import (
	"io"
	"log/slog"
	"strconv"

	"github.com/go-logr/logr"
	"k8s.io/klog/v2"

	"quorate.dev/apiserver/config"
)

// newLogger writes one structured line per event. Verbosity 0 shows what an operator of the server must know; it may
// be changed later.
func newLogger(w io.Writer, c config.Logging) (logr.Logger, *verbosity) {
	level := &verbosity{}
	level.level.Set(slog.Level(-c.Verbosity))
	options := &slog.HandlerOptions{Level: &level.level, ReplaceAttr: plainLevel}
	if c.Format == "json" {
		return logr.FromSlogHandler(slog.NewJSONHandler(w, options)), level
	}
	return logr.FromSlogHandler(slog.NewTextHandler(w, options)), level
}

// verbosity is how much is logged, by this server and by upstream's libraries in it.
type verbosity struct{ level slog.LevelVar }

// SetVerbosity implements serving.Verbosity.
func (v *verbosity) SetVerbosity(level uint32) {
	v.level.Set(slog.Level(-int(level)))
	var libraries klog.Level
	if err := libraries.Set(strconv.Itoa(int(level))); err != nil {
		klog.Background().Error(err, "The verbosity of libraries was not set")
	}
}

// plainLevel spells the levels of verbosity as INFO, which is what they are, instead of distances from slog's own.
func plainLevel(_ []string, a slog.Attr) slog.Attr {
	if level, ok := a.Value.Any().(slog.Level); ok && a.Key == slog.LevelKey && level < slog.LevelInfo {
		return slog.Any(slog.LevelKey, slog.LevelInfo)
	}
	return a
}
