package transport

import (
	"compress/gzip"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestLimits(t *testing.T) {
	const limit = 1000
	respond := func(code, size int) http.HandlerFunc {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(code)
			_, _ = io.WriteString(w, strings.Repeat(" ", size))
		}
	}
	bomb := func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Encoding", "gzip")
		z := gzip.NewWriter(w)
		_, _ = io.WriteString(z, strings.Repeat(" ", 100*limit))
		_ = z.Close()
	}
	for name, test := range map[string]struct {
		handler http.HandlerFunc
		size    int
		err     error
	}{
		"at the limit":     {respond(http.StatusOK, limit), limit, nil},
		"above the limit":  {respond(http.StatusOK, limit+1), limit, ErrTooLarge},
		"compressed":       {bomb, limit, ErrTooLarge},
		"error":            {respond(http.StatusTeapot, 100), 100, nil},
		"long error":       {respond(http.StatusTeapot, 100*maxError), maxError, nil},
		"redirect":         {http.RedirectHandler("/other", http.StatusTemporaryRedirect).ServeHTTP, 0, ErrRedirect},
		"without location": {respond(http.StatusMultipleChoices, 10), 10, nil},
	} {
		t.Run(name, func(t *testing.T) {
			server := httptest.NewServer(test.handler)
			defer server.Close()
			client := &http.Client{Transport: Limit(http.DefaultTransport, limit)}
			response, err := client.Get(server.URL)
			var body []byte
			if err == nil {
				body, err = io.ReadAll(response.Body)
				_ = response.Body.Close()
			}
			if len(body) != test.size || !errors.Is(err, test.err) {
				t.Errorf("got %d bytes, %v, want %d, %v", len(body), err, test.size, test.err)
			}
		})
	}
}
