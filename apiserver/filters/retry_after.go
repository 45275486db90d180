package filters

import (
	"net/http"
	"strings"

	"quorate.dev/apiserver/request"
)

// retryAfter responds with 429 while a stopping server still listens, so that clients retry with another replica.
// client-go waits for the time in Retry-After before it retries. kube-apiserver's value of 5 seconds exceeds the
// timeout of many requests, although the retry uses a new connection and can therefore succeed immediately; the value
// here is 1 second.
type retryAfter struct {
	next  http.Handler
	drain *request.Drain
}

func (f retryAfter) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !f.drain.Refusing() || isExempt(r) {
		f.next.ServeHTTP(w, r)
		return
	}
	w.Header().Set("Connection", "close")
	w.Header().Set("Retry-After", "1")
	http.Error(w, "The apiserver is shutting down, please try again later.", http.StatusTooManyRequests)
}

// isExempt reports whether a request is served until the server stops: probes, metrics, and the server's own requests.
func isExempt(r *http.Request) bool {
	return isProbe(r.URL.Path) || strings.HasPrefix(r.UserAgent(), "kube-apiserver/")
}

// isProbe reports whether a path is a health check or the metrics.
func isProbe(path string) bool {
	for _, prefix := range [...]string{"/readyz", "/livez", "/healthz", "/metrics"} {
		if strings.HasPrefix(path, prefix) {
			return true
		}
	}
	return false
}
