// Package tracing reads the configuration of OpenTelemetry tracing and creates the provider that exports spans.
package tracing

import (
	"context"
	"fmt"
	"net"
	"os"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	sdkresource "go.opentelemetry.io/otel/sdk/resource"
	semconv "go.opentelemetry.io/otel/semconv/v1.17.0"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/apis/apiserver/install"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/component-base/tracing"
	tracingapi "k8s.io/component-base/tracing/api/v1"
)

// service is the service name in exported spans, as in kube-apiserver.
const service = "apiserver"

// Load reads and validates a TracingConfiguration of version v1 or v1beta1.
func Load(file string) (*tracingapi.TracingConfiguration, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("failed to read tracing config: unable to read tracing configuration from %q: %w", file, err)
	}
	scheme := runtime.NewScheme()
	install.Install(scheme)
	codecs := serializer.NewCodecFactory(scheme, serializer.EnableStrict)
	decoded := &apiserver.TracingConfiguration{}
	if err := runtime.DecodeInto(codecs.UniversalDecoder(), data, decoded); err != nil {
		return nil, fmt.Errorf("failed to read tracing config: unable to decode tracing configuration data: %w", err)
	}
	configuration := &decoded.TracingConfiguration
	errs := tracingapi.ValidateTracingConfiguration(configuration, utilfeature.DefaultFeatureGate, nil)
	if len(errs) > 0 {
		return nil, fmt.Errorf("failed to validate tracing configuration: %w", errs.ToAggregate())
	}
	return configuration, nil
}

// NewProvider returns a provider that exports spans as configured. instance identifies the server. dial connects to the
// endpoint; nil connects directly. The caller must call Shutdown, which exports the last spans.
func NewProvider(
	ctx context.Context, configuration *tracingapi.TracingConfiguration, instance string,
	dial func(ctx context.Context, network, address string) (net.Conn, error),
) (tracing.TracerProvider, error) {
	var options []otlptracegrpc.Option
	if dial != nil {
		options = append(options, otlptracegrpc.WithDialOption(grpc.WithContextDialer(
			func(ctx context.Context, address string) (net.Conn, error) { return dial(ctx, "tcp", address) })))
	}
	return tracing.NewProvider(ctx, configuration, options, []sdkresource.Option{sdkresource.WithAttributes(
		semconv.ServiceNameKey.String(service), semconv.ServiceInstanceIDKey.String(instance),
	)})
}
