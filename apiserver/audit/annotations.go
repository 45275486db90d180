package audit

import (
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"

	"quorate.dev/apiserver/request"
)

// These are the audit annotations of authorization.
const (
	decisionAnnotation = "authorization.k8s.io/decision"
	reasonAnnotation   = "authorization.k8s.io/reason"
)

// AnnotateDecision annotates the audit event with the decision of authorization. An empty decision means that
// authorization failed with an error.
func AnnotateDecision(record *request.Record, decision, reason string) {
	if !record.Audits(auditapi.LevelMetadata) {
		return
	}
	if decision == "" {
		audit.AddAuditAnnotation(record, reasonAnnotation, "internal error")
		return
	}
	audit.AddAuditAnnotations(record, decisionAnnotation, decision, reasonAnnotation, reason)
}
