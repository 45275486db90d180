package filters

import "net/http"

// cacheControl forbids caches to keep what authorization protects. Handlers of public documents override it.
type cacheControl struct{ next http.Handler }

func (f cacheControl) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if headers := w.Header(); len(headers["Cache-Control"]) == 0 {
		headers["Cache-Control"] = []string{"no-cache, private"}
	}
	f.next.ServeHTTP(w, r)
}
