package filters

import (
	"net/http"

	"github.com/google/uuid"

	"quorate.dev/apiserver/request"
)

// auditID takes the client's Audit-ID or makes one, and echoes it.
type auditID struct{ next http.Handler }

const auditIDHeader = "Audit-Id"

func (f auditID) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	if record.AuditID = r.Header.Get(auditIDHeader); record.AuditID == "" {
		record.AuditID = uuid.NewString()
	}
	if headers := w.Header(); len(headers[auditIDHeader]) == 0 {
		headers[auditIDHeader] = []string{record.AuditID}
	}
	f.next.ServeHTTP(w, r)
}
