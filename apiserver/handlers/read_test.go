package handlers_test

import (
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TestGet reads single objects.
func TestGet(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "x")
	s.run(t, []exchange{
		{
			name: "object", request: "GET " + configMaps + "/x", code: http.StatusOK,
			want:   `{kind: ConfigMap, apiVersion: v1, metadata: {name: x, namespace: a}, data: {key: x}}`,
			header: map[string]string{"Content-Type": jsonType, "Content-Encoding": ""},
		},
		{
			name: "from the cache", request: "GET " + configMaps + "/x?resourceVersion=0", code: http.StatusOK,
			want: `{data: {key: x}}`,
		},
		{
			name:    "revision that is no number, which kube-apiserver's Cacher reports without a status code",
			request: "GET " + configMaps + "/x?resourceVersion=x", code: http.StatusInternalServerError,
			want: `{message: '~resourceVersion: Invalid value: "x"'}`,
		},
		{
			name: "object that does not exist", request: "GET " + configMaps + "/z", code: http.StatusNotFound,
			want: `{kind: Status, reason: NotFound, details: {name: z, kind: configmaps}}`,
		},
		{
			name: "other namespace", request: "GET /api/v1/namespaces/b/configmaps/x", code: http.StatusNotFound,
		},
		{
			name: "name that cannot exist", request: "GET " + configMaps + "/%25", code: http.StatusBadRequest,
			want: `{message: 'Name parameter invalid: "%": may not contain ''%'''}`,
		},
		{
			name: "removed option", request: "GET " + configMaps + "/x?export=true", code: http.StatusBadRequest,
			want: `{message: "the export parameter, deprecated since v1.14, is no longer supported"}`,
		},
		{name: "removed option, unused", request: "GET " + configMaps + "/x?export=false", code: http.StatusOK},
		{
			name: "list of metadata for one object", request: "GET " + configMaps + "/x", code: http.StatusNotAcceptable,
			accepts: jsonType + ";as=PartialObjectMetadataList;v=v1;g=meta.k8s.io",
			want: `{reason: NotAcceptable,
				message: "~you requested PartialObjectMetadataList, but the requested object is not a list"}`,
		},
		{
			name: "deprecated version of a custom resource", code: http.StatusNotFound,
			request: "GET /apis/example.com/v1beta1/namespaces/a/gadgets/x",
			header:  map[string]string{"Warning": `299 - "example.com/v1beta1 Gadget is deprecated; use example.com/v1 Gadget"`},
		},
	})
}

// names returns the names of the items of a list.
func names(t *testing.T, list any) (found []string) {
	t.Helper()
	items, ok := list.(map[string]any)["items"].([]any)
	if !ok {
		t.Fatalf("got %v, want a list", list)
	}
	for _, item := range items {
		found = append(found, field(t, item, "metadata", "name"))
	}
	return found
}

