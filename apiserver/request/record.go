// Package request has what is known about one request: its target, user, received time, query and warnings. It is the
// one place that converts errors to the Status that a client receives. It also counts requests in flight.
//
// A Record holds all of this and is itself the request's context. It has values for the context keys of
// k8s.io/apiserver (request info, user, namespace, received time, warning recorder, audit event), so that upstream's strategies work
// without a chain of nested contexts.
package request

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
)

// Record is the context of one request. The filters set its fields before the handler starts; afterwards only the
// warnings change.
type Record struct {
	context.Context // the connection's context, later bounded by the request's deadline

	Received time.Time // when the request reached the first filter
	AuditID  string    // from the client, or generated
	Info     upstream.RequestInfo
	// VerbInPath is set if the verb is a segment of the path, as in /api/v1/watch/pods.
	VerbInPath bool
	// User is the authenticated user or, after impersonation, the impersonated one; nil before authentication.
	User user.Info
	// Attributes are those of the request's authorization.
	Attributes authorizer.AttributesRecord
	// Delegate serves the request in place of this server's own handlers: an extension API server owns its group and
	// version. It is nil for all other requests.
	Delegate http.Handler
	// LongRunning requests (watches, logs, streams) have no deadline, do not count as in flight, and stream their bodies.
	LongRunning bool
	// Traced is set if spans of the request are exported, or logged if it is slow.
	Traced   bool
	Warnings Warnings
	Logger   logr.Logger
	Audit    AuditConfig
	Flow     Flow
	// Seat is what the request has got from priority and fairness, or from the limits of requests in flight. It is nil for
	// requests that are not limited.
	Seat    Seat
	Latency Latency

	auditContext atomic.Pointer[audit.AuditContext]
	auditMemory  *Held
	latency      atomic.Pointer[upstream.LatencyTrackers]
	url          *url.URL
	body         body
	query        url.Values
	namespace    string
	hasNamespace bool
	parts        [8]string // backs Info.Parts of ordinary paths
}

// Begin returns the record of a request received at the given time. logr.FromContext returns logger for it.
func Begin(r *http.Request, received time.Time, logger logr.Logger) *Record {
	return &Record{Context: r.Context(), Received: received, Logger: logger, url: r.URL}
}

// From returns the record that ctx is or was derived from, or nil.
func From(ctx context.Context) *Record {
	if record, ok := ctx.(*Record); ok {
		return record
	}
	record, _ := ctx.Value(recordKey{}).(*Record)
	return record
}

// Query returns the parsed query, parsed once. The caller must not change it.
func (r *Record) Query() url.Values {
	if r.query == nil && r.url.RawQuery != "" {
		r.query = r.url.Query()
	}
	return r.query
}

// HasParameter reports whether the query may have a parameter, without parsing it.
func (r *Record) HasParameter(name string) bool { return strings.Contains(r.url.RawQuery, name) }

// SetNamespace sets the namespace that upstream's request.NamespaceFrom returns, "" for cluster-scoped resources.
// Handlers set it before they call strategies.
func (r *Record) SetNamespace(namespace string) {
	r.namespace, r.hasNamespace = namespace, true
}

type recordKey struct{}

// Value implements context.Context. Keys that the record does not know are looked up in the connection's context.
func (r *Record) Value(key any) any {
	switch key {
	case recordKey{}:
		return r
	case userKey:
		if r.User != nil {
			return r.User
		}
	case infoKey:
		return &r.Info
	case namespaceKey:
		if r.hasNamespace {
			return r.namespace
		}
	case warningKey:
		return &r.Warnings
	case receivedKey:
		return r.Received
	case loggerKey:
		return r.Logger
	case latencyKey:
		return r.latencies()
	case auditKey:
		return r.AuditContext()
	}
	return r.Context.Value(key)
}

// The context keys of k8s.io/apiserver and logr. They are not exported, so the functions that look them up are called
// with a context that records the key.
var (
	userKey      = keyAskedBy(func(ctx context.Context) { upstream.UserFrom(ctx) })
	infoKey      = keyAskedBy(func(ctx context.Context) { upstream.RequestInfoFrom(ctx) })
	namespaceKey = keyAskedBy(func(ctx context.Context) { upstream.NamespaceFrom(ctx) })
	receivedKey  = keyAskedBy(func(ctx context.Context) { upstream.ReceivedTimestampFrom(ctx) })
	loggerKey    = keyAskedBy(func(ctx context.Context) { logr.FromContextOrDiscard(ctx) })
	latencyKey   = keyAskedBy(func(ctx context.Context) { upstream.LatencyTrackersFrom(ctx) })
	auditKey     = keyAskedBy(func(ctx context.Context) { audit.AuditContextFrom(ctx) })
	warningKey   = keyAskedBy(func(ctx context.Context) { warning.AddWarning(ctx, "", "") })
)

// keyAskedBy returns the key that a function looks up in its context.
func keyAskedBy(look func(context.Context)) any {
	probe := &keyProbe{Context: context.Background()}
	look(probe)
	return probe.key
}

type keyProbe struct {
	context.Context
	key any
}

func (p *keyProbe) Value(key any) any {
	p.key = key
	return nil
}
