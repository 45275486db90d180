package replica

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"
)

// repeat writes a text until the client closes the connection.
func repeat(w io.Writer, text string) {
	block := []byte(strings.Repeat(text, 1+64<<10/len(text)))
	for {
		if _, err := w.Write(block); err != nil {
			return
		}
	}
}

// TestHostileMetrics checks that no response of a metrics endpoint can fill the memory, last forever, or lead to an
// impossible value.
func TestHostileMetrics(t *testing.T) {
	for name, test := range map[string]struct {
		serve http.HandlerFunc
		fails bool
	}{
		"series without end": {
			func(w http.ResponseWriter, _ *http.Request) { repeat(w, `apiserver_request_total{code="200"} 1`+"\n") }, true,
		},
		"other metrics":      {func(w http.ResponseWriter, _ *http.Request) { repeat(w, "a 1\n") }, true},
		"a line without end": {func(w http.ResponseWriter, _ *http.Request) { repeat(w, "a") }, true},
		"a bomb": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			repeat(z, "process_cpu_seconds_total 1\n")
		}, true},
		"nothing":     {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, true},
		"impossible":  {func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, impossible) }, false},
		"a wrong end": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := httptest.NewServer(test.serve)
			defer server.Close()
			client := &http.Client{Timeout: timeout}
			defer client.CloseIdleConnections()
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			started := time.Now()
			sample, err := read(t.Context(), client, server.URL)
			runtime.ReadMemStats(&after)
			if (err != nil) != test.fails {
				t.Errorf("got %+v, %v", sample, err)
			}
			if sample.Time = (time.Time{}); sample != (Sample{}) {
				t.Errorf("got %+v", sample)
			}
			if took := time.Since(started); took > time.Minute {
				t.Errorf("it took %v", took)
			}
			if after.HeapAlloc > before.HeapAlloc+64<<20 {
				t.Errorf("the heap has grown by %d MiB", (after.HeapAlloc-before.HeapAlloc)>>20)
			}
		})
	}
}

const impossible = `process_cpu_seconds_total NaN
process_resident_memory_bytes +Inf
apiserver_request_total{code="200"} -1
etcd_mvcc_db_total_size_in_bytes 1e300
`
