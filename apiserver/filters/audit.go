package filters

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	auditapi "k8s.io/apiserver/pkg/apis/audit"
	upstream "k8s.io/apiserver/pkg/audit"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/request"
)

// auditRequests creates the audit events of authenticated requests: when a request is received, when the response to a
// long-running request starts, and when the request ends.
type auditRequests struct {
	next    http.Handler
	auditor *audit.Auditor
	metrics *Metrics
	clock   clock.PassiveClock
}

func newAudit(next http.Handler, options Options) http.Handler {
	if options.Auditor == nil {
		return next
	}
	return &auditRequests{next: next, auditor: options.Auditor, metrics: options.Metrics, clock: options.Clock}
}

func (f *auditRequests) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	started := f.clock.Now()
	audited, ok := beginAudit(f.auditor, record, w, r)
	f.metrics.filters.Load().audit.Observe(f.clock.Since(started).Seconds())
	switch {
	case !ok:
		return
	case !audited:
		f.next.ServeHTTP(w, r)
		return
	}
	event := record.AuditContext()
	if !event.ProcessEventStage(record, auditapi.StageRequestReceived) {
		upstream.ApiserverAuditDroppedCounter.WithContext(record).Inc()
		request.WriteInternalError(w, r, errors.New("failed to store audit event"))
		return
	}
	auditStatus(w, record, record.LongRunning)
	defer record.ReleaseAudit()
	defer f.finish(record)
	f.next.ServeHTTP(w, r)
}

// beginAudit starts the audit event of a request. If that fails, it responds with an error and returns false for ok.
func beginAudit(
	auditor *audit.Auditor, record *request.Record, w http.ResponseWriter, r *http.Request,
) (audited, ok bool) {
	fillAttributes(record)
	audited, err := auditor.Begin(record, r)
	if err != nil {
		record.Logger.Error(err, "Creating the audit event failed", "auditID", record.AuditID)
		request.WriteInternalError(w, r, errors.New("failed to create audit event"))
		return false, false
	}
	return audited, true
}

// auditStatus records the handler's first status code in the audit event. If starts is set, the stage ResponseStarted
// is then processed.
func auditStatus(w http.ResponseWriter, record *request.Record, starts bool) {
	answer, ok := w.(*response)
	if !ok {
		return
	}
	event := record.AuditContext()
	answer.writing = &record.Latency.ResponseWrite
	answer.onStatus = func(code int) {
		event.SetEventResponseStatusCode(int32(code))
		if starts {
			event.ProcessEventStage(record, auditapi.StageResponseStarted)
		}
	}
}

// finish processes the last stage of a request's audit event. It propagates a panic of the handler.
func (f *auditRequests) finish(record *request.Record) {
	event := record.AuditContext()
	if reason := recover(); reason != nil {
		defer panic(reason)
		event.SetEventResponseStatus(&metav1.Status{
			Code: http.StatusInternalServerError, Status: metav1.StatusFailure, Reason: metav1.StatusReasonInternalError,
			Message: fmt.Sprintf("APIServer panic'd: %v", reason),
		})
		event.ProcessEventStage(record, auditapi.StagePanic)
		return
	}
	// The handler has sent neither a status code nor a body.
	if event.GetEventResponseStatus() == nil {
		event.SetEventResponseStatus(&metav1.Status{
			Code: http.StatusOK, Status: metav1.StatusSuccess, Message: "Connection closed early",
		})
		if record.LongRunning {
			event.ProcessEventStage(record, auditapi.StageResponseStarted)
		}
	}
	f.annotateLatency(record)
	event.ProcessEventStage(record, auditapi.StageResponseComplete)
}

// slowRequest is the duration of a request above which the audit event has the latencies of its parts, as in
// kube-apiserver.
const slowRequest = 500 * time.Millisecond

// annotateLatency adds the latencies of the parts of a slow request to its audit event.
func (f *auditRequests) annotateLatency(record *request.Record) {
	total := f.clock.Since(record.Received)
	if total <= slowRequest {
		return
	}
	latencies := record.LatencyAnnotations()
	if len(latencies) == 0 {
		return
	}
	latencies["apiserver.latency.k8s.io/total"] = total.String()
	upstream.AddAuditAnnotationsMap(record, latencies)
}

// auditFailure creates the audit event of a request that is rejected before it is authenticated. It reports whether the
// caller may respond, which the caller must do next; otherwise auditFailure has responded with an error.
func auditFailure(auditor *audit.Auditor, w http.ResponseWriter, r *http.Request, message string) bool {
	if auditor == nil {
		return true
	}
	record := request.From(r.Context())
	audited, ok := beginAudit(auditor, record, w, r)
	if audited {
		record.AuditContext().SetEventResponseStatus(&metav1.Status{Message: message})
		auditStatus(w, record, true)
	}
	return ok
}

// attemptedMethods returns the message of the audit event of a request that failed authentication: the kinds of
// credentials that it has.
func attemptedMethods(r *http.Request) string {
	var methods []string
	if _, _, ok := r.BasicAuth(); ok {
		methods = append(methods, "basic")
	}
	header := strings.TrimSpace(r.Header.Get("Authorization"))
	if scheme, _, found := strings.Cut(header, " "); found && strings.EqualFold(scheme, "bearer") {
		methods = append(methods, "bearer")
	}
	if strings.TrimSpace(r.URL.Query().Get("access_token")) != "" {
		methods = append(methods, "access_token")
	}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		methods = append(methods, "x509")
	}
	if len(methods) == 0 {
		return "Authentication failed, no credentials provided"
	}
	return "Authentication failed, attempted: " + strings.Join(methods, ", ")
}

// annotateDeprecation annotates the audit event of a request for a deprecated version of a resource.
func annotateDeprecation(record *request.Record, removedIn string) {
	upstream.AddAuditAnnotation(record, "k8s.io/deprecated", "true")
	if removedIn != "" {
		upstream.AddAuditAnnotation(record, "k8s.io/removed-release", removedIn)
	}
}
