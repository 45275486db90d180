// Package audit records requests according to an audit policy. Policy, events and backends are upstream's; this
// package composes them from flags and fills events from this server's state of a request.
//
// The event of a request is request.Record.AuditContext. It exists before authentication, so that authenticators can
// annotate it. Auditor.Begin evaluates the policy when the user is known. Response objects are the encodings that
// responses share, and are recorded only if the level of the event includes them.
package audit

import (
	"fmt"
	"net/http"

	"k8s.io/apimachinery/pkg/util/net"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/audit/policy"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/request"
)

// Auditor creates the audit events of one server.
type Auditor struct {
	policy  audit.PolicyRuleEvaluator
	backend audit.Backend
	// maxObject is the value of request.AuditConfig.MaxObject.
	maxObject int64
	userAgent string
	stop      chan struct{}
}

// Options are the dependencies of an Auditor.
type Options struct {
	// Dial connects to the webhook; nil connects directly.
	Dial net.DialFunc
	// UserAgent is the user agent in the events of the server's own writes.
	UserAgent string
	// MemoryLimit is the memory that the process may use, in bytes; 0: no limit.
	MemoryLimit int64
}

// New returns an auditor, or nil if nothing is audited. As in kube-apiserver, invalid files prevent the start, and a
// backend without a policy is ignored.
func New(c config.Audit, options Options) (*Auditor, error) {
	var evaluator audit.PolicyRuleEvaluator
	if c.PolicyFile != "" {
		loaded, err := policy.LoadPolicyFromFile(c.PolicyFile)
		if err != nil {
			return nil, fmt.Errorf("loading audit policy file: %w", err)
		}
		evaluator = policy.NewPolicyRuleEvaluator(loaded)
	}
	writer, err := openLog(c.Log)
	if err != nil {
		return nil, err
	}
	if !c.Enabled() {
		return nil, nil
	}
	var backends []audit.Backend
	if writer != nil {
		backends = append(backends, logBackend(c.Log, writer))
	}
	if c.Webhook.ConfigFile != "" {
		webhook, err := webhookBackend(c.Webhook, options)
		if err != nil {
			return nil, err
		}
		backends = append(backends, webhook)
	}
	return &Auditor{
		policy: evaluator, backend: audit.Union(backends...), maxObject: maxObject(c), userAgent: options.UserAgent,
		stop: make(chan struct{}),
	}, nil
}

// Run starts the backends. The caller must call Shutdown.
func (a *Auditor) Run() error {
	if err := a.backend.Run(a.stop); err != nil {
		return fmt.Errorf("run the audit backend: %w", err)
	}
	return nil
}

// Shutdown delivers buffered events and stops the backends. It must not be called while requests are served.
func (a *Auditor) Shutdown() {
	close(a.stop)
	a.backend.Shutdown()
}

// Begin evaluates the policy for a request, whose Attributes must be set, and reports whether the request is audited.
func (a *Auditor) Begin(record *request.Record, r *http.Request) (bool, error) {
	record.Audit = request.AuditConfig{
		RequestAuditConfig: a.policy.EvaluatePolicyRule(&record.Attributes), MaxObject: a.maxObject,
	}
	audit.ObservePolicyLevel(record, record.Audit.Level)
	if !record.Audits(auditapi.LevelMetadata) {
		return false, nil
	}
	if err := record.AuditContext().Init(record.Audit.RequestAuditConfig, a.backend); err != nil {
		return false, err
	}
	audit.LogRequestMetadata(record, r, record.Received, &record.Attributes)
	return true, nil
}
