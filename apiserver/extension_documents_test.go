package apiserver

import (
	"io"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestChosenDocuments(t *testing.T) {
	all := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/plain")
		if r.Header.Get("If-None-Match") != "" {
			w.WriteHeader(http.StatusNotModified)
			return
		}
		_, _ = io.WriteString(w, `{"paths":{"version":{},"apis":{},"apis/apiextensions.k8s.io/v1":{},"apis/a.b":{},
"apis/a.b/v1":{"serverRelativeURL":"/openapi/v3/apis/a.b/v1?hash=1"},"apis/a.b.c/v1":{}}}`)
	})
	server := httptest.NewServer(chosenDocuments{all, []string{"a.b"}})
	defer server.Close()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("If-None-Match", "x")
	response, err := server.Client().Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"paths":{"apis/a.b":{},"apis/a.b/v1":{"serverRelativeURL":"/openapi/v3/apis/a.b/v1?hash=1"}}}`
	if string(body) != want || response.Header.Get("Content-Type") != "text/plain" {
		t.Errorf("got %s (%s), want %s", body, response.Header.Get("Content-Type"), want)
	}
}
