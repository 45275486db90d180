package handlers_test

import (
	"net/http"
	"net/url"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientscheme "k8s.io/client-go/kubernetes/scheme"
)

// TestMediaTypes sends and receives objects in all media types, and in forms that have another kind.
func TestMediaTypes(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	info, _ := runtime.SerializerInfoForMediaType(clientscheme.Codecs.SupportedMediaTypes(), protobufType)
	encoder := clientscheme.Codecs.EncoderForVersion(info.Serializer, corev1.SchemeGroupVersion)
	encoded, err := runtime.Encode(encoder, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: "x"}, Data: map[string]string{"k": "v"},
	})
	if err != nil {
		t.Fatal(err)
	}
	const v1, v1beta1 = ";v=v1;g=meta.k8s.io", ";v=v1beta1;g=meta.k8s.io"
	x, text := "GET "+configMaps+"/x", string(encoded)
	s.run(t, []exchange{
		{
			name: "protobuf", request: "POST " + configMaps, sends: protobufType, accepts: protobufType, body: text,
			code: http.StatusCreated, want: `{metadata: {name: x, uid: "*"}, data: {k: v}}`,
			header: map[string]string{"Content-Type": protobufType},
		},
		{
			name: "protobuf that cannot be decoded", request: "POST " + configMaps, sends: protobufType, body: text[:20],
			code: http.StatusBadRequest, want: `{message: "~the object provided is unrecognized"}`,
		},
		{
			name: "protobuf without its prefix", request: "POST " + configMaps, sends: protobufType,
			body: strings.Repeat("x", 40), code: http.StatusBadRequest,
			want: `{message: "~(` + strings.Repeat("78", 30) + ` ...)"}`,
		},
		{
			name: "YAML", request: x, accepts: yamlType, code: http.StatusOK,
			want:   `{kind: ConfigMap, apiVersion: v1, data: {k: v}}`,
			header: map[string]string{"Content-Type": yamlType},
		},
		{
			name: "YAML of a write", request: "PATCH " + configMaps + "/x", sends: mergePatch, body: "{}", accepts: yamlType,
			code: http.StatusOK, want: `{data: {k: v}}`, header: map[string]string{"Content-Type": yamlType},
		},
		{
			name: "list in YAML", request: "GET " + configMaps, accepts: yamlType, code: http.StatusOK,
			want: `{kind: ConfigMapList, items: [{data: {k: v}}]}`,
		},
		{
			name: "list in protobuf", request: "GET " + configMaps, accepts: protobufType, code: http.StatusOK,
			want: `{items: [{data: {k: v}}]}`,
		},
		{
			name: "metadata", request: x, accepts: jsonType + ";as=PartialObjectMetadata" + v1, code: http.StatusOK,
			want:   `{kind: PartialObjectMetadata, apiVersion: meta.k8s.io/v1, metadata: {name: x, uid: "*"}, data: null}`,
			header: map[string]string{"Content-Type": jsonType},
		},
		{
			name: "metadata of an earlier version", request: x, accepts: jsonType + ";as=PartialObjectMetadata" + v1beta1,
			code: http.StatusOK, want: `{kind: PartialObjectMetadata, apiVersion: meta.k8s.io/v1beta1}`,
		},
		{
			name: "metadata of a list", request: "GET " + configMaps, code: http.StatusOK,
			accepts: jsonType + ";as=PartialObjectMetadataList" + v1,
			want: `{kind: PartialObjectMetadataList,
				items: [{kind: PartialObjectMetadata, metadata: {name: x}, data: null}]}`,
		},
		{
			name: "metadata of a write", request: "PATCH " + configMaps + "/x", sends: mergePatch, code: http.StatusOK,
			body: `{"data":{"k":"w"}}`, accepts: jsonType + ";as=PartialObjectMetadata" + v1,
			want: `{kind: PartialObjectMetadata, metadata: {name: x}, data: null}`,
		},
		{
			name: "the first form that is supported", request: x, code: http.StatusOK,
			accepts: jsonType + ";as=Unknown" + v1 + "," + jsonType, want: `{kind: ConfigMap}`,
		},
		{
			name: "form that is not supported", request: x, accepts: jsonType + ";as=Unknown" + v1,
			code: http.StatusNotAcceptable,
			want: `{message: "~only the following media types are accepted: application/json, application/yaml,
				application/vnd.kubernetes.protobuf"}`,
		},
		{
			name: "protobuf of a custom resource", request: "GET " + gadgetsInA, accepts: protobufType,
			code: http.StatusNotAcceptable,
		},
		{
			name: "error in YAML", request: "GET " + configMaps + "/y", accepts: yamlType, code: http.StatusNotFound,
			want: `{kind: Status, reason: NotFound}`, header: map[string]string{"Content-Type": yamlType},
		},
		{
			name: "error in protobuf", request: "GET " + configMaps + "/y", accepts: protobufType,
			code: http.StatusNotFound, want: `{reason: NotFound}`, header: map[string]string{"Content-Type": protobufType},
		},
	})
	for _, c := range []struct {
		name, url, accepts string
		indented           bool
	}{
		{"by default", configMaps + "/x", "", false},
		{"object", configMaps + "/x?pretty=true", "", true},
		{"list", configMaps + "?pretty=1", "", true},
		{"table", configMaps + "?pretty=1", tableType, true},
		{"media type", configMaps + "/x", jsonType + ";pretty=1", true},
	} {
		body := s.receive(t, s.request(t, t.Context(), exchange{request: "GET " + c.url, accepts: c.accepts})).body
		if got := strings.HasPrefix(string(body), "{\n  \"kind\": "); got != c.indented {
			t.Errorf("pretty, %s: indented %t, want %t: %s", c.name, got, c.indented, body)
		}
	}
}

