package handlers

import (
	"net/http"
	"slices"
	"strconv"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/endpoints/handlers/negotiation"

	"quorate.dev/apiserver/codec"
	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

// presentation is the kind of objects in the response: the resource's own kind, PartialObjectMetadata, or Table.
type presentation int

const (
	whole presentation = iota
	metadataOnly
	table
)

// output is the form of the response that the client and the server have negotiated.
type output struct {
	media codec.Media
	as    presentation
	// list is set if the client accepts PartialObjectMetadataList, with as == metadataOnly.
	list bool
	// group is the version of the kind in "as", meta.k8s.io/v1 or v1beta1; empty if as is whole.
	group  schema.GroupVersion
	pretty bool
	// undecorated is set if objects are shown as they are stored, without applying Definition.Decorate.
	undecorated bool
}

// reformatted reports whether the JSON body is indented or converted to YAML before it is sent.
func (o output) reformatted() bool { return o.pretty || o.media == codec.YAML }

// contentType returns the Content-Type of the response. Like kube-apiserver's, it omits the parameters "as", "g" and
// "v".
func (o output) contentType(stream bool) string {
	mediaType := [...]string{
		codec.JSON: runtime.ContentTypeJSON, codec.YAML: runtime.ContentTypeYAML,
		codec.Protobuf: runtime.ContentTypeProtobuf, codec.CBOR: runtime.ContentTypeCBOR,
	}[o.media]
	switch {
	case stream && o.media == codec.Protobuf:
		mediaType += ";stream=watch"
	case stream && o.media == codec.CBOR:
		mediaType = runtime.ContentTypeCBORSequence
	}
	return mediaType
}

// negotiate returns the first form in the Accept header that the target can be served in, by kube-apiserver's rules.
func negotiate(r *http.Request, t resource.Target) (output, error) {
	header := r.Header.Get("Accept")
	if header == "" || header == "application/json" || header == "*/*" {
		return output{pretty: wantsPretty(r)}, nil
	}
	allowed := restrictions{custom: t.Source == resource.Custom, tables: !t.Endpoint.NoTable}
	chosen, ok := negotiation.NegotiateMediaTypeOptions(header, serializers(), allowed)
	if !ok {
		return output{}, negotiation.NewNotAcceptableError(mediaTypes())
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

// streamable returns an error if a watch cannot be served in the output's media type.
func (o output) streamable() error {
	if o.media == codec.YAML {
		return negotiation.NewNotAcceptableError(streamTypes())
	}
	return nil
}

// The media types of responses and their streams, in kube-apiserver's order. The last one requires the feature gate
// CBORServingAndStorage.
var (
	allMediaTypes = []string{
		runtime.ContentTypeJSON, runtime.ContentTypeYAML, runtime.ContentTypeProtobuf, runtime.ContentTypeCBOR,
	}
	allStreamTypes = []string{
		runtime.ContentTypeJSON + ";stream=watch", runtime.ContentTypeProtobuf + ";stream=watch",
		runtime.ContentTypeCBORSequence,
	}
	allSerializers = []runtime.SerializerInfo{
		serializer("json", &runtime.StreamSerializerInfo{}),
		serializer("yaml", nil),
		serializer("vnd.kubernetes.protobuf", &runtime.StreamSerializerInfo{}),
		serializer("cbor", &runtime.StreamSerializerInfo{}),
	}
)

func mediaTypes() []string { return enabled(allMediaTypes) }

func streamTypes() []string { return enabled(allStreamTypes) }

func serializers() []runtime.SerializerInfo { return enabled(allSerializers) }

// enabled returns a list whose last element is for CBOR. It leaves out that element if the feature gate is disabled.
func enabled[T any](all []T) []T {
	if request.ServesCBOR() {
		return all
	}
	return all[: len(all)-1 : len(all)-1]
}

// serializer returns the fields of a SerializerInfo that negotiation reads. stream is nil if the media type has no
// streams.
func serializer(subType string, stream *runtime.StreamSerializerInfo) runtime.SerializerInfo {
	return runtime.SerializerInfo{
		MediaType: "application/" + subType, MediaTypeType: "application", MediaTypeSubType: subType,
		StreamSerializer: stream,
	}
}

func mediaOf(subType string) codec.Media {
	switch subType {
	case "yaml":
		return codec.YAML
	case "vnd.kubernetes.protobuf":
		return codec.Protobuf
	case "cbor":
		return codec.CBOR
	}
	return codec.JSON
}

// restrictions restrict the forms of a target's responses, as kube-apiserver's RequestScope does.
type restrictions struct {
	custom bool
	tables bool
}

// AllowsMediaTypeTransform implements negotiation.EndpointRestrictions. Tables are not available in protobuf and
// CBOR, and custom resources in protobuf only as PartialObjectMetadata.
func (r restrictions) AllowsMediaTypeTransform(_, subType string, kind *schema.GroupVersionKind) bool {
	media := mediaOf(subType)
	switch {
	case kind == nil:
		return media != codec.Protobuf || !r.custom
	case !isMeta(kind.GroupVersion()):
		return false
	case kind.Kind == "Table":
		return (media == codec.JSON || media == codec.YAML) && r.tables
	}
	return kind.Kind == "PartialObjectMetadata" || kind.Kind == "PartialObjectMetadataList"
}

// AllowsServerVersion implements negotiation.EndpointRestrictions.
func (restrictions) AllowsServerVersion(version string) bool {
	return version == metav1.SchemeGroupVersion.Version
}

// AllowsStreamSchema implements negotiation.EndpointRestrictions.
func (restrictions) AllowsStreamSchema(schema string) bool { return schema == "watch" }

// produced returns the media types that kube-apiserver's route for an object or a collection produces.
func produced(collection bool) []string {
	if !collection {
		return mediaTypes()
	}
	return slices.Concat(mediaTypes(), streamTypes())
}

// unsupported returns the error for a request body in a media type that the route does not consume.
func unsupported(message string) error {
	err := request.Generic(http.StatusUnsupportedMediaType)
	err.ErrStatus.Message = message
	return err
}

// isCollection reports whether the verb is list or watch.
func isCollection(r *http.Request) bool {
	record := request.From(r.Context())
	return record != nil && (record.Info.Verb == "list" || record.Info.Verb == "watch")
}

// offered returns the accepted media types of request bodies. Custom resources have no protobuf.
func offered(t resource.Target) []string {
	if t.Source == resource.Custom {
		return slices.DeleteFunc(slices.Clone(mediaTypes()), func(mediaType string) bool {
			return mediaType == runtime.ContentTypeProtobuf
		})
	}
	return mediaTypes()
}

func isMeta(group schema.GroupVersion) bool {
	return group.Group == metav1.GroupName && (group.Version == "v1" || group.Version == "v1beta1")
}

// wantsPretty reports whether to indent the response: as the parameter pretty says or, without it, for the user agents
// of browsers, curl and wget, as in kube-apiserver.
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
