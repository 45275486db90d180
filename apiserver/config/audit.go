package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// Audit configures the audit log. Requests are audited if there are a policy and at least one backend.
type Audit struct {
	PolicyFile string
	Log        AuditLog
	Webhook    AuditWebhook
}

// AuditLog configures the backend that writes events to a file.
type AuditLog struct {
	Path       string // "-": standard output; empty: no file
	MaxAge     int    // maximum age of rotated files in days; 0: no limit
	MaxBackups int    // maximum number of rotated files; 0: no limit
	MaxSize    int    // size in megabytes at which the file is rotated; 0: no rotation
	Format     string // "json" or "legacy"
	Compress   bool   // compress rotated files
	AuditBackend
}

// AuditWebhook configures the backend that sends events to a server.
type AuditWebhook struct {
	ConfigFile     string // file with a kubeconfig; empty: no webhook
	InitialBackoff time.Duration
	AuditBackend
}

// AuditBackend is the part of the configuration that both backends have.
type AuditBackend struct {
	Mode     string
	Batch    AuditBatch // used in mode AuditBatchMode
	Truncate AuditTruncate
	Version  string // API version of the written events
}

// AuditBatch configures the asynchronous delivery of events.
type AuditBatch struct {
	BufferSize     int // maximum number of buffered events; further events are dropped
	MaxSize        int // maximum number of events in a batch
	MaxWait        time.Duration
	ThrottleEnable bool
	ThrottleQPS    float32 // batches per second
	ThrottleBurst  int
}

// AuditTruncate bounds the sizes of events and batches, in bytes.
type AuditTruncate struct {
	Enabled      bool
	MaxBatchSize int64
	MaxEventSize int64
}

// These are the modes of an audit backend.
const (
	// AuditBatchMode delivers events asynchronously.
	AuditBatchMode = "batch"
	// AuditBlockingMode blocks a request until its events have been delivered.
	AuditBlockingMode = "blocking"
	// AuditBlockingStrictMode is AuditBlockingMode, in which a request also fails if its event of the stage
	// RequestReceived cannot be delivered.
	AuditBlockingStrictMode = "blocking-strict"
)

var auditModes = []string{AuditBatchMode, AuditBlockingMode, AuditBlockingStrictMode}

// These are the formats of the audit log.
const (
	AuditJSON   = "json"
	AuditLegacy = "legacy"
)

// auditFormats are the formats in the order of kube-apiserver's error text.
var auditFormats = []string{AuditLegacy, AuditJSON}

var auditVersion = schema.GroupVersion{Group: "audit.k8s.io", Version: "v1"}

// defaultAudit returns kube-apiserver's default configuration.
func defaultAudit() Audit {
	const buffer, backoff = 10_000, 10 * time.Second
	truncate := AuditTruncate{MaxBatchSize: 10 << 20, MaxEventSize: 100 << 10}
	return Audit{
		Log: AuditLog{
			MaxAge: 366, MaxBackups: 100, MaxSize: 100, Format: AuditJSON,
			AuditBackend: AuditBackend{
				Mode: AuditBlockingMode, Batch: AuditBatch{BufferSize: buffer, MaxSize: 1}, Truncate: truncate,
				Version: auditVersion.String(),
			},
		},
		Webhook: AuditWebhook{
			InitialBackoff: backoff,
			AuditBackend: AuditBackend{
				Mode: AuditBatchMode, Truncate: truncate, Version: auditVersion.String(),
				Batch: AuditBatch{
					BufferSize: buffer, MaxSize: 400, MaxWait: 30 * time.Second, ThrottleEnable: true,
					ThrottleQPS: 10, ThrottleBurst: 15,
				},
			},
		},
	}
}

func (a *Audit) flags(f *pflag.FlagSet) {
	l, w := &a.Log, &a.Webhook
	stringFlag(f, &a.PolicyFile, "audit-policy-file", "File with the audit policy. Without it, no request is audited.")
	stringFlag(f, &l.Path, "audit-log-path", "File to which audit events are written; -: standard output.")
	intFlag(f, &l.MaxAge, "audit-log-maxage", "Number of days for which rotated audit log files are kept; 0: no limit.")
	intFlag(f, &l.MaxBackups, "audit-log-maxbackup", "Maximum number of rotated audit log files; 0: no limit.")
	intFlag(f, &l.MaxSize, "audit-log-maxsize", "Size in megabytes at which the audit log file is rotated; 0: never.")
	stringFlag(f, &l.Format, "audit-log-format",
		"Format of the audit log: json, or legacy, which is one line of text per event.")
	boolFlag(f, &l.Compress, "audit-log-compress", "Compress rotated audit log files with gzip.")
	l.AuditBackend.flags(f, "log")
	stringFlag(f, &w.ConfigFile, "audit-webhook-config-file", "Kubeconfig of the server to which audit events are sent.")
	durationFlag(f, &w.InitialBackoff, "audit-webhook-initial-backoff",
		"Delay before a failed audit webhook request is retried.")
	durationFlag(f, &w.InitialBackoff, "audit-webhook-batch-initial-backoff",
		"Delay before a failed audit webhook request is retried.")
	f.Lookup("audit-webhook-batch-initial-backoff").Deprecated = "Deprecated, use --audit-webhook-initial-backoff instead."
	w.AuditBackend.flags(f, "webhook")
}

