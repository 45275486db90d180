package request

import (
	"context"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"k8s.io/component-base/tracing"
)

// slowSpan is the duration above which the trace of a request is logged, as in kube-apiserver.
const slowSpan = 500 * time.Millisecond

// Span is a part of a request in its trace, which is exported with --tracing-config-file, and logged for slow requests
// at -v=2 or higher. A nil *Span records nothing.
type Span struct{ span *tracing.Span }

// StartSpan starts a span of the request of ctx. It returns ctx itself and nil if the request is not traced.
func StartSpan(ctx context.Context, name string, attributes ...string) (context.Context, *Span) {
	record := From(ctx)
	if record == nil || !record.Traced {
		return ctx, nil
	}
	ctx, span := tracing.Start(ctx, name, pairs(attributes)...)
	return ctx, &Span{span}
}

// pairs converts a list of alternating names and values to attributes.
func pairs(attributes []string) []attribute.KeyValue {
	converted := make([]attribute.KeyValue, 0, len(attributes)/2)
	for i := 0; i+1 < len(attributes); i += 2 {
		converted = append(converted, attribute.String(attributes[i], attributes[i+1]))
	}
	return converted
}

// Start starts a child span of s.
func (s *Span) Start(name string) *Span {
	if s == nil {
		return nil
	}
	_, span := tracing.Start(tracing.ContextWithSpan(context.Background(), s.span), name)
	return &Span{span}
}

// Event records that a step within the span has ended.
func (s *Span) Event(name string) {
	if s != nil {
		s.span.AddEvent(name)
	}
}

// End ends the span.
func (s *Span) End() {
	if s != nil {
		s.span.End(slowSpan)
	}
}
