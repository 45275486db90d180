package audit

import (
	"fmt"
	"io"
	"os"
	"path/filepath"

	"gopkg.in/natefinch/lumberjack.v2"
	"k8s.io/apimachinery/pkg/runtime/schema"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/audit/buffered"
	auditlog "k8s.io/apiserver/plugin/pkg/audit/log"
	"k8s.io/apiserver/plugin/pkg/audit/truncate"

	"quorate.dev/apiserver/config"
)

// openLog returns the writer of the log backend, or nil if there is none. It creates the file, which only its owner can
// read.
func openLog(c config.AuditLog) (io.Writer, error) {
	const directoryMode, fileMode = 0o700, 0o600
	switch c.Path {
	case "":
		return nil, nil
	case "-":
		return os.Stdout, nil
	}
	if err := os.MkdirAll(filepath.Dir(c.Path), directoryMode); err != nil {
		return nil, fmt.Errorf("ensureLogFile: %w", err)
	}
	file, err := os.OpenFile(c.Path, os.O_CREATE|os.O_APPEND|os.O_RDWR, fileMode)
	if err != nil {
		return nil, fmt.Errorf("ensureLogFile: %w", err)
	}
	// The file is not rotated.
	if c.MaxSize == 0 {
		return file, nil
	}
	if err := file.Close(); err != nil {
		return nil, fmt.Errorf("ensureLogFile: %w", err)
	}
	return &lumberjack.Logger{
		Filename: c.Path, MaxSize: c.MaxSize, MaxAge: c.MaxAge, MaxBackups: c.MaxBackups, Compress: c.Compress,
	}, nil
}

func logBackend(c config.AuditLog, writer io.Writer) audit.Backend {
	version := parsedVersion(c.Version)
	var backend audit.Backend = jsonLog{writer}
	if c.Format == config.AuditLegacy {
		backend = auditlog.NewBackend(writer, c.Format, version)
	}
	// Several goroutines of the buffered backend would only contend for the file.
	return truncated(delivered(backend, c.AuditBackend, false), c.Truncate, version)
}

func webhookBackend(c config.AuditWebhook, options Options) (audit.Backend, error) {
	version := parsedVersion(c.Version)
	backoff := webhook.DefaultRetryBackoffWithInitialDelay(c.InitialBackoff)
	backend, err := newWebhook(c.ConfigFile, version, backoff, options)
	if err != nil {
		return nil, fmt.Errorf("initializing audit webhook: %w", err)
	}
	return truncated(delivered(backend, c.AuditBackend, true), c.Truncate, version), nil
}

// parsedVersion parses a version that package config has validated.
func parsedVersion(version string) schema.GroupVersion {
	parsed, _ := schema.ParseGroupVersion(version)
	return parsed
}

// delivered wraps a backend as its mode requires: blocking, blocking strictly, or batching.
func delivered(backend audit.Backend, c config.AuditBackend, async bool) audit.Backend {
	switch c.Mode {
	case config.AuditBlockingStrictMode:
		return backend
	case config.AuditBlockingMode:
		return lenient{backend}
	}
	return buffered.NewBackend(backend, buffered.BatchConfig{
		BufferSize: c.Batch.BufferSize, MaxBatchSize: c.Batch.MaxSize, MaxBatchWait: c.Batch.MaxWait,
		ThrottleEnable: c.Batch.ThrottleEnable, ThrottleQPS: c.Batch.ThrottleQPS, ThrottleBurst: c.Batch.ThrottleBurst,
		AsyncDelegate: async,
	})
}

// lenient ignores the errors of a backend, which the backend has counted and logged.
type lenient struct{ audit.Backend }

// ProcessEvents implements audit.Sink.
func (l lenient) ProcessEvents(events ...*auditapi.Event) bool {
	l.Backend.ProcessEvents(events...)
	return true
}

func (l lenient) String() string { return fmt.Sprintf("ignoreErrors<%s>", l.Backend) }

func truncated(backend audit.Backend, c config.AuditTruncate, version schema.GroupVersion) audit.Backend {
	if !c.Enabled {
		return backend
	}
	return truncate.NewBackend(backend, truncate.Config{
		MaxEventSize: c.MaxEventSize, MaxBatchSize: c.MaxBatchSize,
	}, version)
}

// maxObject returns the size in bytes above which every backend drops an object, or 0 if a backend does not truncate
// events.
func maxObject(c config.Audit) int64 {
	var limit int64
	if c.Log.Path != "" {
		if !c.Log.Truncate.Enabled {
			return 0
		}
		limit = c.Log.Truncate.MaxEventSize
	}
	if c.Webhook.ConfigFile != "" {
		if !c.Webhook.Truncate.Enabled {
			return 0
		}
		limit = max(limit, c.Webhook.Truncate.MaxEventSize)
	}
	return limit
}
