package metrics

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	traces "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

// receiver is an OTLP collector.
type receiver struct {
	collector.UnimplementedTraceServiceServer
	address string

	mu    sync.Mutex
	spans []*traces.Span
	name  string // of the service
}

func newReceiver(t *testing.T) *receiver {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{address: listener.Addr().String()}
	server := grpc.NewServer()
	collector.RegisterTraceServiceServer(server, r)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return r
}

// Export implements the collector's service.
func (r *receiver) Export(
	_ context.Context, request *collector.ExportTraceServiceRequest,
) (*collector.ExportTraceServiceResponse, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, resource := range request.ResourceSpans {
		for _, attribute := range resource.Resource.Attributes {
			if attribute.Key == "service.name" {
				r.name = attribute.Value.GetStringValue()
			}
		}
		for _, scope := range resource.ScopeSpans {
			r.spans = append(r.spans, scope.Spans...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// await returns the spans of a trace, or with a link to it, when one has the name.
func (r *receiver) await(t *testing.T, name string, has func(*traces.Span) bool) *traces.Span {
	t.Helper()
	var found *traces.Span
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, 8*time.Second, true, func(
		context.Context,
	) (bool, error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		index := slices.IndexFunc(r.spans, func(span *traces.Span) bool { return span.Name == name && has(span) })
		if index >= 0 {
			found = r.spans[index]
		}
		return found != nil, nil
	})
	if err != nil {
		for _, span := range r.spans {
			t.Logf("%s %x links %d %v", span.Name, span.TraceId, len(span.Links), span.Attributes)
		}
		t.Fatalf("no span %s: %v", name, err)
	}
	return found
}

// below returns the names of the spans below a span, by the name of the parent.
func (r *receiver) below(parent *traces.Span) map[string]bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	names, parents := map[string]bool{}, map[string]bool{string(parent.SpanId): true}
	for grown := true; grown; {
		grown = false
		for _, span := range r.spans {
			if parents[string(span.ParentSpanId)] && !parents[string(span.SpanId)] {
				parents[string(span.SpanId)], names[span.Name], grown = true, true, true
			}
		}
	}
	return names
}

const (
	privilegedTrace = "0af7651916cd43dd8448eb211c80319c"
	ordinaryTrace   = "1af7651916cd43dd8448eb211c80319c"
)

// traced sends requests that belong to traces and returns the spans of an ordinary and of a privileged client's
// request.
func traced(
	t *testing.T, launch upstream.Launch, pki *upstream.PKI, hooks *webhook, directory string,
) (*receiver, [2]*traces.Span) {
	t.Helper()
	spans := newReceiver(t)
	configuration := filepath.Join(t.TempDir(), "tracing.yaml")
	content := fmt.Sprintf("apiVersion: apiserver.config.k8s.io/v1beta1\nkind: TracingConfiguration\nendpoint: %s\n"+
		"samplingRatePerMillion: 1000000\n", spans.address)
	if err := os.WriteFile(configuration, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(directory, 0o755); err != nil {
		t.Fatal(err)
	}
	etcd, err := upstream.StartEtcd(t.Context(), directory)
	if err != nil {
		t.Fatal(err)
	}
	etcd.StopAfter(t)
	server, err := launch(t.Context(), upstream.Options{
		PKI: pki, Directory: directory, Etcd: etcd.Endpoint, Arguments: []string{
			"--tracing-config-file=" + configuration, "--v=3",
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	hooks.install(t, server.Admin)
	const accounts = "/api/v1/namespaces/default/serviceaccounts"
	do(t, server.Admin, http.MethodPost, accounts, `{"metadata":{"name":"robot"}}`)
	var review struct{ Status struct{ Token string } }
	decode(t, do(t, server.Admin, http.MethodPost, accounts+"/robot/token", `{"spec":{}}`), &review)
	robot := rest.AnonymousClientConfig(server.Admin)
	robot.BearerToken = review.Status.Token
	for trace, config := range map[string]*rest.Config{ordinaryTrace: robot, privilegedTrace: server.Admin} {
		config = rest.CopyConfig(config)
		config.Wrap(func(next http.RoundTripper) http.RoundTripper {
			return roundTripper(func(r *http.Request) (*http.Response, error) {
				r.Header.Set("Traceparent", "00-"+trace+"-b7ad6b7169203331-01")
				return next.RoundTrip(r)
			})
		})
		send(t, config, http.MethodPost, "/api/v1/namespaces/default/configmaps", `{"metadata":{"generateName":"a"}}`)
	}
	do(t, server.Admin, http.MethodPost, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"`+slowObject+`"}}`)
	const name = "POST /api/v1/namespaces/{:namespace}/configmaps"
	return spans, [2]*traces.Span{
		spans.await(t, name, func(span *traces.Span) bool {
			return len(span.Links) == 1 && hex.EncodeToString(span.Links[0].TraceId) == ordinaryTrace
		}),
		spans.await(t, name, func(span *traces.Span) bool { return hex.EncodeToString(span.TraceId) == privilegedTrace }),
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestTracing compares the spans that both servers export for the same requests.
func TestTracing(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Setenv("OTEL_BSP_SCHEDULE_DELAY", "50") // milliseconds
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	hooks := newWebhook(t)
	wanted, want := traced(t, upstream.StartKubernetes, pki, hooks, filepath.Join(directory, "kubernetes"))
	received, got := traced(t, upstream.StartQuorate, pki, hooks, filepath.Join(directory, "quorate"))
	if received.name != wanted.name {
		t.Errorf("the service is %q, want %q", received.name, wanted.name)
	}
	for i, client := range []string{"an ordinary client", "a privileged client"} {
		if attributes := keys(got[i]); !slices.Equal(attributes, keys(want[i])) {
			t.Errorf("the span of %s has the attributes\n%s\nwant\n%s", client,
				strings.Join(attributes, " "), strings.Join(keys(want[i]), " "))
		}
		below := wanted.below(want[i])
		if names := received.below(got[i]); !maps.Equal(names, below) {
			t.Errorf("below the span of %s are\n%v\nwant\n%v", client,
				slices.Sorted(maps.Keys(names)), slices.Sorted(maps.Keys(below)))
		}
	}
	for _, file := range []string{"quorate/quorate.log", "kubernetes/kube-apiserver.log"} {
		log, err := os.ReadFile(filepath.Join(directory, file))
		if err != nil || !slowTrace.Match(log) {
			t.Errorf("%s has no trace of a slow request: %v", file, err)
		}
	}
	line := accessLine(t, filepath.Join(directory, "quorate", "quorate.log"), "msg=HTTP ")
	if wanted := accessLine(
		t, filepath.Join(directory, "kubernetes", "kube-apiserver.log"), `"HTTP" `,
	); !slices.Equal(line, wanted) {
		t.Errorf("a request is logged with the keys %v, want %v", line, wanted)
	}
}

// slowTrace is the beginning of the trace of a slow request in a log.
var slowTrace = regexp.MustCompile(`Trace\[\d+\]: \\?"Create\\?" accept:`)

// accessLine returns the keys of the line of the access log about a creation. mark begins them.
func accessLine(t *testing.T, file, mark string) []string {
	t.Helper()
	log, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(log)) {
		_, values, found := strings.Cut(line, mark)
		if !found || !strings.Contains(values, "/api/v1/namespaces/default/configmaps") ||
			!strings.Contains(values, " resp=201") {
			continue
		}
		var names []string
		for _, match := range regexp.MustCompile(`(?:^| )([A-Za-z_-]+)=(?:"[^"]*"|\S*)`).FindAllStringSubmatch(values, -1) {
			names = append(names, match[1])
		}
		return names
	}
	t.Fatalf("%s has no such line", file)
	return nil
}

// keys returns the names of a span's attributes, sorted.
func keys(span *traces.Span) []string {
	var names []string
	for _, attribute := range span.Attributes {
		names = append(names, attribute.Key)
	}
	return slices.Sorted(slices.Values(names))
}
