package filters

import (
	"context"
	"fmt"
	"net/http"

	"quorate.dev/apiserver/request"
)

// requestInfo parses the request line into the record's Info, and decides who serves the request. The decision is made
// once: between two looks at it an APIService could change.
type requestInfo struct {
	next     http.Handler
	delegate func(ctx context.Context, path string) http.Handler // may be nil
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
