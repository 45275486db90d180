package apiserver

import (
	"context"
	"log/slog"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
)

// byFile is a handler with a higher verbosity for some source files, which --vmodule selects.
type byFile struct {
	// Handler writes records of every level.
	slog.Handler
	level slog.Leveler
	files []fileLevel
}

// fileLevel is the level of the files whose names, without directory and .go, match a pattern of filepath.Match.
type fileLevel struct {
	pattern string
	level   slog.Level
}

// upstreamFiles has kube-apiserver's names of files that users of --vmodule know.
var upstreamFiles = map[string]string{"access_log": "httplog"}

// parseFileLevels parses "pattern=verbosity,...", which package config has validated.
func parseFileLevels(vmodule string) []fileLevel {
	var files []fileLevel
	for item := range strings.SplitSeq(vmodule, ",") {
		pattern, verbosity, _ := strings.Cut(item, "=")
		if number, err := strconv.Atoi(verbosity); err == nil {
			files = append(files, fileLevel{pattern, slog.Level(-number)})
		}
	}
	return files
}

// Enabled implements slog.Handler. It reports whether any file has the level; Handle then checks the file of the
// record.
func (h byFile) Enabled(_ context.Context, level slog.Level) bool {
	for _, file := range h.files {
		if level >= file.level {
			return true
		}
	}
	return level >= h.level.Level()
}

// Handle implements slog.Handler.
func (h byFile) Handle(ctx context.Context, record slog.Record) error {
	if record.Level < h.level.Level() && !h.raised(record) {
		return nil
	}
	return h.Handler.Handle(ctx, record)
}

func (h byFile) raised(record slog.Record) bool {
	frame, _ := runtime.CallersFrames([]uintptr{record.PC}).Next()
	name := strings.TrimSuffix(filepath.Base(frame.File), ".go")
	for _, file := range h.files {
		if file.matches(name) || file.matches(upstreamFiles[name]) {
			return record.Level >= file.level
		}
	}
	return false
}

func (f fileLevel) matches(name string) bool {
	matches, err := filepath.Match(f.pattern, name)
	return err == nil && matches && name != ""
}

// WithAttrs implements slog.Handler.
func (h byFile) WithAttrs(attributes []slog.Attr) slog.Handler {
	return byFile{h.Handler.WithAttrs(attributes), h.level, h.files}
}

// WithGroup implements slog.Handler.
func (h byFile) WithGroup(name string) slog.Handler {
	return byFile{h.Handler.WithGroup(name), h.level, h.files}
}
