package filters

import (
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/go-logr/logr/funcr"
)

// TestAccessLogHasContentType checks the keys of the line of a request that begin as in kube-apiserver 1.37.
func TestAccessLogHasContentType(t *testing.T) {
	var mu sync.Mutex
	var log strings.Builder
	logger := funcr.New(func(_, line string) {
		mu.Lock()
		defer mu.Unlock()
		log.WriteString(line)
	}, funcr.Options{Verbosity: accessLogVerbosity})
	f := start(t, true, func(o *Options) { o.Logger = logger }, func(http.ResponseWriter, *http.Request) {})
	r := f.newRequest(t, http.MethodPost, "/api/v1/namespaces/a/pods", "alice")
	r.Header.Set("Content-Type", "application/yaml")
	r.Header.Set("User-Agent", "kubectl")
	response, err := f.server.Client().Do(r)
	if err != nil {
		t.Fatal(err)
	}
	response.Body.Close()
	f.server.Close()
	f.serving.Wait()
	mu.Lock()
	defer mu.Unlock()
	const want = `"userAgent"="kubectl" "contentType"="application/yaml" "audit-ID"=`
	if !strings.Contains(log.String(), want) {
		t.Errorf("the log is %s, want %s", log.String(), want)
	}
}
