package filters

import (
	"context"
	"fmt"
	"net/http"

	"quorate.dev/apiserver/request"
)

// requestInfo parses the request line into the record's Info, and selects the extension API server that serves the
// request, if any. The selection is made once, because an APIService could change between two selections.
type requestInfo struct {
	next http.Handler
	// delegate may be nil.
	delegate func(ctx context.Context, path string) http.Handler
}

func (f requestInfo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	if err := record.Resolve(r.Method); err != nil {
		request.WriteInternalError(w, r, fmt.Errorf("failed to create RequestInfo: %w", err))
		return
	}
	record.LongRunning = request.IsLongRunning(&record.Info)
	if f.delegate != nil {
		record.Delegate = f.delegate(record.Context, r.URL.Path)
	}
	f.next.ServeHTTP(w, r)
}
