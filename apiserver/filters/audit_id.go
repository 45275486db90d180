package filters

import (
	"encoding/binary"
	"math/rand/v2"
	"net/http"

	"github.com/google/uuid"

	"quorate.dev/apiserver/request"
)

// auditID returns the client's Audit-ID, or a generated one, in the response.
type auditID struct{ next http.Handler }

const auditIDHeader = "Audit-Id"

func (f auditID) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	if record.AuditID = r.Header.Get(auditIDHeader); record.AuditID == "" {
		record.AuditID = newAuditID()
	}
	if headers := w.Header(); len(headers[auditIDHeader]) == 0 {
		headers[auditIDHeader] = []string{record.AuditID}
	}
	f.next.ServeHTTP(w, r)
}

// newAuditID returns a random UUID. It must be unique but not secret, so that a fast generator suffices.
func newAuditID() string {
	var id uuid.UUID
	binary.LittleEndian.PutUint64(id[:8], rand.Uint64())
	binary.LittleEndian.PutUint64(id[8:], rand.Uint64())
	id[6] = id[6]&0x0f | 0x40 // version 4
	id[8] = id[8]&0x3f | 0x80 // variant 10
	return id.String()
}
