// Package filters implements the filters that every request passes through before its handler. Each filter has its own
// file.
//
// Chain defines the order, for these reasons:
//   - begin and auditID are outermost, so that every response, also one after a panic, has a record and an Audit-Id.
//   - retryAfter, watchTermination and waitGroup reject or count requests while the server stops. They precede
//     authentication, so that a draining server does no work for requests it rejects.
//   - deadline and timeout precede all filters that may block, so that they bound them.
//   - authenticate, impersonate and authorize run in this order, as in kube-apiserver. auditRequests follows
//     authenticate, because the audit policy selects by user, and the event names both users of an impersonation.
//   - fairness or maxInFlight follows impersonate and precedes authorize, as in kube-apiserver: an authorizer may call
//     a webhook, and the seats bound the number of concurrent calls, also for clients without permissions.
//   - overload rejects requests while memory is nearly full. It follows authenticate, because it depends on the user.
//   - slowReaders rejects requests of users who do not read the responses to their former requests. The response writer
//     that begin creates tracks these responses.
//   - precondition rejects writes that must wait until the storage versions of this server are recorded. It follows
//     authorize, as in kube-apiserver, and precedes bodies, because it needs no body.
//   - delegated releases the seat of a request for an extension API server after the request has been authorized.
//   - bodies reads the body of a write only for a user that may write. A slow upload releases its seat until the body
//     is complete, so that it holds memory but no seat, unlike in kube-apiserver.
//   - measure is innermost: it measures the requests that reach a handler. Other filters count the requests that they
//     reject.
//
// All filters share one request.Record and one response writer. For an ordinary request, no filter creates a context or
// a goroutine, except deadline, which creates the context with the deadline.
package filters

import (
	"context"
	"net/http"
	"regexp"
	"time"

	"github.com/go-logr/logr"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/authentication"
	"quorate.dev/apiserver/flowcontrol"
	"quorate.dev/apiserver/memory"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// Options configure the chain.
type Options struct {
	Clock   clock.PassiveClock
	Logger  logr.Logger
	Metrics *Metrics
	Catalog *resource.CatalogHolder
	Drain   *request.Drain
	// Delegate returns the handler of a path that this server does not serve itself, or nil. Delegate may be nil.
	Delegate func(ctx context.Context, path string) http.Handler
	// Auditor may be nil; nothing is audited then.
	Auditor *audit.Auditor
	// Tracing creates the spans of requests; nil disables tracing.
	Tracing trace.TracerProvider

	Authenticator authenticator.Request
	// FrontProxy returns the current front proxy, whose headers are removed in addition to the standard ones. Both the
	// function and its result may be nil.
	FrontProxy func() *authentication.FrontProxy
	Authorizer authorizer.UnconditionalAuthorizer
	// ConstrainedImpersonation is the value of the feature gate.
	ConstrainedImpersonation bool
	// Permit returns the error of an authorized request that must not be served yet. It may be nil.
	Permit func(*request.Record) error

	RequestTimeout time.Duration
	// Fairness is priority and fairness; if it is nil, the two limits of requests in flight apply instead.
	Fairness *flowcontrol.Controller
	// MaxRequestsInFlight is the limit of read requests; 0 means none.
	MaxRequestsInFlight int
	// MaxMutatingRequestsInFlight is the limit of all other requests; 0 means none.
	MaxMutatingRequestsInFlight int
	Bodies                      BodyLimits
	Responses                   SendLimits
	// MemoryLevel returns how full the memory of the process is. It is nil if the process has no memory limit.
	MemoryLevel             func() memory.Level
	GoawayChance            float64
	StrictTransportSecurity []string
	CORSAllowedOrigins      []*regexp.Regexp
}

// Chain returns a handler that passes requests through all filters to next. The filter created last is the outermost.
func Chain(options Options, next http.Handler) http.Handler {
	sending := newSending(options.Responses, options.Metrics)
	h := next
	h = &measure{next: h, metrics: options.Metrics, clock: options.Clock}
	h = newBodies(h, options)
	h = delegated{next: h}
	h = newPrecondition(h, options)
	h = &authorize{next: h, authorizer: options.Authorizer, metrics: options.Metrics, clock: options.Clock}
	h = spanOf("authorization", h, options)
	if options.Fairness != nil {
		h = newFairness(h, options)
		h = spanOf("priorityandfairness", h, options)
	} else {
		h = newMaxInFlight(h, options)
	}
	h = &slowReaders{next: h, sending: sending, metrics: options.Metrics}
	h = newOverload(h, options)
	h = newImpersonate(h, options)
	h = spanOf(options.Metrics.impersonationFilter, h, options)
	h = newAudit(h, options)
	h = spanOf("audit", h, options)
	h = newTracing(h, options)
	h = newAuthenticate(h, options)
	h = spanOf("authentication", h, options)
	h = newCORS(h, options.CORSAllowedOrigins)
	h = warnings{next: h}
	h = &timeout{next: h, metrics: options.Metrics}
	h = &deadline{next: h, maximum: options.RequestTimeout, auditor: options.Auditor}
	h = waitGroup{next: h, requests: &options.Drain.Requests}
	h = watchTermination{next: h, watches: &options.Drain.Watches}
	h = goaway{next: h, chance: options.GoawayChance, drain: options.Drain}
	h = cacheControl{next: h}
	h = newStrictTransportSecurity(h, options.StrictTransportSecurity)
	h = retryAfter{next: h, drain: options.Drain}
	h = &accessLog{next: h, logger: options.Logger, clock: options.Clock}
	h = requestInfo{next: h, delegate: options.Delegate}
	h = &panicRecovery{next: h, metrics: options.Metrics}
	h = auditID{next: h}
	h = &begin{next: h, clock: options.Clock, logger: options.Logger, traced: options.Tracing != nil, sending: sending}
	return h
}
