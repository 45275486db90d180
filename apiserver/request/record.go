// Package request is what is known about one request: when it came, what it asks for, who asks, its warnings and
// its query. It also turns errors into the Status a client receives, and counts the requests that are being served.
//
// All of it lives in one Record, which is itself the request's context. It answers the context keys of
// k8s.io/apiserver (request info, user, namespace, received time, warning recorder), so that upstream's strategies
// read what they need without a chain of nested contexts.
package request

import (
	"context"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	upstream "k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/apiserver/pkg/warning"
)

// Record is the context of one request. The filters fill it, in their order, before the handler starts; from then on
// only the warnings change.
type Record struct {
	context.Context // the connection's context, later bounded by the request's deadline

	Received time.Time // when the request reached the first filter
	AuditID  string    // as the client sent it, or made here
	Info     upstream.RequestInfo
	// VerbInPath is set where the verb is part of the path, as in /api/v1/watch/pods, and the method says nothing of it.
	VerbInPath bool
	// User is who asks, after impersonation; nil before authentication.
	User user.Info
	// Attributes are what authorization was asked.
	Attributes authorizer.AttributesRecord
	// LongRunning requests (watches, logs, streams) have no deadline, no part in the limits, and bodies that are streams.
	LongRunning bool
	Warnings    Warnings
	Logger      logr.Logger

	latency      atomic.Pointer[upstream.LatencyTrackers]
	url          *url.URL
	body         body
	query        url.Values
	namespace    string
	hasNamespace bool
	parts        [8]string // backs Info.Parts of ordinary paths
}

// Begin starts the record of a request that came in at the time given. The logger is what logr.FromContext returns.
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

// HasParameter tells whether the query may have a parameter of the name, without parsing it.
func (r *Record) HasParameter(name string) bool { return strings.Contains(r.url.RawQuery, name) }

// SetNamespace sets the namespace that upstream's request.NamespaceFrom reports: that of the objects dealt with, ""
// for cluster-scoped ones. A handler sets it before it calls strategies.
func (r *Record) SetNamespace(namespace string) {
	r.namespace, r.hasNamespace = namespace, true
}

type recordKey struct{}

// Value answers for what the record holds and otherwise asks the connection's context.
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
	}
	return r.Context.Value(key)
}

// The keys under which k8s.io/apiserver and logr look things up. They are not exported, but a context is asked for
// them.
var (
	userKey      = keyAskedBy(func(ctx context.Context) { upstream.UserFrom(ctx) })
	infoKey      = keyAskedBy(func(ctx context.Context) { upstream.RequestInfoFrom(ctx) })
	namespaceKey = keyAskedBy(func(ctx context.Context) { upstream.NamespaceFrom(ctx) })
	receivedKey  = keyAskedBy(func(ctx context.Context) { upstream.ReceivedTimestampFrom(ctx) })
	loggerKey    = keyAskedBy(func(ctx context.Context) { logr.FromContextOrDiscard(ctx) })
	latencyKey   = keyAskedBy(func(ctx context.Context) { upstream.LatencyTrackersFrom(ctx) })
	warningKey   = keyAskedBy(func(ctx context.Context) { warning.AddWarning(ctx, "", "") })
)

// keyAskedBy returns the key that a function looks up in a context.
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
