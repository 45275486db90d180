// Package discovery serves the discovery documents: /api, /apis, and the documents of groups and versions, in the
// legacy and the aggregated format.
package discovery

import (
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"
	discoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/deflate"
	"quorate.dev/apiserver/peers"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

const aggregatedParameters = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"

// Addresses are the addresses (host:port) of the server in the document /api.
type Addresses struct {
	Default string
	// Service is the address for clients in ServiceRange.
	Service      string
	ServiceRange netip.Prefix
}

// inService reports whether the client's address is in ServiceRange.
func (a Addresses) inService(r *http.Request) bool {
	client, ok := netip.AddrFromSlice(utilnet.GetClientIP(r))
	return ok && a.ServiceRange.Contains(client.Unmap())
}

// Options configure a Handler.
type Options struct {
	Catalogs  *resource.CatalogHolder
	Remote    remote.Source
	Addresses Addresses
	// ServerID is the ID of this replica.
	ServerID string
	// Peers returns the discovery of the other replicas, or nil if no other replica is known.
	Peers      func() *peers.Set
	Registerer prometheus.Registerer
}

// Handler serves the discovery documents of the current catalog, of extension API servers and of other replicas.
type Handler struct {
	options Options
	// codecs encode documents; custom are the codecs for documents of versions of custom resources, which
	// kube-apiserver does not serve in CBOR.
	codecs, custom serializer.CodecFactory
	// mediaTypes are the media types of codecs.
	mediaTypes []string
	// json is the format of audit events.
	json    format
	metrics metrics

	// built is the number of times that the documents have been built.
	built   atomic.Int64
	making  sync.Mutex
	current atomic.Pointer[documents]
	merged  atomic.Pointer[peerDocument]
}

// New returns a handler.
func New(options Options) (*Handler, error) {
	scheme := runtime.NewScheme()
	if err := discoveryv2.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register aggregated discovery: %w", err)
	}
	metav1.AddToGroupVersion(scheme, schema.GroupVersion{Version: "v1"})
	h := &Handler{
		options: options, codecs: newCodecs(scheme), custom: serializer.NewCodecFactory(scheme),
		metrics: newMetrics(options.Registerer),
	}
	h.mediaTypes, _ = negotiation.MediaTypesForSerializer(h.codecs)
	info, _ := runtime.SerializerInfoForMediaType(h.codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	h.json = format{info.MediaType, info.Serializer}
	return h, nil
}

// newCodecs returns the codecs of a scheme, with CBOR if the feature gate is enabled.
func newCodecs(scheme *runtime.Scheme) serializer.CodecFactory {
	if request.ServesCBOR() {
		return serializer.NewCodecFactory(scheme, serializer.WithSerializer(cbor.NewSerializerInfo))
	}
	return serializer.NewCodecFactory(scheme)
}

// Measure registers kube-apiserver's metric of aggregated discovery.
func (h *Handler) Measure(registerer prometheus.Registerer) {
	promauto.With(registerer).NewCounterFunc(prometheus.CounterOpts{
		Name: "aggregator_discovery_aggregation_count_total",
		Help: "[ALPHA] Counter of number of times discovery was aggregated",
	}, func() float64 { return float64(h.built.Load()) })
}

// documents returns the current documents. The first request after a change builds them.
func (h *Handler) documents() *documents {
	catalog, set := h.options.Catalogs.Current(), h.options.Remote.Current()
	if docs := h.current.Load(); docs != nil && docs.catalog == catalog && docs.remote == set {
		return docs
	}
	h.making.Lock()
	defer h.making.Unlock()
	catalog, set = h.options.Catalogs.Current(), h.options.Remote.Current()
	if docs := h.current.Load(); docs != nil && docs.catalog == catalog && docs.remote == set {
		return docs
	}
	docs := newDocuments(catalog, set, h.options.Addresses, h.current.Load())
	h.current.Store(docs)
	h.built.Add(1)
	return docs
}

// ServeHTTP serves /api, /apis, /api/VERSION, /apis/GROUP and /apis/GROUP/VERSION.
func (h *Handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	docs := h.documents()
	path := strings.TrimSuffix(r.URL.Path, "/")
	doc := docs.legacy(path)
	if doc == nil {
		notFound(w, r, docs, path)
		return
	}
	if doc.routed {
		if err := request.Produce(r, h.mediaTypes...); err != nil {
			request.WriteError(w, r, err)
			return
		}
	}
	var restrictions negotiation.EndpointRestrictions = negotiation.DefaultEndpointRestrictions
	if path == "/api" || r.URL.Path == "/apis" { // as in kube-apiserver, not "/apis/"
		restrictions = aggregatable{}
	}
	codecs, refuse := h.codecs, writeError
	if doc.custom {
		codecs, refuse = h.custom, request.WriteErrorWithoutCBOR
	}
	accepted, info, err := negotiation.NegotiateOutputMediaType(r, codecs, restrictions)
	if err != nil {
		refuse(w, r, err)
		return
	}
	format := newFormat(info)
	if accepted.Convert == nil {
		if path == "/api" && h.options.Addresses.inService(r) {
			doc = docs.coreInService
		}
		h.write(w, r, doc, format, accepted.Accepted.MediaType)
		return
	}
	h.writeAggregated(w, r, h.aggregated(docs, path, accepted.Profile), format,
		accepted.Accepted.MediaType+aggregatedParameters)
}

func writeError(w http.ResponseWriter, r *http.Request, err error) { request.WriteError(w, r, err) }

// aggregated returns the aggregated document at /api or /apis. As in kube-apiserver, the core group is always this
// replica's.
func (h *Handler) aggregated(docs *documents, path, profile string) *aggregatedDocument {
	if profile == profileNoPeer {
		h.metrics.noPeer.Inc()
	}
	switch {
	case path == "/api":
		return docs.aggregatedCore
	case profile == profileNoPeer:
		return docs.aggregated
	}
	return h.withPeers(docs)
}

func (h *Handler) writeAggregated(
	w http.ResponseWriter, r *http.Request, doc *aggregatedDocument, format format, contentType string,
) {
	tag, err := doc.tag()
	if err != nil {
		request.WriteInternalError(w, r, err)
		return
	}
	w.Header().Set("ETag", tag)
	w.Header().Set("Vary", "Accept")
	w.Header().Set("Cache-Control", "public")
	if r.Header.Get("If-None-Match") == tag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	h.write(w, r, doc.document, format, contentType)
}

func (h *Handler) write(w http.ResponseWriter, r *http.Request, doc *document, format format, contentType string) {
	body, err := doc.encoded(format)
	if err != nil {
		request.WriteInternalError(w, r, err)
		return
	}
	audit.LogResponse(request.From(r.Context()), nil, func() ([]byte, error) { return doc.encoded(h.json) })
	w.Header().Set("Content-Type", contentType)
	if request.Compresses(r, len(body)) {
		if compressed, err := doc.compressed(format); err == nil {
			w.Header().Set("Content-Encoding", "gzip")
			w.Header().Add("Vary", "Accept-Encoding")
			body = compressed
		}
	}
	request.From(r.Context()).ReleaseSeat()
	w.WriteHeader(http.StatusOK)
	// An error means that the client has disconnected.
	_, _ = w.Write(body)
}

// notFound responds to requests for unknown groups and versions, as the separate servers behind kube-aggregator do.
func notFound(w http.ResponseWriter, r *http.Request, docs *documents, path string) {
	parts := strings.Split(strings.TrimPrefix(path, "/"), "/")
	if parts[0] == "apis" && len(parts) > 1 && docs.byName[parts[1]] == nil {
		http.Error(w, "404 page not found", http.StatusNotFound)
		return
	}
	request.WriteError(w, r, request.Generic(http.StatusNotFound))
}

// aggregatable allows the aggregated format in content negotiation.
type aggregatable struct{}

func (aggregatable) AllowsMediaTypeTransform(_, _ string, target *schema.GroupVersionKind) bool {
	return target == nil || *target == discoveryv2.SchemeGroupVersion.WithKind("APIGroupDiscoveryList")
}
func (aggregatable) AllowsServerVersion(string) bool       { return false }
func (aggregatable) AllowsStreamSchema(schema string) bool { return schema == "watch" }

// format is the media type of a document, compact or pretty.
type format struct {
	name    string
	encoder runtime.Encoder
}

// newFormat returns the negotiated format. The JSON is indented if the client asks for it, or if the user agent is a
// browser or a tool such as curl.
func newFormat(negotiated runtime.SerializerInfo) format {
	name := negotiated.MediaType
	if negotiated.PrettySerializer != nil && negotiated.Serializer == negotiated.PrettySerializer {
		name += " pretty"
	}
	return format{name, negotiated.Serializer}
}

// document is a discovery document with cached encodings.
type document struct {
	object func() runtime.Object
	// routed is set if kube-apiserver has a route for the document, which rejects unsupported Accept headers.
	routed bool
	// custom is set for the document of a version that has only custom resources.
	custom bool
	// json and compressedJSON return the compact JSON and its gzip stream without creating the object; they may be nil.
	json, compressedJSON func() ([]byte, error)

	lock      sync.Mutex
	encodings map[string][]byte
}

// newDocument returns the document of an object. object is called for each encoding.
func newDocument(object func() runtime.Object) *document { return &document{object: object} }

func (d *document) encoded(f format) ([]byte, error) {
	d.lock.Lock()
	defer d.lock.Unlock()
	if known, ok := d.encodings[f.name]; ok {
		return known, nil
	}
	encoded, err := d.encode(f)
	if err != nil {
		return nil, fmt.Errorf("encode discovery: %w", err)
	}
	d.keep(f.name, encoded)
	return encoded, nil
}

func (d *document) encode(f format) ([]byte, error) {
	if d.json != nil && f.name == runtime.ContentTypeJSON {
		return d.json()
	}
	return runtime.Encode(f.encoder, d.object())
}

func (d *document) keep(name string, encoded []byte) {
	if d.encodings == nil {
		d.encodings = map[string][]byte{}
	}
	d.encodings[name] = encoded
}

func (d *document) compressed(f format) ([]byte, error) {
	plain, err := d.encoded(f)
	if err != nil {
		return nil, err
	}
	d.lock.Lock()
	defer d.lock.Unlock()
	name := f.name + " gzip"
	if known, ok := d.encodings[name]; ok {
		return known, nil
	}
	compressed, err := d.compress(f, plain)
	if err != nil {
		return nil, fmt.Errorf("compress discovery: %w", err)
	}
	d.keep(name, compressed)
	return compressed, nil
}

func (d *document) compress(f format, plain []byte) ([]byte, error) {
	if d.compressedJSON != nil && f.name == runtime.ContentTypeJSON {
		return d.compressedJSON()
	}
	part, err := deflate.Compress(plain)
	if err != nil {
		return nil, err
	}
	return deflate.Join(part), nil
}
