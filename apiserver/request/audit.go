package request

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"math/rand/v2"

	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/audit"
)

// AuditConfig is the audit policy's decision about a request. The zero value means that the request is not audited.
type AuditConfig struct {
	audit.RequestAuditConfig
	// MaxObject is the size in bytes of a response object above which every backend drops it; 0 means no limit.
	MaxObject int64
}

// LocalAddress is the remote address of the server's own requests, which have no connection. It is their source address
// in audit events, like kube-apiserver's for its loopback connection.
const LocalAddress = "127.0.0.1:0"

// NewAuditID returns a random UUID. The UUID must be unique but not secret, so that a fast generator suffices.
func NewAuditID() string {
	var id uuid.UUID
	binary.LittleEndian.PutUint64(id[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(id[8:], rand.Uint64())
	id[6] = id[6]&0x0f | 0x40 // version 4
	id[8] = id[8]&0x3f | 0x80 // variant 10
	return id.String()
}

// AuditContext returns the audit event of the request, which upstream's code annotates. It is created on first use,
// because most requests that are not audited never need it.
func (r *Record) AuditContext() *audit.AuditContext {
	if event := r.auditContext.Load(); event != nil {
		return event
	}
	event := &audit.AuditContext{}
	audit.WithAuditID(auditHolder{r.Context, event}, types.UID(r.AuditID))
	if r.auditContext.CompareAndSwap(nil, event) {
		return event
	}
	return r.auditContext.Load()
}

// auditHolder is a context that contains an audit event.
type auditHolder struct {
	context.Context
	event *audit.AuditContext
}

func (h auditHolder) Value(key any) any {
	if key == auditKey {
		return h.event
	}
	return h.Context.Value(key)
}

// Audits reports whether the audit policy records the request at the given level or higher. It returns false for a nil
// Record.
func (r *Record) Audits(level auditapi.Level) bool {
	return r != nil && r.Audit.Level != "" && r.Audit.Level.GreaterOrEqual(level)
}

// AuditStatus records a Status as the response in the audit event.
func (r *Record) AuditStatus(status *metav1.Status) {
	if !r.Audits(auditapi.LevelMetadata) {
		return
	}
	var object *runtime.Unknown
	if r.Audits(auditapi.LevelRequestResponse) {
		var body bytes.Buffer
		if err := json.NewEncoder(&body).Encode(status); err == nil {
			object = &runtime.Unknown{Raw: body.Bytes(), ContentType: runtime.ContentTypeJSON}
		}
	}
	r.AuditContext().LogResponseObject(status, object)
}

// HoldForAudit holds memory until ReleaseAudit, because the audit event refers to the response object until all
// backends have processed the event.
func (r *Record) HoldForAudit(held *Held) { r.auditMemory = held }

// ReleaseAudit releases the memory of HoldForAudit. It is called after the last stage of the audit event.
func (r *Record) ReleaseAudit() {
	if r.auditMemory != nil {
		r.auditMemory.Release()
	}
}
