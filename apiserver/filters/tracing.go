package filters

import (
	"cmp"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"

	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/component-base/tracing"

	"quorate.dev/apiserver/request"
)

// traceRequests creates a span for each request, as kube-apiserver does with otelhttp, which would replace the response
// writer that the filters share. It follows authentication: only a client in system:masters or system:monitoring
// decides which trace its request belongs to, and whether the request is sampled. The trace of any other client becomes
// a link.
type traceRequests struct {
	next        http.Handler
	tracer      trace.Tracer
	propagators propagation.TextMapPropagator
}

func newTracing(next http.Handler, options Options) http.Handler {
	if options.Tracing == nil {
		return next
	}
	return &traceRequests{
		next:        next,
		tracer:      options.Tracing.Tracer(otelhttp.ScopeName, trace.WithInstrumentationVersion(otelhttp.Version)),
		propagators: tracing.Propagators(),
	}
}

func (f *traceRequests) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	ctx := f.propagators.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	options := []trace.SpanStartOption{
		trace.WithSpanKind(trace.SpanKindServer), trace.WithTimestamp(record.Received),
		trace.WithAttributes(requestAttributes(record, r)...),
	}
	if !trustsTrace(record.User) {
		options = append(options, trace.WithNewRoot())
		if remote := trace.SpanContextFromContext(ctx); remote.IsValid() && remote.IsRemote() {
			options = append(options, trace.WithLinks(trace.Link{SpanContext: remote}))
		}
	}
	ctx, span := f.tracer.Start(ctx, spanName(record, r), options...)
	defer span.End()
	f.next.ServeHTTP(w, r.WithContext(ctx))
	if answer, ok := w.(*response); ok {
		finishSpan(span, record, answer)
	}
}

// trustsTrace reports whether the span of a user's request may be part of the trace that the user has sent.
func trustsTrace(u user.Info) bool {
	return u != nil && slices.ContainsFunc(u.GetGroups(), func(group string) bool {
		return group == user.SystemPrivilegedGroup || group == user.MonitoringGroup
	})
}

// spanName returns the method and the path of a request, with placeholders for the names of namespaces and objects.
func spanName(record *request.Record, r *http.Request) string {
	info := &record.Info
	if !info.IsResourceRequest {
		return r.Method
	}
	name := r.Method + " /" + info.APIPrefix
	if info.APIGroup != "" {
		name += "/" + info.APIGroup
	}
	name += "/" + info.APIVersion
	if info.Namespace != "" {
		name += "/namespaces/{:namespace}"
	}
	name += "/" + info.Resource
	if info.Name != "" {
		name += "/{:name}"
	}
	if info.Subresource != "" {
		name += "/" + info.Subresource
	}
	return name
}

// requestAttributes returns the attributes that otelhttp sets, and the attributes that kube-apiserver adds.
func requestAttributes(record *request.Record, r *http.Request) []attribute.KeyValue {
	server, serverPort, err := net.SplitHostPort(r.Host)
	if err != nil {
		server = r.Host
	}
	attributes := []attribute.KeyValue{
		semconv.ServerAddress(server), semconv.HTTPRequestMethodKey.String(r.Method), semconv.URLScheme(schemeOf(r)),
		semconv.URLPath(r.URL.Path), semconv.NetworkProtocolVersion(strings.TrimPrefix(r.Proto, "HTTP/")),
		attribute.String("http.target", r.URL.RequestURI()), attribute.String("audit-id", truncatedID(record.AuditID)),
	}
	if number, err := strconv.Atoi(serverPort); err == nil {
		attributes = append(attributes, semconv.ServerPort(number))
	}
	if agent := r.UserAgent(); agent != "" {
		attributes = append(attributes, semconv.UserAgentOriginal(agent))
	}
	if host, port, err := net.SplitHostPort(r.RemoteAddr); err == nil {
		attributes = append(attributes, semconv.NetworkPeerAddress(host), semconv.ClientAddress(clientOf(r, host)))
		if number, err := strconv.Atoi(port); err == nil {
			attributes = append(attributes, semconv.NetworkPeerPort(number))
		}
	}
	return attributes
}

// clientOf returns the first address in X-Forwarded-For, or the peer's address if the header is missing.
func clientOf(r *http.Request, peer string) string {
	forwarded, _, _ := strings.Cut(r.Header.Get("X-Forwarded-For"), ",")
	return cmp.Or(forwarded, peer)
}

func schemeOf(r *http.Request) string {
	if r.TLS != nil {
		return "https"
	}
	return "http"
}

// maxAuditID is the length in bytes to which kube-apiserver truncates audit IDs in logs and traces.
const maxAuditID = 64

func truncatedID(id string) string {
	if len(id) <= maxAuditID {
		return id
	}
	return id[:maxAuditID]
}

// finishSpan adds the attributes that are known when the handler has returned.
func finishSpan(span trace.Span, record *request.Record, answer *response) {
	if size, read := record.BodySize(); read && size > 0 {
		span.SetAttributes(semconv.HTTPRequestBodySize(size))
	}
	status, size := answer.sent()
	if status > 0 {
		span.SetAttributes(semconv.HTTPResponseStatusCode(status))
	}
	if size > 0 {
		span.SetAttributes(semconv.HTTPResponseBodySize(int(size)))
	}
	if status >= http.StatusInternalServerError {
		span.SetStatus(codes.Error, "")
	}
}

// filterSpan creates a span for a filter and everything inside it, as kube-apiserver does for the filters whose latency
// it measures.
type filterSpan struct {
	next   http.Handler
	tracer trace.Tracer
	name   string
}

// spanOf returns next within a filterSpan, or next itself if requests are not traced.
func spanOf(name string, next http.Handler, options Options) http.Handler {
	if options.Tracing == nil {
		return next
	}
	return &filterSpan{
		next: next, tracer: options.Tracing.Tracer("k8s.op/apiserver/pkg/endpoints/filterlatency"), name: name,
	}
}

func (f *filterSpan) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	ctx, span := f.tracer.Start(r.Context(), f.name)
	defer span.End()
	f.next.ServeHTTP(w, r.WithContext(ctx))
}
