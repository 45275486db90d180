package filters

import "net/http"

// cacheControl prevents the caching of responses, because they depend on authorization. Handlers of public documents
// override the header.
type cacheControl struct{ next http.Handler }

func (f cacheControl) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if headers := w.Header(); len(headers["Cache-Control"]) == 0 {
		headers["Cache-Control"] = noCache
	}
	f.next.ServeHTTP(w, r)
}

// noCache is shared by all responses; http.Header does not modify values in place.
var noCache = []string{"no-cache, private"}
