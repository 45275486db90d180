package filters

import (
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/endpoints/metrics"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/request"
)

// accessLogVerbosity is the verbosity from which each request is logged, as in kube-apiserver.
const accessLogVerbosity = 3

// slowFilter is the latency of a filter above which the log line contains it, as in kube-apiserver.
const slowFilter = 100 * time.Millisecond

// accessLog logs each request when it ends, at -v=3 or higher, with kube-apiserver's keys.
type accessLog struct {
	next   http.Handler
	logger logr.Logger
	clock  clock.PassiveClock
}

func (f *accessLog) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	logger := f.logger.V(accessLogVerbosity)
	answer, ok := w.(*response)
	if !ok || !logger.Enabled() {
		f.next.ServeHTTP(w, r)
		return
	}
	answer.log = &responseLog{}
	// These headers are read before the other filters change them.
	agent, contentType := r.UserAgent(), r.Header.Get("Content-Type")
	defer func() { f.write(logger, r, answer, agent, contentType) }()
	f.next.ServeHTTP(w, r)
}

func (f *accessLog) write(logger logr.Logger, r *http.Request, answer *response, agent, contentType string) {
	record := request.From(r.Context())
	values := []any{
		"verb", metrics.NormalizedVerb(r), "URI", r.RequestURI, "latency", f.clock.Since(record.Received),
		"userAgent", agent, "contentType", contentType, "audit-ID", truncatedID(record.AuditID), "srcIP", r.RemoteAddr,
	}
	if flow := &record.Flow; flow.Level != "" {
		values = append(values, "apf_pl", quoted(flow.Level), "apf_fs", quoted(flow.Schema), "apf_iseats", flow.InitialSeats,
			"apf_fseats", flow.FinalSeats, "apf_additionalLatency", flow.AdditionalLatency)
		if flow.Executed > 0 {
			values = append(values, "apf_execution_time", flow.Executed)
		}
	}
	for _, filter := range []struct {
		name string
		took time.Duration
	}{
		{"authentication", record.Latency.Authentication}, {"impersonation", record.Latency.Impersonation},
		{"authorization", record.Latency.Authorization},
	} {
		if filter.took > slowFilter {
			values = append(values, "fl_"+filter.name, filter.took.String())
		}
	}
	logger.Info("HTTP", append(values, answer.logged()...)...)
}

// maxName is the length in bytes to which kube-apiserver truncates the names of flow schemas and priority levels in the
// log.
const maxName = 64

// quoted returns the name of a flow schema or priority level as kube-apiserver logs it.
func quoted(name string) string {
	if len(name) > maxName {
		name = name[:maxName]
	}
	return strconv.Quote(name)
}

// responseLog has the parts of an error response that are logged: the stack at which the status code was sent, and the
// body.
type responseLog struct {
	stack  string
	output strings.Builder
}

// maxStack bounds the logged stack trace and the logged body, in bytes.
const maxStack = 50 << 10

// logsStack reports whether the stack that sent the status code is logged.
func logsStack(status int) bool {
	return (status < http.StatusOK || status >= http.StatusInternalServerError) && status != http.StatusSwitchingProtocols
}

// sent records the stack at which status is sent. A nil *responseLog records nothing.
func (l *responseLog) sent(status int) {
	if l == nil || !logsStack(status) {
		return
	}
	stack := make([]byte, maxStack)
	l.stack = "\n" + string(stack[:runtime.Stack(stack, false)])
}

// wrote records part of the body of an error response.
func (l *responseLog) wrote(part []byte) {
	if l != nil && l.stack != "" && l.output.Len() < maxStack {
		l.output.Write(part[:min(len(part), maxStack)])
	}
}

// logged returns the keys and values of the response for the log line.
func (w *response) logged() []any {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.hijacked {
		return []any{"hijacked", true}
	}
	values := []any{"resp", w.status}
	if w.log.stack != "" {
		values = append(values, "statusStack", w.log.stack)
	}
	if output := w.log.output.String(); output != "" {
		values = append(values, "addedInfo", "logging error output: "+strings.TrimSpace(output))
	}
	return values
}
