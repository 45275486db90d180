package apiserver

import (
	"bytes"
	"encoding/json"
	"net/http"
	"strings"

	"quorate.dev/apiserver/request"
)

// chosenDocuments serves the list of OpenAPI documents, restricted to the served API groups. The host merges the lists
// of all servers by path: a document that both servers have, such as the document of apiextensions.k8s.io, would
// replace the host's.
type chosenDocuments struct {
	all    http.Handler
	groups []string
}

// documentList is the body of /openapi/v3.
type documentList struct {
	Paths map[string]json.RawMessage `json:"paths"`
}

func (d chosenDocuments) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	whole := bufferedResponse{header: http.Header{}}
	unconditional := r.Clone(r.Context())
	for _, name := range []string{"If-None-Match", "If-Modified-Since", "Accept-Encoding", "Range"} {
		unconditional.Header.Del(name)
	}
	d.all.ServeHTTP(&whole, unconditional)
	var list documentList
	if err := json.Unmarshal(whole.body.Bytes(), &list); err != nil {
		request.WriteInternalError(w, r, err)
		return
	}
	for path := range list.Paths {
		if !d.isServed(path) {
			delete(list.Paths, path)
		}
	}
	body, err := json.Marshal(list)
	if err != nil {
		request.WriteInternalError(w, r, err)
		return
	}
	w.Header().Set("Content-Type", whole.header.Get("Content-Type"))
	// An error means that the client has disconnected.
	_, _ = w.Write(body)
}

// isServed reports whether the OpenAPI document at a path, such as apis/GROUP/VERSION, describes a served API group.
func (d chosenDocuments) isServed(path string) bool {
	for _, group := range d.groups {
		if path == "apis/"+group || strings.HasPrefix(path, "apis/"+group+"/") {
			return true
		}
	}
	return false
}

// bufferedResponse is a response writer that keeps a small response in memory.
type bufferedResponse struct {
	header http.Header
	body   bytes.Buffer
}

func (b *bufferedResponse) Header() http.Header         { return b.header }
func (b *bufferedResponse) WriteHeader(int)             {}
func (b *bufferedResponse) Write(p []byte) (int, error) { return b.body.Write(p) }
