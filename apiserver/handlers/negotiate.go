package handlers

import (
	"net/http"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// presentation is what of an object is shown.
type presentation int

const (
	whole presentation = iota
	metadataOnly
	table
)

// output is how a client wants its response.
type output struct {
	media  codec.Media
	as     presentation
	list   bool                // of PartialObjectMetadata: the list was asked for
	group  schema.GroupVersion // of Table and PartialObjectMetadata: meta.k8s.io/v1 or v1beta1
	pretty bool
	// undecorated is set where objects are shown as they are stored, without Definition.Decorate.
	undecorated bool
}

// reformatted reports whether the JSON body is indented or converted to YAML before it is sent.
func (o output) reformatted() bool { return o.pretty || o.media == codec.YAML }

// contentType is the response's header; parameters of a transformation are repeated in it as kube-apiserver does.
func (o output) contentType(stream bool) string {
	kind := [...]string{codec.JSON: "application/json", codec.Protobuf: "application/vnd.kubernetes.protobuf", codec.YAML: "application/yaml"}[o.media]
	if stream && o.media == codec.Protobuf {
		kind += ";stream=watch"
	}
	return kind
}

// negotiate picks the first of the client's choices that the target can be served as, the way kube-apiserver does.
func negotiate(r *http.Request, t registry.Target) (output, error) {
	header := r.Header.Get("Accept")
	if header == "" || header == "application/json" || header == "*/*" {
		return output{pretty: wantsPretty(r)}, nil
	}
	chosen, ok := negotiation.NegotiateMediaTypeOptions(header, serializers, restrictions{custom: t.Source == resource.Custom, tables: !t.Endpoint.NoTable})
	if !ok {
		return output{}, negotiation.NewNotAcceptableError(mediaTypes)
	}
	o := output{media: mediaOf(chosen.Accepted.MediaTypeSubType)}
	o.pretty = o.media == codec.JSON && (chosen.Pretty || wantsPretty(r))
	if chosen.Convert != nil {
		o.group, o.as = chosen.Convert.GroupVersion(), metadataOnly
		o.list = chosen.Convert.Kind == "PartialObjectMetadataList"
		if chosen.Convert.Kind == "Table" {
			o.as = table
		}
	}
	return o, nil
}

// streamable is the error of an output that there are no streams of.
func (o output) streamable() error {
	if o.media == codec.YAML {
		return negotiation.NewNotAcceptableError([]string{"application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"})
	}
	return nil
}

// What is written, in kube-apiserver's order.
var (
	mediaTypes  = []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
	serializers = []runtime.SerializerInfo{
		{MediaType: mediaTypes[0], MediaTypeType: "application", MediaTypeSubType: "json", StreamSerializer: &runtime.StreamSerializerInfo{}},
		{MediaType: mediaTypes[1], MediaTypeType: "application", MediaTypeSubType: "yaml"},
		{MediaType: mediaTypes[2], MediaTypeType: "application", MediaTypeSubType: "vnd.kubernetes.protobuf", StreamSerializer: &runtime.StreamSerializerInfo{}},
	}
)

func mediaOf(subType string) codec.Media {
	switch subType {
	case "yaml":
		return codec.YAML
	case "vnd.kubernetes.protobuf":
		return codec.Protobuf
	}
	return codec.JSON
}

// restrictions says what a target can be served as: kube-apiserver's RequestScope.
type restrictions struct {
	custom bool
	tables bool // its objects can be rows
}

// AllowsMediaTypeTransform implements negotiation.EndpointRestrictions. Custom resources have no protobuf, their metadata
// has; tables are text.
func (r restrictions) AllowsMediaTypeTransform(_, subType string, kind *schema.GroupVersionKind) bool {
	text := mediaOf(subType) != codec.Protobuf
	switch {
	case kind == nil:
		return text || !r.custom
	case !isMeta(kind.GroupVersion()):
		return false
	case kind.Kind == "Table":
		return text && r.tables
	}
	return kind.Kind == "PartialObjectMetadata" || kind.Kind == "PartialObjectMetadataList"
}

// AllowsServerVersion implements negotiation.EndpointRestrictions.
func (restrictions) AllowsServerVersion(version string) bool {
	return version == metav1.SchemeGroupVersion.Version
}

// AllowsStreamSchema implements negotiation.EndpointRestrictions.
func (restrictions) AllowsStreamSchema(schema string) bool { return schema == "watch" }

// produced are the media types of a route of objects.
func produced(collection bool) []string {
	if !collection {
		return mediaTypes
	}
	return append(mediaTypes[:3:3], "application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch")
}

// unsupported is the answer to a body of a type that a route does not consume.
func unsupported(message string) error {
	err := request.Generic(http.StatusUnsupportedMediaType)
	err.ErrStatus.Message = message
	return err
}

// isCollection reports whether a request lists or watches.
func isCollection(r *http.Request) bool {
	record := request.From(r.Context())
	return record != nil && (record.Info.Verb == "list" || record.Info.Verb == "watch")
}

// offered lists the media types of bodies.
func offered(t registry.Target) []string {
	if t.Source == resource.Custom {
		return mediaTypes[:2:2]
	}
	return mediaTypes
}

func isMeta(group schema.GroupVersion) bool {
	return group.Group == metav1.GroupName && (group.Version == "v1" || group.Version == "v1beta1")
}

// wantsPretty guesses, as kube-apiserver does, whether a person reads the response.
func wantsPretty(r *http.Request) bool {
	if strings.Contains(r.URL.RawQuery, "pretty") {
		if wanted := r.URL.Query().Get("pretty"); wanted != "" {
			pretty, _ := strconv.ParseBool(wanted)
			return pretty
		}
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}
