package audit

import (
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"

	"quorate.dev/apiserver/request"
)

// The annotations of authorization.
const (
	decisionAnnotation = "authorization.k8s.io/decision"
	reasonAnnotation   = "authorization.k8s.io/reason"
)

// AnnotateDecision adds the decision of authorization, or that it failed if decision is empty.
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
