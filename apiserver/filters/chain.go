// Package filters is what every request goes through before its handler, one filter per file, in the order of Chain.
// They share one request.Record and one response writer; none of them makes a context or a goroutine of its own for an
// ordinary request.
package filters

import (
	"net/http"
	"regexp"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/authentication"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// Options are what the filters need to know.
type Options struct {
	Clock   clock.PassiveClock
	Logger  logr.Logger
	Metrics *Metrics
	Catalog *resource.CatalogHolder
	Drain   *request.Drain

	Authenticator authenticator.Request
	FrontProxy    *authentication.FrontProxy // whose headers are stripped besides the standard ones; may be nil
	Authorizer    authorizer.Authorizer
	// ConstrainedImpersonation is the feature gate.
	ConstrainedImpersonation bool

	RequestTimeout              time.Duration
	MaxRequestsInFlight         int // 0: no limit
	MaxMutatingRequestsInFlight int // 0: no limit
	Bodies                      BodyLimits
	GoawayChance                float64
	StrictTransportSecurity     []string
	CORSAllowedOrigins          []*regexp.Regexp
}

// Chain returns the handler that passes requests through all filters, outermost last in this list, to next.
func Chain(options Options, next http.Handler) http.Handler {
	h := next
	h = &measure{next: h, metrics: options.Metrics, clock: options.Clock}
	h = newMaxInFlight(h, options)
	h = newBodies(h, options)
	h = &authorize{next: h, authorizer: options.Authorizer, metrics: options.Metrics, clock: options.Clock}
	h = newImpersonate(h, options)
	h = newAuthenticate(h, options)
	h = newCORS(h, options.CORSAllowedOrigins)
	h = warnings{next: h}
	h = &timeout{next: h, metrics: options.Metrics}
	h = &deadline{next: h, maximum: options.RequestTimeout}
	h = waitGroup{next: h, requests: &options.Drain.Requests}
	h = watchTermination{next: h, watches: &options.Drain.Watches}
	h = newGoaway(h, options.GoawayChance)
	h = cacheControl{next: h}
	h = newStrictTransportSecurity(h, options.StrictTransportSecurity)
	h = retryAfter{next: h, drain: options.Drain}
	h = requestInfo{next: h}
	h = &panicRecovery{next: h, metrics: options.Metrics}
	h = auditID{next: h}
	h = &begin{next: h, clock: options.Clock, logger: options.Logger}
	return h
}