// TestList reads collections with selectors and options.
func TestList(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "a", "b", "c")
	s.run(t, []exchange{
		{
			name: "namespace", request: "GET " + configMaps, code: http.StatusOK,
			want: `{kind: ConfigMapList, apiVersion: v1, metadata: {resourceVersion: "*", continue: null},
				items: [{metadata: {name: a}, kind: null}, {metadata: {name: b}}, {metadata: {name: c}}]}`,
		},
		{
			name: "all namespaces", request: "GET /api/v1/configmaps", code: http.StatusOK,
			want: `{items: [{metadata: {name: a, namespace: a}}, {}, {}]}`,
		},
		{
			name: "empty namespace", request: "GET /api/v1/namespaces/b/configmaps", code: http.StatusOK,
			want: `{kind: ConfigMapList, items: []}`,
		},
		{
			name: "labels", request: "GET " + configMaps + "?labelSelector=name+notin+(b)", code: http.StatusOK,
			want: `{items: [{metadata: {name: a}}, {metadata: {name: c}}]}`,
		},
		{
			name: "name", request: "GET " + configMaps + "?fieldSelector=metadata.name%3Db", code: http.StatusOK,
			want: `{kind: ConfigMapList, items: [{metadata: {name: b}}]}`,
		},
		{
			name: "other fields", request: "GET " + configMaps + "?fieldSelector=metadata.namespace!%3Da",
			code: http.StatusOK, want: `{items: []}`,
		},
		{
			name: "field that is not selectable", request: "GET " + configMaps + "?fieldSelector=data.key%3Da",
			code: http.StatusBadRequest, want: `{reason: BadRequest, message: '~"data.key" is not a known field selector'}`,
		},
		{
			name: "kind with custom items, which have their kind", request: "GET " + gadgetsInA, code: http.StatusOK,
			want: `{kind: GadgetList, apiVersion: example.com/v1, items: []}`,
		},
		{
			name: "invalid combination", request: "GET " + configMaps + "?resourceVersionMatch=Exact",
			code: http.StatusUnprocessableEntity,
			want: `{details: {kind: ListOptions, causes: [{field: resourceVersionMatch, reason: FieldValueForbidden}]}}`,
		},
		{
			name: "option that cannot be parsed", request: "GET " + configMaps + "?limit=x", code: http.StatusBadRequest,
			want: `{reason: BadRequest, message: "~invalid syntax"}`,
		},
		{
			name: "continue token that cannot be parsed", request: "GET " + configMaps + "?limit=1&continue=x",
			code: http.StatusBadRequest, want: `{message: "~continue key is not valid"}`,
		},
		{
			name: "metadata of one object for a list", request: "GET " + configMaps, code: http.StatusNotAcceptable,
			accepts: jsonType + ";as=PartialObjectMetadata;v=v1;g=meta.k8s.io",
			want:    `{message: "~you requested PartialObjectMetadata, but the requested object is a list"}`,
		},
	})
	full := s.do(t, exchange{request: "GET " + configMaps, code: http.StatusOK})
	past := field(t, full, "metadata", "resourceVersion")
	s.create(t, "d")
	s.do(t, exchange{
		request: "GET " + configMaps + "?resourceVersionMatch=Exact&resourceVersion=" + past, code: http.StatusOK,
		want: `{metadata: {resourceVersion: "` + past + `"}, items: [{}, {}, {}]}`,
	})
	full = s.do(t, exchange{request: "GET " + configMaps, code: http.StatusOK})
	now := field(t, full, "metadata", "resourceVersion")
	s.do(t, exchange{
		request: "GET " + configMaps + "?resourceVersionMatch=NotOlderThan&resourceVersion=" + now, code: http.StatusOK,
		want: `{items: [{}, {}, {}, {}]}`,
	})
}

// TestPages reads a collection in pages while it changes. All pages show the state of the first page.
func TestPages(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "a", "b", "c", "d", "e")
	page := s.do(t, exchange{
		request: "GET " + configMaps + "?limit=2", code: http.StatusOK,
		want: `{metadata: {continue: "*", remainingItemCount: 3}}`,
	})
	s.create(t, "bb", "f")
	read, revision := names(t, page), field(t, page, "metadata", "resourceVersion")
	for range 2 {
		page = s.do(t, exchange{
			request: "GET " + configMaps + "?limit=2&continue=" + url.QueryEscape(field(t, page, "metadata", "continue")),
			code:    http.StatusOK, want: `{metadata: {resourceVersion: "` + revision + `"}}`,
		})
		read = append(read, names(t, page)...)
	}
	if want := []string{"a", "b", "c", "d", "e"}; !slices.Equal(read, want) {
		t.Errorf("the pages have the names %v, want %v", read, want)
	}
	if err := contains(page, parsed(t, `{metadata: {continue: null, remainingItemCount: null}}`), ""); err != nil {
		t.Errorf("last page: %v", err)
	}
}

