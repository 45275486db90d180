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
	"quorate.dev/apiserver/tracing"
)

// traces exports spans. It is nil without --tracing-config-file: nothing is then traced, and the trace of a client is
// not passed on either.
type traces struct{ upstream.TracerProvider }

// loadTracing reads --tracing-config-file.
func (s *Server) loadTracing(ctx context.Context) error {
	file := s.config.Tracing.ConfigFile
	if file == "" {
		return nil
	}
	configuration, err := tracing.Load(file)
	if err != nil {
		return err
	}
	hostname, err := os.Hostname()
	if err != nil {
		return err
	}
	provider, err := tracing.NewProvider(ctx, configuration, bootstrap.IdentityOf(hostname), s.egress.ControlPlane)
	if err != nil {
		return err
	}
	s.tracing = &traces{provider}
	return nil
}

// provider returns the provider of tracers, or nil.
func (t *traces) provider() trace.TracerProvider {
	if t == nil {
		return nil
	}
	return t.TracerProvider
}

// wrapper returns the wrapper of the round trippers of HTTP clients, or nil.
func (t *traces) wrapper() transport.WrapperFunc {
	if t == nil {
		return nil
	}
	return upstream.WrapperFor(t.TracerProvider)
}

// inspector adds the wrapper to another one.
func (t *traces) inspector(next transport.WrapperFunc) transport.WrapperFunc {
	return transport.Wrappers(t.wrapper(), next)
}

// dialOptions returns the options of gRPC connections that are traced.
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

// discardTracingMetrics keeps OpenTelemetry from collecting metrics about traces, which nothing reads.
func discardTracingMetrics() { otel.SetMeterProvider(noop.NewMeterProvider()) }
