package filters_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"

	"github.com/go-logr/logr"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/request"
)

// serverName is a filter: a handler that does its part and calls next.
type serverName struct {
	next http.Handler
	name string
}

func (f serverName) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	// All filters share the request's record, which is also its context.
	if record := request.From(r.Context()); record.Info.Verb == "list" {
		w.Header().Set("Server", f.name)
	}
	f.next.ServeHTTP(w, r)
}

// A filter is added to Chain at the place where its decision belongs.
func Example_filter() {
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	chain := serverName{next: handler, name: "replica-1"}

	r := httptest.NewRequest(http.MethodGet, "/api/v1/pods", nil)
	record := request.Begin(r, clock.RealClock{}.Now(), logr.Discard())
	if err := record.Resolve(r.Method); err != nil {
		fmt.Println(err)
	}
	w := httptest.NewRecorder()
	chain.ServeHTTP(w, r.WithContext(record))
	fmt.Println(w.Code, w.Header().Get("Server"))
	// Output: 204 replica-1
}
