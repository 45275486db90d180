// Package request has the state of one request: its target, user, time of receipt, query and warnings. It is the only
// place that converts errors to the Status that a client receives. It also counts requests in flight, and bounds the
// memory that requests hold.
//
// A Record holds this state and is itself the request's context. It has values for the context keys of k8s.io/apiserver
// (request info, user, namespace, time of receipt, warning recorder, audit event), so that upstream's strategies work
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

// Record is the context and the state of one request. The filters set its fields before the handler starts; the handler
// changes only the warnings, the body, the seat, the audit event and measured times.
type Record struct {
	// Context is the connection's context, and later a child of it with the request's deadline.
	context.Context

	// Received is the time at which the request reached the first filter.
	Received time.Time
	// AuditID is the client's Audit-ID, or generated.
	AuditID string
	Info    upstream.RequestInfo
	// VerbInPath is set if the verb is a segment of the path, as in /api/v1/watch/pods.
	VerbInPath bool
	// User is the user of the request: the authenticated user, or the impersonated user after impersonation. It is nil
	// before authentication.
	User user.Info
	// Attributes are the attributes with which the request is authorized.
	Attributes authorizer.AttributesRecord
	// Delegate serves the request instead of this server's own handlers, because an extension API server owns its group
	// and version. It is nil for all other requests.
	Delegate http.Handler
	// LongRunning is set for watches, logs and streams. They have no deadline, do not count as in flight, and stream
	// their bodies.
	LongRunning bool
	// Traced is set if spans of the request are exported, or are logged if the request is slow.
	Traced   bool
	Warnings Warnings
	Logger   logr.Logger
	Audit    AuditConfig
	Flow     Flow
	// Seat is the request's seat from priority and fairness, or its slot from the limits of requests in flight. It is
	// nil for requests that are not limited.
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
	// parts is the array of Info.Parts, unless a path has more segments.
	parts [8]string
}

// Begin returns the record of a request that was received at the given time. logger is also the record's logger for
// logr.FromContext.
func Begin(r *http.Request, received time.Time, logger logr.Logger) *Record {
	return &Record{Context: r.Context(), Received: received, Logger: logger, url: r.URL}
}

// From returns the record that ctx is or is derived from, or nil.
func From(ctx context.Context) *Record {
	if record, ok := ctx.(*Record); ok {
		return record
	}
	record, _ := ctx.Value(recordKey{}).(*Record)
	return record
}

// Query returns the query, which is parsed only once. The caller must not change it.
func (r *Record) Query() url.Values {
	if r.query == nil && r.url.RawQuery != "" {
		r.query = r.url.Query()
	}
	return r.query
}

// HasParameter reports whether the query may contain a parameter, without parsing the query.
func (r *Record) HasParameter(name string) bool { return strings.Contains(r.url.RawQuery, name) }

// SetNamespace sets the namespace that upstream's request.NamespaceFrom returns; "" for cluster-scoped resources.
// Handlers call it before they call strategies.
func (r *Record) SetNamespace(namespace string) {
	r.namespace, r.hasNamespace = namespace, true
}

type recordKey struct{}

// Value implements context.Context. Other keys than the record's are looked up in the embedded context.
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

// These are the context keys of k8s.io/apiserver and logr. They are not exported, so that each is found by calling a
// function that looks it up, with a context that records the key.
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

// keyAskedBy returns the key that the function look looks up in its context.
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
