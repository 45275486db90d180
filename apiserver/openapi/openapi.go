// Package openapi serves the OpenAPI documents: version 2 as one document, version 3 by group version.
//
// Documents of built-in kinds are generated at build time and embedded, compressed (archive). Documents of custom
// resources are built from their definitions when they are requested (writer). Their entity tags are derived from the
// revisions of the definitions, so that a request with the current tag needs no document. Documents of extension API
// servers come from package aggregator/remote: version 2 is merged into this server's document (mergeV2), version 3 is
// forwarded.
//
// contents describes the documents of one resource.Catalog, and view adds the documents of extension API servers.
// Both are immutable and cached while neither the catalog nor the remote.Set changes.
package openapi

//go:generate go run ./generate

import (
	"bytes"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/munnerz/goautoneg"
	"k8s.io/utils/clock"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// Options configure a Handler.
type Options struct {
	Catalogs *resource.CatalogHolder
	// Remote has the documents of extension API servers.
	Remote remote.Source
	// Forward serves the version 3 documents of extension API servers.
	Forward Forward
	// NoEnumerations removes the enumerations from the schemas of built-in kinds.
	NoEnumerations bool
	// Idle drops the parts of documents that have not been used for some time.
	Idle   *lazy.Set
	Clock  clock.PassiveClock
	Logger logr.Logger
}

// Handler serves /openapi/v2, /openapi/v3 and the paths below it.
type Handler struct {
	catalogs *resource.CatalogHolder
	remote   remote.Source
	forward  Forward
	clock    clock.PassiveClock
	logger   logr.Logger
	idle     *lazy.Set
	archive  *archive
	contents contentsCache
	merged   mergedCache
	views    viewCache
}

// New returns a handler for the documents of the current catalog and of extension API servers.
func New(o Options) (*Handler, error) {
	archive, err := openArchive(builtIn)
	if err != nil {
		return nil, err
	}
	if o.NoEnumerations {
		archive.index.removeEnumerations()
	}
	return &Handler{
		catalogs: o.Catalogs, remote: o.Remote, forward: o.Forward, idle: o.Idle, clock: o.Clock, logger: o.Logger,
		archive: archive,
	}, nil
}

// encoding is JSON or protobuf.
type encoding int

const (
	asJSON encoding = iota
	asProtobuf
)

// suffix returns the file suffix of the encoding.
func (e encoding) suffix() string {
	if e == asProtobuf {
		return ".pb"
	}
	return ".json"
}

// mediaTypes returns the encodings by subtype of the media types for an OpenAPI version, "v2" or "v3". Only the
// protobuf media types contain the version; old clients send them with "@".
func mediaTypes(version string) map[string]encoding {
	return map[string]encoding{
		"json": asJSON,
		"com.github.proto-openapi.spec." + version + "@v1.0+protobuf": asProtobuf,
		"com.github.proto-openapi.spec." + version + ".v1.0+protobuf": asProtobuf,
	}
}

func (e encoding) contentType(version string) string {
	if e == asProtobuf {
		return "application/com.github.proto-openapi.spec." + version + ".v1.0+protobuf"
	}
	return "application/json"
}

// negotiate returns the encoding of the first acceptable clause of the header Accept, and false if no clause is
// acceptable.
func negotiate(accept, version string) (encoding, bool) {
	if accept == "" {
		return asJSON, true
	}
	known := mediaTypes(version)
	for _, clause := range goautoneg.ParseAccept(accept) {
		if clause.Type != "application" && clause.Type != "*" {
			continue
		}
		if clause.SubType == "*" {
			return asJSON, true
		}
		if e, ok := known[clause.SubType]; ok {
			return e, true
		}
	}
	return asJSON, false
}

func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	view, err := h.view()
	if err != nil {
		h.fail(w, err)
		return
	}
	switch path := r.URL.Path; {
	case path == "/openapi/v2":
		h.serveV2(w, r, view)
	case path == "/openapi/v3":
		// The index has no entity tag, and a Last-Modified time in seconds would hide all but the first change in a
		// second. As in kube-aggregator, the time is the current one.
		serve(w, r, document{plain: view.index}, h.clock.Now(), "text/plain; charset=utf-8")
	case strings.HasPrefix(path, "/openapi/v3/"):
		h.serveV3(w, r, view, strings.TrimPrefix(path, "/openapi/v3/"))
	default:
		w.WriteHeader(http.StatusNotFound)
	}
}

