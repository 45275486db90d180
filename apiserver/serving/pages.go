package serving

import (
	"io"
	"net/http"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer/cbor"
	jsonserializer "k8s.io/apimachinery/pkg/runtime/serializer/json"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"quorate.dev/apiserver/request"
)

// component is the name of kube-apiserver in its pages.
const component = "apiserver"

// pageGroup is the API group of pages that are served as objects. Its version v1alpha1 is deprecated.
const (
	pageGroup         = "config.k8s.io"
	pageVersion       = "v1beta1"
	deprecatedVersion = "v1alpha1"
)

// page describes this process: as text or, for clients that accept a kind of pageGroup, as an object.
type page interface {
	// path returns the page's path, for example "/statusz".
	path() string
	// kind returns the page's kind, for example "Statusz".
	kind() string
	writeText(w io.Writer)
	object(header pageHeader) runtime.Object
}

// pageHeader has the fields that all pages have when they are served as objects.
type pageHeader struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
}

// pageHandler serves a page for every method. It implements negotiation.EndpointRestrictions.
type pageHandler struct{ page }

func (h pageHandler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if strings.TrimSpace(r.Header.Get("Accept")) == "" {
		h.serveText(w)
		return
	}
	choice, format, err := negotiation.NegotiateOutputMediaType(r, pageFormats{}, h)
	switch {
	case err != nil:
		request.WriteTextError(w, r, err)
	case choice.Convert == nil:
		h.serveText(w)
	default:
		h.serveObject(w, *choice.Convert, format)
	}
}

func (h pageHandler) serveText(w http.ResponseWriter) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	_, _ = io.WriteString(w, "\n"+component+" "+strings.TrimPrefix(h.path(), "/")+`
Warning: This endpoint is not meant to be machine parseable, has no formatting compatibility guarantees and is for debugging purposes only.
`)
	h.writeText(w)
}

func (h pageHandler) serveObject(w http.ResponseWriter, kind schema.GroupVersionKind, format runtime.SerializerInfo) {
	if kind.Version == deprecatedVersion {
		w.Header().Set("Warning",
			`299 - "This version of the `+strings.TrimPrefix(h.path(), "/")+
				` endpoint is deprecated. Please use a newer version."`)
	}
	w.Header().Set("Content-Type", format.MediaType+";g="+kind.Group+";v="+kind.Version+";as="+kind.Kind)
	_ = format.Serializer.Encode(h.object(pageHeader{
		TypeMeta:   metav1.TypeMeta{APIVersion: kind.GroupVersion().String(), Kind: kind.Kind},
		ObjectMeta: metav1.ObjectMeta{Name: component},
	}), w)
}

// AllowsMediaTypeTransform implements negotiation.EndpointRestrictions. It allows plain text, and an object of the
// page's kind in a known version.
func (h pageHandler) AllowsMediaTypeTransform(mediaType, subtype string, kind *schema.GroupVersionKind) bool {
	if mediaType == "text" && subtype == "plain" {
		return kind == nil
	}
	return kind != nil && kind.Group == pageGroup && kind.Kind == h.kind() &&
		(kind.Version == pageVersion || kind.Version == deprecatedVersion)
}

// AllowsServerVersion implements negotiation.EndpointRestrictions.
func (pageHandler) AllowsServerVersion(string) bool { return false }

// AllowsStreamSchema implements negotiation.EndpointRestrictions.
func (pageHandler) AllowsStreamSchema(string) bool { return false }

// pageFormats provides the serializers of pages.
type pageFormats struct{}

func (pageFormats) SupportedMediaTypes() []runtime.SerializerInfo {
	formats := []runtime.SerializerInfo{
		{
			MediaType: runtime.ContentTypeJSON, MediaTypeType: "application", MediaTypeSubType: "json",
			Serializer: jsonserializer.NewSerializerWithOptions(nil, nil, nil, jsonserializer.SerializerOptions{}),
			PrettySerializer: jsonserializer.NewSerializerWithOptions(nil, nil, nil,
				jsonserializer.SerializerOptions{Pretty: true}),
		},
		{
			MediaType: runtime.ContentTypeYAML, MediaTypeType: "application", MediaTypeSubType: "yaml",
			Serializer: jsonserializer.NewSerializerWithOptions(nil, nil, nil, jsonserializer.SerializerOptions{Yaml: true}),
		},
		{MediaType: "text/plain", MediaTypeType: "text", MediaTypeSubType: "plain"},
	}
	if request.ServesCBOR() {
		formats = append(formats, cbor.NewSerializerInfo(nil, nil))
	}
	return formats
}

func (pageFormats) EncoderForVersion(e runtime.Encoder, _ runtime.GroupVersioner) runtime.Encoder {
	return e
}

func (pageFormats) DecoderToVersion(d runtime.Decoder, _ runtime.GroupVersioner) runtime.Decoder {
	return d
}
