// Package filters has what every request passes through before its handler, one filter per file.
//
// Chain is the order, and the order matters:
//   - begin and auditID are outermost, so that every response, also one after a panic, has a record and an Audit-Id.
//   - retryAfter, watchTermination and waitGroup reject or count requests while the server stops. They precede
//     authentication, so that a draining server does no work for requests it rejects.
//   - deadline and timeout precede whatever may block, so that they bound it.
//   - authenticate, impersonate and authorize decide in this order, as in kube-apiserver. auditRequests follows
//     authenticate, because the audit policy selects by user, and the event names both users of an impersonation.
//   - fairness or maxInFlight follows impersonate and precedes authorize, as in kube-apiserver: an authorizer may call a
//     webhook, and the seats bound how many calls wait for it, also for clients without permissions.
//   - overload rejects requests while memory is nearly full. It follows authenticate, because it depends on the user.
//   - slowReaders rejects requests of users who do not read the responses to their former requests. begin's response writer
//     follows these responses.
//   - delegated gives the seat of a request for an extension API server back when the request is authorized.
//   - bodies reads the body of a write only for a user that may write. A slow upload gives its seat back until the body is
//     there, so that it holds memory but no seat, unlike in kube-apiserver.
//   - measure is innermost: it times what reached a handler; other filters count what they reject.
//
// All filters share one request.Record and one response writer. For an ordinary request none of them creates a context
// or a goroutine of its own, except deadline, which creates the context with the deadline.
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
	// Delegate returns the handler of a path that this server does not serve itself, else nil; may be nil.
	Delegate func(ctx context.Context, path string) http.Handler
	Auditor  *audit.Auditor // nil: nothing is audited
	// Tracing makes spans of requests; nil: they are not traced.
	Tracing trace.TracerProvider

	Authenticator authenticator.Request
	// FrontProxy returns the current front proxy, whose headers are removed besides the standard ones. Both the function and
	// its result may be nil.
	FrontProxy func() *authentication.FrontProxy
	Authorizer authorizer.Authorizer
	// ConstrainedImpersonation is the feature gate.
	ConstrainedImpersonation bool

	RequestTimeout              time.Duration
	Fairness                    *flowcontrol.Controller // nil: the limits of requests in flight apply
	MaxRequestsInFlight         int                     // 0: no limit
	MaxMutatingRequestsInFlight int                     // 0: no limit
	Bodies                      BodyLimits
	Responses                   SendLimits
	// MemoryLevel returns how full the memory of the process is; nil: it has no limit.
	MemoryLevel             func() memory.Level
	GoawayChance            float64
	StrictTransportSecurity []string
	CORSAllowedOrigins      []*regexp.Regexp
}

// Chain returns a handler that passes requests through all filters to next. The last filter wrapped is the outermost.
func Chain(options Options, next http.Handler) http.Handler {
	sending := newSending(options.Responses, options.Metrics)
	h := next
	h = &measure{next: h, metrics: options.Metrics, clock: options.Clock}
	h = newBodies(h, options)
	h = delegated{next: h}
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