// view returns the current view.
func (h *Handler) view() (*view, error) {
	now := h.clock.Now()
	contents, err := h.contents.of(h.catalogs.Current(), h.archive, now)
	if err != nil {
		return nil, err
	}
	return h.views.of(contents, h.remote.Current(), now)
}

func (h *Handler) serveV2(w http.ResponseWriter, r *http.Request, view *view) {
	w.Header().Add("Vary", "Accept")
	form, ok := negotiate(r.Header.Get("Accept"), "v2")
	if !ok {
		w.Header().Add("Vary", "Accept-Encoding")
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	if notModified(w, r, view.v2Tag) {
		return
	}
	doc, err := h.remoteV2(view, form)
	if err != nil {
		h.fail(w, err)
		return
	}
	serve(w, r, doc, view.made, form.contentType("v2"))
}

func (h *Handler) serveV3(w http.ResponseWriter, r *http.Request, view *view, path string) {
	if documents, ok := view.forwarded[path]; ok {
		h.forward(w, r, documents.GroupVersion)
		return
	}
	tag, ok := view.v3Tag(path)
	if !ok {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	w.Header().Add("Vary", "Accept")
	form, ok := negotiate(r.Header.Get("Accept"), "v3")
	if !ok {
		w.WriteHeader(http.StatusNotAcceptable)
		return
	}
	if hash := r.URL.Query().Get("hash"); hash != "" {
		if hash != tag {
			http.Redirect(w, r, urlOf(path, tag), http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", h.clock.Now().UTC().AddDate(1, 0, 0).Format(time.RFC1123))
	}
	if notModified(w, r, tag) {
		return
	}
	doc, err := h.viewV3(view, path, form)
	if err != nil {
		h.fail(w, err)
		return
	}
	serve(w, r, doc, view.made, form.contentType("v3"))
}

// urlOf returns the URL of a version 3 document. The URL contains the hash of the document, so that the response
// never changes.
func urlOf(path, tag string) string {
	address := url.URL{Path: "/openapi/v3/" + path, RawQuery: url.Values{"hash": {tag}}.Encode()}
	return address.String()
}

func (h *Handler) fail(w http.ResponseWriter, err error) {
	h.logger.Error(err, "Failed to serve an OpenAPI document")
	w.WriteHeader(http.StatusServiceUnavailable)
}

// document is the content of a response with an optional entity tag. plain, compressed (gzip) or both are set.
type document struct {
	plain      []byte
	compressed []byte
	tag        string
}

// notModified responds with 304 and returns true if the client has the current document. The caller uses it before it
// builds the document.
func notModified(w http.ResponseWriter, r *http.Request, tag string) bool {
	if r.Header.Get("If-None-Match") != strconv.Quote(tag) {
		return false
	}
	w.Header().Set("Etag", strconv.Quote(tag))
	w.WriteHeader(http.StatusNotModified)
	return true
}

func serve(w http.ResponseWriter, r *http.Request, doc document, modified time.Time, contentType string) {
	if doc.tag != "" {
		w.Header().Set("Etag", strconv.Quote(doc.tag))
	}
	w.Header().Set("Content-Type", contentType)
	var content io.ReadSeeker = bytes.NewReader(doc.plain)
	if doc.compressed != nil {
		w.Header().Add("Vary", "Accept-Encoding")
		if acceptsGzip(r) {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Set("Content-Length", strconv.Itoa(len(doc.compressed)))
			content = bytes.NewReader(doc.compressed)
			request.From(r.Context()).ReleaseSeat()
		} else if doc.plain == nil {
			content = newInflater(doc.compressed)
		}
	}
	http.ServeContent(w, r, "", modified, content)
}

func acceptsGzip(r *http.Request) bool {
	for _, coding := range strings.Split(r.Header.Get("Accept-Encoding"), ",") {
		name, weight, _ := strings.Cut(coding, ";")
		if strings.TrimSpace(name) == "gzip" {
			return !strings.HasPrefix(strings.TrimSpace(weight), "q=0") || strings.ContainsAny(weight, "123456789")
		}
	}
	return false
}
