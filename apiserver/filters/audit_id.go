package filters

import (
	"net/http"

	"quorate.dev/apiserver/request"
)

// auditID sets the Audit-ID of the request, and returns it in the response: the client's, or a generated one.
type auditID struct{ next http.Handler }

const auditIDHeader = "Audit-Id"

func (f auditID) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	if record.AuditID = r.Header.Get(auditIDHeader); record.AuditID == "" {
		record.AuditID = request.NewAuditID()
	}
	if headers := w.Header(); len(headers[auditIDHeader]) == 0 {
		headers[auditIDHeader] = []string{record.AuditID}
	}
	f.next.ServeHTTP(w, r)
}