// TestTables reads tables, which kubectl get prints.
func TestTables(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "a", "b")
	s.do(t, exchange{
		request: "POST " + gadgetsInA, sends: jsonType, code: http.StatusCreated,
		body: `{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"g"},"spec":{"color":"red","replicas":1}}`,
	})
	const columns = `columnDefinitions: [{name: Name, type: string, format: name}, {name: Data}, {name: Age}]`
	first := s.do(t, exchange{request: "GET " + configMaps + "?limit=1", code: http.StatusOK})
	next := url.QueryEscape(field(t, first, "metadata", "continue"))
	revision := field(t, first, "metadata", "resourceVersion")
	s.run(t, []exchange{
		{
			name: "list", request: "GET " + configMaps, accepts: tableType, code: http.StatusOK,
			want: `{kind: Table, apiVersion: meta.k8s.io/v1, metadata: {resourceVersion: "` + revision + `"},
				` + columns + `, rows: [
				{cells: [a, 1, "*"], object: {kind: PartialObjectMetadata, apiVersion: meta.k8s.io/v1, metadata: {name: a}}},
				{cells: [b, 1, "*"]}]}`,
			header: map[string]string{"Content-Type": jsonType},
		},
		{
			name: "object", request: "GET " + configMaps + "/a", accepts: tableType, code: http.StatusOK,
			want: `{kind: Table, ` + columns + `, rows: [{cells: [a, 1, "*"], object: {metadata: {name: a}}}]}`,
		},
		{
			name: "page", request: "GET " + configMaps + "?limit=1&continue=" + next, accepts: tableType,
			code: http.StatusOK, want: `{metadata: {continue: null}, rows: [{cells: [b, 1, "*"]}]}`,
		},
		{
			name: "whole objects", request: "GET " + configMaps + "?includeObject=Object", accepts: tableType,
			code: http.StatusOK, want: `{rows: [{object: {kind: ConfigMap, apiVersion: v1, data: {key: a}}}, {}]}`,
		},
		{
			name: "no objects", request: "GET " + configMaps + "?includeObject=None", accepts: tableType,
			code: http.StatusOK, want: `{rows: [{cells: [a, 1, "*"], object: null}, {}]}`,
		},
		{
			name: "unknown objects", request: "GET " + configMaps + "?includeObject=Some", accepts: tableType,
			code: http.StatusBadRequest, want: `{message: "~Unable to convert to Table as requested: includeObject"}`,
		},
		{
			name: "unknown objects, one object", request: "GET " + configMaps + "/a?includeObject=Some", accepts: tableType,
			code: http.StatusBadRequest, want: `{message: "~Unable to convert to Table as requested"}`,
		},
		{
			name: "earlier version", request: "GET " + configMaps + "/a", code: http.StatusOK,
			accepts: jsonType + ";as=Table;v=v1beta1;g=meta.k8s.io",
			want: `{kind: Table, apiVersion: meta.k8s.io/v1beta1,
				rows: [{object: {kind: PartialObjectMetadata, apiVersion: meta.k8s.io/v1beta1}}]}`,
		},
		{
			name: "YAML", request: "GET " + configMaps, accepts: yamlType + ";as=Table;v=v1;g=meta.k8s.io",
			code: http.StatusOK, want: `{kind: Table, rows: [{cells: [a, 1, "*"]}, {}]}`,
			header: map[string]string{"Content-Type": yamlType},
		},
		{
			name: "protobuf has no tables", request: "GET " + configMaps, code: http.StatusNotAcceptable,
			accepts: protobufType + ";as=Table;v=v1;g=meta.k8s.io",
		},
		{
			name: "no rows", request: "GET /api/v1/namespaces/b/configmaps", accepts: tableType, code: http.StatusOK,
			want: `{kind: Table, metadata: {resourceVersion: "*"}, ` + columns + `, rows: []}`,
		},
		{
			name: "columns of a custom resource", request: "GET " + gadgetsInA, accepts: tableType, code: http.StatusOK,
			want: `{columnDefinitions: [{name: Name}, {name: Color}],
				rows: [{cells: [g, red], object: {kind: PartialObjectMetadata, metadata: {name: g}}}]}`,
		},
		{
			name: "write", request: "POST " + configMaps, accepts: tableType, sends: jsonType,
			body: `{"metadata":{"name":"c"},"data":{"k":"1","l":"2"}}`, code: http.StatusCreated,
			want: `{kind: Table, rows: [{cells: [c, 2, "*"]}]}`,
		},
		{
			name: "deletion, which responds with a Status", request: "DELETE " + configMaps + "/c", accepts: tableType,
			code: http.StatusOK, want: `{kind: Status, status: Success}`,
		},
		{
			name: "view of a subresource", request: "GET " + gadgetsInA + "/g/scale", accepts: tableType,
			code: http.StatusOK, want: `{kind: Table, rows: [{cells: [g, 1, 0, "*"]}],
				columnDefinitions: [{name: Name}, {name: Desired}, {name: Available}, {name: Age}]}`,
		},
	})
}
