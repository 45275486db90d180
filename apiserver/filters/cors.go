package filters

import (
	"fmt"
	"net/http"
	"regexp"
)

// cors adds the headers that allow pages from --cors-allowed-origins to call the server in a browser.
type cors struct {
	next    http.Handler
	allowed []*regexp.Regexp
}

// CompileOrigins compiles the patterns of --cors-allowed-origins.
func CompileOrigins(patterns []string) ([]*regexp.Regexp, error) {
	var compiled []*regexp.Regexp
	for _, pattern := range patterns {
		expression, err := regexp.Compile(pattern)
		if err != nil {
			return nil, fmt.Errorf("allowed CORS origin %q: %w", pattern, err)
		}
		compiled = append(compiled, expression)
	}
	return compiled, nil
}

func newCORS(next http.Handler, allowed []*regexp.Regexp) http.Handler {
	if len(allowed) == 0 {
		return next
	}
	return cors{next: next, allowed: allowed}
}

func (f cors) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	origin := r.Header.Get("Origin")
	if origin == "" || !f.allows(origin) {
		f.next.ServeHTTP(w, r)
		return
	}
	headers := w.Header()
	headers.Set("Access-Control-Allow-Origin", origin)
	headers.Set("Access-Control-Allow-Methods", "POST, GET, OPTIONS, PUT, DELETE, PATCH")
	headers.Set("Access-Control-Allow-Headers", "Content-Type, Content-Length, Accept-Encoding, X-CSRF-Token, "+
		"Authorization, X-Requested-With, If-Modified-Since")
	headers.Set("Access-Control-Expose-Headers", "Date")
	headers.Set("Access-Control-Allow-Credentials", "true")
	if r.Method == http.MethodOptions {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	f.next.ServeHTTP(w, r)
}

func (f cors) allows(origin string) bool {
	for _, pattern := range f.allowed {
		if pattern.MatchString(origin) {
			return true
		}
	}
	return false
}
