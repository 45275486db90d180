package filters

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/request"
)

// deadline sets the deadline of requests that are not long-running: the parameter timeout, but at most
// --request-timeout.
type deadline struct {
	next    http.Handler
	maximum time.Duration
	auditor *audit.Auditor
}

func (f *deadline) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	if record.LongRunning {
		f.next.ServeHTTP(w, r)
		return
	}
	limit := f.maximum
	if strings.Contains(r.URL.RawQuery, "timeout") {
		wanted, err := parseTimeout(record.Query().Get("timeout"))
		if err != nil {
			if auditFailure(f.auditor, w, r, err.Error()) {
				request.WriteError(w, r, err)
			}
			return
		}
		if wanted > 0 && wanted < limit {
			limit = wanted
		}
	}
	ctx, cancel := context.WithDeadline(record.Context, record.Received.Add(limit))
	defer cancel()
	record.Context = ctx
	f.next.ServeHTTP(w, r)
}

// parseTimeout parses the value of the parameter timeout. 0 means that the client asks for no timeout.
func parseTimeout(value string) (time.Duration, error) {
	if value == "" {
		return 0, nil
	}
	wanted, err := time.ParseDuration(value)
	if err != nil {
		return 0, apierrors.NewBadRequest(fmt.Sprintf("invalid timeout specified in the request URL - %s", err.Error()))
	}
	return wanted, nil
}
