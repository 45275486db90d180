package apiserver

import (
	"context"
	"os"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric/noop"
	"go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"k8s.io/client-go/transport"
	upstream "k8s.io/component-base/tracing"

	"quorate.dev/apiserver/controllers/bootstrap"
	"quorate.dev/apiserver/egress"
	"quorate.dev/apiserver/tracing"
)

// traces exports spans. It is nil without --tracing-config-file: then no request is traced, and the trace context of
// clients is not propagated.
type traces struct{ upstream.TracerProvider }

// loadTracing reads --tracing-config-file and creates the exporter of spans. It returns nil without the flag.
func loadTracing(ctx context.Context, file string, dialers egress.Dialers) (*traces, error) {
	if file == "" {
		return nil, nil
	}
	configuration, err := tracing.Load(file)
	if err != nil {
		return nil, err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	provider, err := tracing.NewProvider(ctx, configuration, bootstrap.IdentityOf(hostname), dialers.ControlPlane)
	if err != nil {
		return nil, err
	}
	return &traces{provider}, nil
}

// provider returns the provider of tracers, or nil if tracing is disabled.
func (t *traces) provider() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.TracerProvider
}

// wrapper returns the wrapper for the round trippers of HTTP clients, or nil if tracing is disabled.
func (t *traces) wrapper() transport.WrapperFunc {
	if t == nil {
		return nil
	}
	return upstream.WrapperFor(t.TracerProvider)
}

// inspector returns a wrapper that traces requests and applies next.
func (t *traces) inspector(next transport.WrapperFunc) transport.WrapperFunc {
	return transport.Wrappers(t.wrapper(), next)
}

// dialOptions returns the options of gRPC connections whose requests are traced.
func (t *traces) dialOptions() []grpc.DialOption {
	if t == nil {
		return nil
	}
	return []grpc.DialOption{grpc.WithStatsHandler(otelgrpc.NewClientHandler(
		otelgrpc.WithMessageEvents(otelgrpc.ReceivedEvents, otelgrpc.SentEvents),
		otelgrpc.WithPropagators(upstream.Propagators()), otelgrpc.WithTracerProvider(t.TracerProvider),
	))}
}

// exportTimeout bounds the export of the last spans.
const exportTimeout = 5 * time.Second

// close exports the last spans.
func (t *traces) close() error {
	if t == nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), exportTimeout)
	defer cancel()
	return t.Shutdown(ctx)
}

// discardTracingMetrics prevents OpenTelemetry from collecting metrics about traces, which are not exported.
func discardTracingMetrics() { otel.SetMeterProvider(noop.NewMeterProvider()) }
