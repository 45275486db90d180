package filters

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"quorate.dev/apiserver/request"
)

// discard is a response writer that discards the response.
type discard struct{ header http.Header }

func (d discard) Header() http.Header         { return d.header }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

func BenchmarkChain(b *testing.B) {
	f := &fixture{registry: prometheus.NewRegistry(), drain: &request.Drain{}}
	body := []byte("fine")
	chain := Chain(f.options(nil), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(body) }))
	for name, target := range map[string]string{
		"get": "/api/v1/namespaces/default/pods/web-0", "watch": "/api/v1/namespaces/default/pods?watch=1",
		"healthz": "/healthz",
	} {
		b.Run(name, func(b *testing.B) {
			r := httptest.NewRequest("GET", target, nil)
			w := discard{header: http.Header{}}
			b.ReportAllocs()
			for b.Loop() {
				r.Header["Authorization"] = []string{"alice"}
				clear(w.header)
				chain.ServeHTTP(w, r)
			}
		})
	}
}

// BenchmarkBody sends a body of the size of a small object through the chain.
func BenchmarkBody(b *testing.B) {
	f := &fixture{registry: prometheus.NewRegistry(), drain: &request.Drain{}}
	chain := Chain(f.options(nil), http.HandlerFunc(readBodies))
	r := httptest.NewRequest("POST", podsPath, nil)
	w := discard{header: http.Header{}}
	body := make([]byte, 2000)
	b.ReportAllocs()
	for b.Loop() {
		r.Header["Authorization"] = []string{"alice"}
		r.Body, r.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		clear(w.header)
		chain.ServeHTTP(w, r)
	}
}

// BenchmarkAudit is the cost of the chain without and with an audit policy.
func BenchmarkAudit(b *testing.B) {
	for name, policy := range map[string]string{
		"none": "", "level None": `"rules":[{"level":"None"}]`, "level Metadata": `"rules":[{"level":"Metadata"}]`,
		"level Metadata one stage": `"omitStages":["RequestReceived"],"rules":[{"level":"Metadata"}]`,
	} {
		b.Run(name, func(b *testing.B) {
			f := &fixture{registry: prometheus.NewRegistry(), drain: &request.Drain{}}
			chain := Chain(f.options(func(o *Options) {
				if policy != "" {
					o.Auditor, _ = startAuditor(b, policy, nil)
				}
			}), http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }))
			r := httptest.NewRequestWithContext(b.Context(), http.MethodGet, "/api/v1/namespaces/n/pods/p", nil)
			b.ReportAllocs()
			for b.Loop() {
				r.Header["Authorization"] = []string{"alice"}
				chain.ServeHTTP(discard{http.Header{}}, r)
			}
		})
	}
}