func (b *AuditBackend) flags(f *pflag.FlagSet, backend string) {
	prefix := "audit-" + backend + "-"
	stringFlag(f, &b.Mode, prefix+"mode", "How audit events are delivered: batch, blocking or blocking-strict.")
	intFlag(f, &b.Batch.BufferSize, prefix+"batch-buffer-size",
		"Maximum number of buffered audit events in batch mode; more are dropped.")
	intFlag(f, &b.Batch.MaxSize, prefix+"batch-max-size", "Maximum number of audit events in a batch.")
	durationFlag(f, &b.Batch.MaxWait, prefix+"batch-max-wait",
		"Maximum time before a batch that is not full is delivered.")
	boolFlag(f, &b.Batch.ThrottleEnable, prefix+"batch-throttle-enable", "Limit the rate of batches.")
	f.Float32Var(&b.Batch.ThrottleQPS, prefix+"batch-throttle-qps", b.Batch.ThrottleQPS,
		"Maximum average number of batches per second.")
	intFlag(f, &b.Batch.ThrottleBurst, prefix+"batch-throttle-burst",
		"Maximum number of batches in a burst that follows a period with a lower rate.")
	boolFlag(f, &b.Truncate.Enabled, prefix+"truncate-enabled", "Limit the size of audit events and batches.")
	f.Int64Var(&b.Truncate.MaxBatchSize, prefix+"truncate-max-batch-size", b.Truncate.MaxBatchSize,
		"Approximate maximum size of a batch in bytes; larger ones are split.")
	f.Int64Var(&b.Truncate.MaxEventSize, prefix+"truncate-max-event-size", b.Truncate.MaxEventSize,
		"Maximum size of an audit event in bytes; larger ones lose request and response and, if still too large, are "+
			"dropped.")
	stringFlag(f, &b.Version, prefix+"version", "API version of delivered audit events.")
}

// Enabled reports whether requests are audited.
func (a *Audit) Enabled() bool {
	return a.PolicyFile != "" && (a.Log.Path != "" || a.Webhook.ConfigFile != "")
}

// validate returns kube-apiserver's errors. It does not validate the options of a backend that is not used.
func (a *Audit) validate() []error {
	var errs []error
	if l := &a.Log; l.Path != "" {
		errs = append(errs, l.AuditBackend.validate("log")...)
		if !slices.Contains(auditFormats, l.Format) {
			errs = append(errs,
				fmt.Errorf("invalid audit log format %s, allowed formats are %q", l.Format, strings.Join(auditFormats, ",")))
		}
		for _, limit := range []struct {
			flag  string
			value int
		}{{"maxage", l.MaxAge}, {"maxbackup", l.MaxBackups}, {"maxsize", l.MaxSize}} {
			if limit.value < 0 {
				errs = append(errs, fmt.Errorf("--audit-log-%s %v can't be a negative number", limit.flag, limit.value))
			}
		}
	}
	if a.Webhook.ConfigFile != "" {
		errs = append(errs, a.Webhook.AuditBackend.validate("webhook")...)
	}
	return errs
}

func (b *AuditBackend) validate(backend string) []error {
	errs := []error{b.validateMode(backend), b.validateTruncate(backend), b.validateVersion()}
	return slices.DeleteFunc(errs, func(err error) bool { return err == nil })
}

func (b *AuditBackend) validateMode(backend string) error {
	batch := &b.Batch
	switch {
	case !slices.Contains(auditModes, b.Mode):
		return fmt.Errorf("invalid audit %s mode %s, allowed modes are %q", backend, b.Mode, strings.Join(auditModes, ","))
	case b.Mode != AuditBatchMode:
		return nil
	case batch.BufferSize <= 0:
		return fmt.Errorf("invalid audit batch %s buffer size %v, must be a positive number", backend, batch.BufferSize)
	case batch.MaxSize <= 0:
		return fmt.Errorf("invalid audit batch %s max batch size %v, must be a positive number", backend, batch.MaxSize)
	case batch.ThrottleEnable && batch.ThrottleQPS <= 0:
		return fmt.Errorf("invalid audit batch %s throttle QPS %v, must be a positive number", backend, batch.ThrottleQPS)
	case batch.ThrottleEnable && batch.ThrottleBurst <= 0:
		return fmt.Errorf("invalid audit batch %s throttle burst %v, must be a positive number", backend, batch.ThrottleBurst)
	}
	return nil
}

func (b *AuditBackend) validateTruncate(backend string) error {
	event, batch := b.Truncate.MaxEventSize, b.Truncate.MaxBatchSize
	if event <= 0 {
		return fmt.Errorf("invalid audit truncate %s max event size %v, must be a positive number", backend, event)
	}
	if batch < event {
		return fmt.Errorf("invalid audit truncate %s max batch size %v, must be greater than max event size (%v)",
			backend, batch, event)
	}
	return nil
}

func (b *AuditBackend) validateVersion() error {
	version, err := schema.ParseGroupVersion(b.Version)
	if err != nil {
		return err
	}
	if version != auditVersion {
		return fmt.Errorf("invalid group version, allowed versions are %q", []schema.GroupVersion{auditVersion})
	}
	return nil
}
