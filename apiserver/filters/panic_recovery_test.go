package filters

import (
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/util/sets"
	upstreamrequest "k8s.io/apiserver/pkg/endpoints/request"
	upstreamfilters "k8s.io/apiserver/pkg/server/filters"
	"k8s.io/klog/v2"
)

// TestPanicIsAnswered checks a deliberate difference from kube-apiserver. Its filter writes the same 500 but panics
// again, so that net/http drops the response. Clients then see a network error and may retry a request that panics
// every time.
func TestPanicIsAnswered(t *testing.T) {
	klog.SetLogger(logr.Discard())
	t.Cleanup(klog.ClearLogger)
	both(t, func(t *testing.T, http1 bool) {
		oops := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { panic("oops") })
		resolver := &upstreamrequest.RequestInfoFactory{
			APIPrefixes: sets.NewString("api", "apis"), GrouplessAPIPrefixes: sets.NewString("api"),
		}
		theirs := httptest.NewUnstartedServer(upstreamfilters.WithPanicRecovery(oops, resolver))
		theirs.EnableHTTP2 = !http1
		theirs.Config.ErrorLog = log.New(io.Discard, "", 0)
		theirs.StartTLS()
		defer theirs.Close()
		if response, err := theirs.Client().Get(theirs.URL); err == nil {
			_ = response.Body.Close()
			t.Errorf("kube-apiserver now responds with %s", response.Status)
		}

		f := start(t, http1, nil, oops)
		for range 2 { // the connection lives on
			response, err := f.server.Client().Do(f.newRequest(t, "GET", "/early", "alice"))
			if err != nil {
				t.Fatal(err)
			}
			body, err := io.ReadAll(response.Body)
			if err != nil {
				t.Fatal(err)
			}
			_ = response.Body.Close()
			expect(t, response, string(body), 500, "This request caused apiserver to panic. Look in the logs for details.\n")
		}
	})
}
