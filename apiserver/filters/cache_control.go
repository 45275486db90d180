package filters

import "net/http"

// cacheControl forbids caches to keep what authorization protects. Handlers of public documents override it.
type cacheControl struct{ next http.Handler }

func (f cacheControl) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if headers := w.Header(); len(headers["Cache-Control"]) == 0 {
		headers["Cache-Control"] = noCache
	}
	f.next.ServeHTTP(w, r)
}

// noCache is shared by all responses; http.Header never changes a value in place.
var noCache = []string{"no-cache, private"}
