package handlers_test

import (
	"maps"
	"net/http"
	"slices"
	"testing"

	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"quorate.dev/apiserver/request"
)

// TestSpans traces requests. The spans of handlers, their attributes and their events have kube-apiserver's names, by
// which users search for slow steps.
func TestSpans(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	recorder := tracetest.NewSpanRecorder()
	tracer := trace.NewTracerProvider(trace.WithSpanProcessor(recorder)).Tracer("test")
	var traced bool
	s.prepare = func(record *request.Record) {
		record.Traced = traced
		record.Context, _ = tracer.Start(record.Context, "request")
	}
	s.create(t, "x")
	if spans := recorder.Ended(); len(spans) > 0 {
		t.Errorf("a request that is not traced has %d spans", len(spans))
	}
	traced = true
	const body = "limitedReadBody succeeded"
	for _, c := range []struct {
		exchange
		span   string
		events []string
	}{
		{
			exchange{
				name: "create", request: "POST " + configMaps, sends: jsonType, body: `{"metadata":{"name":"n"}}`,
				code: http.StatusCreated,
			}, "Create",
			[]string{body, "Conversion done", "About to store object in database", "Write to database call succeeded"},
		},
		{
			exchange{
				name: "update", request: "PUT " + configMaps + "/x", sends: jsonType, body: `{"metadata":{"name":"x"}}`,
				code: http.StatusOK,
			}, "Update",
			[]string{body, "Conversion done", "About to store object in database", "Write to database call succeeded"},
		},
		{
			exchange{
				name: "patch", request: "PATCH " + configMaps + "/x", sends: mergePatch, body: "{}", code: http.StatusOK,
			}, "Patch", []string{body, "Object stored in database"},
		},
		{
			exchange{name: "get", request: "GET " + configMaps + "/x", code: http.StatusOK}, "Get",
			[]string{"About to Get from storage"},
		},
		{
			exchange{name: "list", request: "GET " + configMaps, code: http.StatusOK}, "List",
			[]string{"About to List from storage", "Listing from storage done"},
		},
		{
			exchange{name: "delete", request: "DELETE " + configMaps + "/x", code: http.StatusOK}, "Delete",
			[]string{"About to delete object from database", "Object deleted from database"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			recorder.Reset()
			s.do(t, c.exchange)
			spans := map[string]trace.ReadOnlySpan{}
			for _, span := range recorder.Ended() {
				spans[span.Name()] = span
			}
			span := spans[c.span]
			if span == nil || spans["SerializeObject"] == nil {
				t.Fatalf("got the spans %v, want %s and SerializeObject", slices.Sorted(maps.Keys(spans)), c.span)
			}
			var events []string
			for _, event := range span.Events() {
				events = append(events, event.Name)
			}
			want := append(c.events, "About to write a response", "Writing http response done")
			if !slices.Equal(events, want) {
				t.Errorf("got the events %q, want %q", events, want)
			}
			attributes := map[string]string{}
			for _, attribute := range span.Attributes() {
				attributes[string(attribute.Key)] = attribute.Value.AsString()
			}
			for name, want := range map[string]string{
				"resource": "configmaps", "namespace": "a", "api-version": "v1", "user-agent": "tester/1.0",
				"client": "127.0.0.1", "protocol": "HTTP/1.1",
			} {
				if attributes[name] != want {
					t.Errorf("the attribute %s is %q, want %q", name, attributes[name], want)
				}
			}
		})
	}
}
