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

// auditRequests audits authenticated requests: when they are received, when the response of a long-running one starts,
// and when they end.
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

// beginAudit starts the event of a request. It responds, and reports that it is not ok, if it cannot.
func beginAudit(auditor *audit.Auditor, record *request.Record, w http.ResponseWriter, r *http.Request) (audited, ok bool) {
	fillAttributes(record)
	audited, err := auditor.Begin(record, r)
	if err != nil {
		record.Logger.Error(err, "Creating the audit event failed", "auditID", record.AuditID)
		request.WriteInternalError(w, r, errors.New("failed to create audit event"))
		return false, false
	}
	return audited, true
}

// auditStatus makes the handler's first status code part of the event. starts is set if the event is then processed.
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

// finish processes the last event of a request. A panic continues after it.
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
	if event.GetEventResponseStatus() == nil { // neither a status code nor a body was sent
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

// slowRequest is the duration above which an event has the latencies of the parts of its request, as in kube-apiserver.
const slowRequest = 500 * time.Millisecond

// annotateLatency adds where a slow request has spent its time.
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

// auditFailure audits a request that is rejected before it is authenticated, with one event. The caller must respond
// next. It reports whether the caller may.
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

// attemptedMethods describes the credentials of a request that failed authentication.
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

// annotateDeprecation adds that the request was for a deprecated version of a resource.
func annotateDeprecation(record *request.Record, removedIn string) {
	upstream.AddAuditAnnotation(record, "k8s.io/deprecated", "true")
	if removedIn != "" {
		upstream.AddAuditAnnotation(record, "k8s.io/removed-release", removedIn)
	}
}
