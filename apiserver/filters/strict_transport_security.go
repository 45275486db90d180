package filters

import (
	"net/http"
	"strings"
)

// strictTransportSecurity sets the header Strict-Transport-Security to --strict-transport-security-directives.
type strictTransportSecurity struct {
	next  http.Handler
	value []string
}

func newStrictTransportSecurity(next http.Handler, directives []string) http.Handler {
	if len(directives) == 0 {
		return next
	}
	return strictTransportSecurity{next: next, value: []string{strings.Join(directives, "; ")}}
}

func (f strictTransportSecurity) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if headers := w.Header(); len(headers["Strict-Transport-Security"]) == 0 {
		headers["Strict-Transport-Security"] = f.value
	}
	f.next.ServeHTTP(w, r)
}