// TestRoutes sends requests that kube-apiserver's routes reject before a handler runs, and requests whose path contains
// a verb.
func TestRoutes(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	const (
		notFound = `{kind: Status, reason: NotFound, message: the server could not find the requested resource, code: 404}`
		method   = `{kind: Status, reason: MethodNotAllowed, code: 405,
			message: the server does not allow this method on the requested resource}`
	)
	s.run(t, []exchange{
		{name: "unknown subresource", request: "GET " + configMaps + "/x/log", code: http.StatusNotFound, want: notFound},
		{
			name: "unknown subresource, custom", request: "GET " + gadgetsInA + "/x/log", code: http.StatusNotFound,
			want: `{reason: NotFound, message: gadgets.example.com "x" not found}`,
		},
		{name: "too deep", request: "GET " + configMaps + "/x/y/z", code: http.StatusNotFound, want: notFound},
		{
			name: "object of a namespaced kind without a namespace", request: "GET /api/v1/configmaps/x",
			code: http.StatusNotFound, want: notFound,
		},
		{
			name: "object without a namespace, custom", request: "GET /apis/example.com/v1/gadgets/x",
			code: http.StatusNotFound, want: `"~404 page not found"`,
		},
		{
			name: "cluster-scoped kind in a namespace", request: "GET /api/v1/namespaces/a/nodes", code: http.StatusNotFound,
			want: notFound,
		},
		{name: "POST to an object", request: "POST " + configMaps + "/x", code: http.StatusMethodNotAllowed, want: method},
		{
			name: "POST to all namespaces", request: "POST /api/v1/configmaps", code: http.StatusMethodNotAllowed, want: method,
		},
		{name: "PUT to a collection", request: "PUT " + configMaps, code: http.StatusMethodNotAllowed, want: method},
		{
			name: "PUT to a collection, custom", request: "PUT " + gadgetsInA, code: http.StatusBadRequest,
			want: `{message: name must be provided}`,
		},
		{name: "HEAD", request: "HEAD " + configMaps, code: http.StatusMethodNotAllowed},
		{
			name: "verb that is not supported", request: "DELETE /api/v1/namespaces/a/pods/x/status",
			code: http.StatusMethodNotAllowed, want: method,
		},
		{
			name: "verb that is not supported, custom", request: "DELETE " + gadgetsInA + "/x/status",
			code: http.StatusMethodNotAllowed,
			want: `{message: '~delete is not supported on resources of kind "gadgets.example.com"'}`,
		},
		{
			name: "list of a kind that can only be created", request: "GET /apis/authorization.k8s.io/v1/subjectaccessreviews",
			code: http.StatusMethodNotAllowed, want: method,
		},
		{
			name: "watch of a kind that cannot be watched", request: "GET /api/v1/componentstatuses?watch=1",
			code: http.StatusMethodNotAllowed,
			want: `{message: '~watch is not supported on resources of kind "componentstatuses"'}`,
		},
		{
			name: "Accept header of the route", request: "GET " + configMaps + "/x", accepts: "text/html",
			code: http.StatusNotAcceptable,
			want: `{message: "~406: Not Acceptable"}`,
		},
		{
			name: "POST to the path of a watch", request: "POST /api/v1/watch/configmaps", code: http.StatusMethodNotAllowed,
			want: method,
		},
		{name: "former proxy", request: "GET /api/v1/proxy/nodes/x", code: http.StatusNotFound, want: notFound},
		{
			name: "status of a namespace", request: "GET /api/v1/namespaces/missing/status", code: http.StatusNotFound,
			want: `{message: namespaces "missing" not found}`,
		},
		{
			name: "finalize of a namespace, which creates and updates nothing", code: http.StatusNotFound,
			request: "PUT /api/v1/namespaces/missing/finalize", sends: jsonType,
			body: `{"metadata":{"name":"missing"}}`, want: `{message: namespaces "missing" not found}`,
		},
	})
}

// age matches the cell of a table that changes every second.
var age = regexp.MustCompile(`"\d+s"`)

// TestLargeResponsesAreCompressed reads responses above and below the size at which they are compressed, with and
// without the header Accept-Encoding.
func TestLargeResponsesAreCompressed(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	large := strings.Repeat("x", 200<<10)
	s.create(t, "small")
	s.do(t, exchange{
		request: "POST " + configMaps, sends: jsonType, body: `{"metadata":{"name":"large"},"data":{"k":"` + large + `"}}`,
		code: http.StatusCreated,
	})
	for _, c := range []struct {
		name, url, encoding, accepts string
		compressed                   bool
	}{
		{"object", configMaps + "/large", "gzip", "", true},
		{"object, any encoding", configMaps + "/large", "br, gzip", "", true},
		{"object for other clients", configMaps + "/large", "", "", false},
		{"encoding with a weight, which kube-apiserver ignores", configMaps + "/large", "gzip;q=1", "", false},
		{"small object", configMaps + "/small", "gzip", "", false},
		{"list", configMaps, "gzip", "", true},
		{"list in YAML", configMaps, "gzip", yamlType, true},
		{"list in protobuf", configMaps, "gzip", protobufType, true},
		{"table with objects", configMaps + "?includeObject=Object", "gzip", tableType, true},
		{"table", configMaps, "gzip", tableType, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := exchange{request: "GET " + c.url, accepts: c.accepts}
			r := s.request(t, t.Context(), e)
			plain := s.receive(t, r).body
			if c.encoding != "" {
				r.Header.Set("Accept-Encoding", c.encoding)
			}
			got := s.receive(t, r)
			if compressed := got.header.Get("Content-Encoding") == "gzip"; compressed != c.compressed {
				t.Fatalf("compressed: %t, want %t", compressed, c.compressed)
			}
			if !c.compressed {
				return
			}
			if vary := got.header.Get("Vary"); vary != "Accept-Encoding" {
				t.Errorf("got the header Vary %q", vary)
			}
			if age.ReplaceAllString(uncompressed(t, got.body), "") != age.ReplaceAllString(string(plain), "") {
				t.Error("the compressed response differs")
			}
		})
	}
}
