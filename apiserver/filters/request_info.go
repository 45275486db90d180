package filters

import (
	"fmt"
	"net/http"

	"quorate.dev/apiserver/request"
)

// requestInfo parses the request line into the record's Info.
type requestInfo struct{ next http.Handler }

func (f requestInfo) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	record := request.From(r.Context())
	if err := record.Resolve(r.Method); err != nil {
		request.WriteInternalError(w, r, fmt.Errorf("failed to create RequestInfo: %w", err))
		return
	}
	record.LongRunning = request.IsLongRunning(&record.Info)
	f.next.ServeHTTP(w, r)
}
