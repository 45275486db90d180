package handlers

import (
	"net/http"
	"strings"

	"github.com/munnerz/goautoneg"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
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

// rewritten reports whether a body in JSON is laid out anew before it is sent.
func (o output) rewritten() bool { return o.pretty || o.media == codec.YAML }

// contentType is the response's header; parameters of a transformation are repeated in it as kube-apiserver does.
func (o output) contentType(stream bool) string {
	kind := [...]string{codec.JSON: "application/json", codec.Protobuf: "application/vnd.kubernetes.protobuf", codec.YAML: "application/yaml"}[o.media]
	if stream && o.media == codec.Protobuf {
		kind += ";stream=watch"
	}
	return kind
}

// negotiate picks the first of the client's choices that the target can be served as.
func negotiate(r *http.Request, t registry.Target) (output, error) {
	header := r.Header.Get("Accept")
	pretty := wantsPretty(r)
	if header == "" || header == "application/json" || header == "*/*" {
		return output{pretty: pretty}, nil
	}
	watching := isWatch(r)
	for _, clause := range goautoneg.ParseAccept(header) {
		if o, ok := choose(clause, t, watching); ok {
			o.pretty = pretty && o.media == codec.JSON
			return o, nil
		}
	}
	return output{}, negotiation.NewNotAcceptableError(offeredTo(t, watching))
}

// produced are the media types of a route of objects.
func produced(collection bool) []string {
	types := []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
	if collection {
		types = append(types, "application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch")
	}
	return types
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

// offeredTo lists the media types an error names.
func offeredTo(t registry.Target, watching bool) []string {
	switch {
	case t.Source == resource.Custom:
		return []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
	case watching:
		return []string{"application/json;stream=watch", "application/vnd.kubernetes.protobuf;stream=watch"}
	}
	return offered(t)
}

// offered lists the media types of bodies.
func offered(t registry.Target) []string {
	if t.Source == resource.Custom {
		return []string{"application/json", "application/yaml"}
	}
	return []string{"application/json", "application/yaml", "application/vnd.kubernetes.protobuf"}
}

// choose tries to satisfy one clause of an Accept header.
func choose(clause goautoneg.Accept, t registry.Target, watching bool) (output, bool) {
	o, ok := output{}, true
	if o.as, o.group, ok = transformation(clause.Params); !ok {
		return o, false
	}
	if o.as == table && t.Endpoint.NoTable {
		return o, false
	}
	o.list = clause.Params["as"] == "PartialObjectMetadataList"
	if o.media, ok = media(clause); !ok {
		return o, false
	}
	if stream := clause.Params["stream"]; stream != "" && stream != "watch" {
		return o, false
	}
	switch o.media {
	case codec.Protobuf:
		if o.as == table || (o.as == whole && t.Source == resource.Custom) {
			return o, wildcardFallback(clause, &o)
		}
	case codec.YAML:
		return o, !watching
	}
	return o, true
}

// wildcardFallback lets a wildcard fall back to JSON.
func wildcardFallback(clause goautoneg.Accept, o *output) bool {
	o.media = codec.JSON
	return clause.SubType == "*"
}

func media(clause goautoneg.Accept) (codec.Media, bool) {
	switch {
	case clause.Type == "*" && clause.SubType == "*":
		return codec.JSON, true
	case clause.Type != "application":
		return 0, false
	}
	switch clause.SubType {
	case "json", "*":
		return codec.JSON, true
	case "yaml":
		return codec.YAML, true
	case "vnd.kubernetes.protobuf":
		return codec.Protobuf, true
	}
	return 0, false
}

// transformation reads the parameters that ask for something else than the object.
func transformation(params map[string]string) (presentation, schema.GroupVersion, bool) {
	group := schema.GroupVersion{Group: params["g"], Version: params["v"]}
	switch params["as"] {
	case "":
		return whole, schema.GroupVersion{}, true
	case "Table":
		return table, group, isMeta(group)
	case "PartialObjectMetadata", "PartialObjectMetadataList":
		return metadataOnly, group, isMeta(group)
	}
	return whole, group, false
}

func isMeta(group schema.GroupVersion) bool {
	return group.Group == metav1.GroupName && (group.Version == "v1" || group.Version == "v1beta1")
}

// wantsPretty guesses, as kube-apiserver does, whether a person reads the response.
func wantsPretty(r *http.Request) bool {
	if strings.Contains(r.URL.RawQuery, "pretty=") {
		pretty := r.URL.Query().Get("pretty")
		return pretty == "1" || pretty == "true"
	}
	agent := r.UserAgent()
	return strings.HasPrefix(agent, "curl") || strings.HasPrefix(agent, "Wget") || strings.HasPrefix(agent, "Mozilla/5.0")
}
