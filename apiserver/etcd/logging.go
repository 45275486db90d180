package etcd

import (
	"errors"
	"os"
	"strings"

	"github.com/go-logr/logr"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

// newZapLogger returns a logger for etcd that writes to log. Because etcd logs a lot, its info messages have verbosity
// 2 and its warnings 1. Fatal messages panic instead of exiting the process, and panics are errors of type failure.
func newZapLogger(log logr.Logger) *zap.Logger {
	return zap.New(core{log: log.WithName("etcd")}, zap.WithFatalHook(panicHook{log}), zap.WithPanicHook(panicHook{log}))
}

// failure is the value with which etcd panics after a fatal log message: the message, and the error in its fields.
type failure struct {
	message string
	cause   error // nil if the message has no error
}

func (f failure) Error() string {
	if f.cause == nil {
		return f.message
	}
	return f.message + ": " + f.cause.Error()
}

func (f failure) Unwrap() error { return f.cause }

// failureOf returns the failure of a logged message.
func failureOf(message string, fields []zapcore.Field) failure {
	f := failure{message: message}
	for _, field := range fields {
		if cause, ok := field.Interface.(error); ok && field.Type == zapcore.ErrorType {
			f.cause = cause
		}
	}
	return f
}

// entriesLost is part of the message with which raft panics when the leader has evidence that this member had entries
// which its log no longer contains.
const entriesLost = "Was the raft log corrupted, truncated, or lost?"

// panicHook panics with the failure of a message. If raft has lost entries, panicHook instead exits with the exit code
// for lost data: the panic would occur in raft's goroutine, where it cannot be recovered, and would exit the process
// with another code.
type panicHook struct{ log logr.Logger }

// OnWrite implements zapcore.CheckWriteHook. The message is logged already.
func (h panicHook) OnWrite(entry *zapcore.CheckedEntry, fields []zapcore.Field) {
	if strings.Contains(entry.Message, entriesLost) {
		h.log.Error(ErrLost,
			"The log of this member lacks entries that the leader knows it to have acknowledged: remove this member from the "+
				"cluster and let a new member join with an empty directory")
		os.Exit(lostError{}.ExitCode())
	}
	panic(failureOf(entry.Message, fields))
}

// core is a zapcore.Core that writes to a logr.Logger.
type core struct {
	log logr.Logger
}

func verbosity(level zapcore.Level) int {
	switch {
	case level >= zapcore.ErrorLevel:
		return 0
	case level == zapcore.WarnLevel:
		return 1
	case level == zapcore.InfoLevel:
		return 2
	}
	return 4
}

func (c core) Enabled(level zapcore.Level) bool { return c.log.V(verbosity(level)).Enabled() }

func (c core) With(fields []zapcore.Field) zapcore.Core {
	return core{log: c.log.WithValues(keysAndValues(fields)...)}
}

func (c core) Check(entry zapcore.Entry, checked *zapcore.CheckedEntry) *zapcore.CheckedEntry {
	if c.Enabled(entry.Level) {
		return checked.AddCore(entry, c)
	}
	return checked
}

// harmless has the messages that every member logs as errors: its listeners close when it stops, and a new database has
// no term yet.
var harmless = map[string]bool{
	"setting up serving from embedded etcd failed.": true,
	"failed to update storage version":              true,
}

func (c core) Write(entry zapcore.Entry, fields []zapcore.Field) error {
	if entry.Level >= zapcore.ErrorLevel && !harmless[entry.Message] {
		c.log.Error(errors.New(entry.Message), "Problem in etcd", keysAndValues(fields)...)
		return nil
	}
	c.log.V(max(verbosity(entry.Level), verbosity(zapcore.WarnLevel))).Info(entry.Message, keysAndValues(fields)...)
	return nil
}

func (c core) Sync() error { return nil }

func keysAndValues(fields []zapcore.Field) []any {
	encoder := zapcore.NewMapObjectEncoder()
	var pairs []any
	for _, field := range fields {
		field.AddTo(encoder)
		pairs = append(pairs, field.Key, encoder.Fields[field.Key])
	}
	return pairs
}
