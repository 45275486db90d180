package tracing

import (
	"context"
	"maps"
	"net"
	"sync"
	"testing"

	"go.opentelemetry.io/otel/trace"
	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	"google.golang.org/grpc"
	tracingapi "k8s.io/component-base/tracing/api/v1"
	"k8s.io/utils/ptr"
)

// receiver is an OTLP collector.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	address string

	mu sync.Mutex
	// spans maps the names of the received spans to the attributes of their resources.
	spans map[string]map[string]string
}

func startReceiver(t *testing.T) *receiver {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{address: listener.Addr().String(), spans: map[string]map[string]string{}}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return r
}

// Export implements collector.TraceServiceServer.
func (r *receiver) Export(
	_ context.Context, request *collector.ExportTraceServiceRequest,
) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range request.ResourceSpans {
		attributes := map[string]string{}
		for _, attribute := range resource.Resource.Attributes {
			attributes[attribute.Key] = attribute.Value.GetStringValue()
		}
		for _, scope := range resource.ScopeSpans {
			for _, span := range scope.Spans {
				r.spans[span.Name] = attributes
			}
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// export ends a span below parent, shuts the provider down, and returns the spans that the collector has.
func (r *receiver) export(
	t *testing.T, configuration *tracingapi.TracingConfiguration, parent trace.SpanContext,
	dial func(ctx context.Context, network, address string) (net.Conn, error),
) map[string]map[string]string {
	t.Helper()
	provider, err := NewProvider(t.Context(), configuration, "server-1", dial)
	if err != nil {
		t.Fatal(err)
	}
	_, span := provider.Tracer("test").Start(trace.ContextWithRemoteSpanContext(t.Context(), parent), "request")
	span.End()
	if err := provider.Shutdown(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.spans)
}

// parent returns the trace context of a client that samples the trace or does not.
func parent(flags trace.TraceFlags) trace.SpanContext {
	return trace.NewSpanContext(trace.SpanContextConfig{
		TraceID: trace.TraceID{1}, SpanID: trace.SpanID{1}, TraceFlags: flags, Remote: true,
	})
}

// TestSampling checks which spans reach the collector by the time that Shutdown has returned, and that they name the
// server.
func TestSampling(t *testing.T) {
	for name, test := range map[string]struct {
		perMillion *int32
		parent     trace.SpanContext
		exported   bool
	}{
		"no rate":                      {nil, trace.SpanContext{}, false},
		"no rate, sampled client":      {nil, parent(trace.FlagsSampled), true},
		"no rate, client not sampled":  {nil, parent(0), false},
		"all":                          {ptr.To[int32](1000000), trace.SpanContext{}, true},
		"all, but client not sampled":  {ptr.To[int32](1000000), parent(0), false},
		"none, but the client samples": {ptr.To[int32](0), parent(trace.FlagsSampled), true},
	} {
		t.Run(name, func(t *testing.T) {
			r := startReceiver(t)
			spans := r.export(t, &tracingapi.TracingConfiguration{
				Endpoint: &r.address, SamplingRatePerMillion: test.perMillion,
			}, test.parent, nil)
			attributes, exported := spans["request"]
			if exported != test.exported {
				t.Fatalf("the collector has %v, want the span: %t", spans, test.exported)
			}
			if exported && (attributes["service.name"] != "apiserver" || attributes["service.instance.id"] != "server-1") {
				t.Errorf("the span is of %v", attributes)
			}
		})
	}
}

// TestExportThroughDialer exports to an address that only the dialer can connect to, such as a proxy of the egress
// selector.
func TestExportThroughDialer(t *testing.T) {
	r := startReceiver(t)
	const unreachable = "192.0.2.1:4317" // an address of documentation
	dial := func(ctx context.Context, network, address string) (net.Conn, error) {
		if network != "tcp" || address != unreachable {
			t.Errorf("dial was called with %s %s", network, address)
		}
		var dialer net.Dialer
		return dialer.DialContext(ctx, network, r.address)
	}
	spans := r.export(t, &tracingapi.TracingConfiguration{
		Endpoint: ptr.To(unreachable), SamplingRatePerMillion: ptr.To[int32](1000000),
	}, trace.SpanContext{}, dial)
	if _, ok := spans["request"]; !ok {
		t.Errorf("the collector has %v", spans)
	}
}
