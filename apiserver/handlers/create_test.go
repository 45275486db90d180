package handlers_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestCreate sends POST requests: valid objects in all media types, and bodies and options that must be refused.
func TestCreate(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	const named = `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%"},"data":{"k":"v"}}`
	body := func(name string) string { return strings.Replace(named, "%", name, 1) }
	s.run(t, []exchange{
		{
			name: "JSON", request: "POST " + configMaps, sends: jsonType, body: body("json"), code: http.StatusCreated,
			want: `{kind: ConfigMap, apiVersion: v1, data: {k: v}, metadata: {
				name: json, namespace: a, uid: "*", resourceVersion: "*", creationTimestamp: "*",
				managedFields: [{manager: tester, operation: Update, apiVersion: v1, fieldsV1: {"f:data": {}}}]}}`,
			header: map[string]string{"Content-Type": jsonType, "Warning": ""},
		},
		{
			name: "YAML", request: "POST " + configMaps, sends: yamlType, code: http.StatusCreated,
			body: "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: yaml\n", want: `{metadata: {name: yaml}}`,
		},
		{
			name: "no media type means JSON", request: "POST " + configMaps, body: body("untyped"),
			code: http.StatusCreated, want: `{metadata: {name: untyped}}`,
		},
		{
			name: "generated name", request: "POST " + configMaps + "?fieldManager=me", sends: jsonType,
			body: `{"metadata":{"generateName":"x-"},"apiVersion":"v1","kind":"ConfigMap"}`, code: http.StatusCreated,
			want: `{metadata: {name: "~x-", generateName: x-}}`,
		},
		{
			name: "the kind is optional", request: "POST " + configMaps, sends: jsonType,
			body: `{"metadata":{"name":"kindless"}}`, code: http.StatusCreated, want: `{kind: ConfigMap}`,
		},
		{
			name: "system fields of the client are ignored", request: "POST " + configMaps, sends: jsonType,
			body: `{"metadata":{"name":"system","uid":"mine","deletionTimestamp":"2001-01-01T00:00:00Z"}}`,
			code: http.StatusCreated, want: `{metadata: {name: system, uid: "~-", deletionTimestamp: null}}`,
		},
		{
			name: "dry run", request: "POST " + configMaps + "?dryRun=All", sends: jsonType, body: body("dry"),
			code: http.StatusCreated, want: `{metadata: {name: dry, uid: "*", resourceVersion: null}}`,
		},
		{
			name: "a dry run stores nothing", request: "GET " + configMaps + "/dry", code: http.StatusNotFound,
			want: `{kind: Status, apiVersion: v1, metadata: {}, status: Failure, reason: NotFound, code: 404,
				message: configmaps "dry" not found, details: {name: dry, kind: configmaps}}`,
		},
		{
			name: "name that is taken", request: "POST " + configMaps, sends: jsonType, body: body("json"),
			code: http.StatusConflict,
			want: `{kind: Status, reason: AlreadyExists, message: configmaps "json" already exists,
				details: {name: json, kind: configmaps}}`,
		},
		{
			name: "invalid object", request: "POST " + configMaps, sends: jsonType, body: body("Not_A_Name"),
			code: http.StatusUnprocessableEntity,
			want: `{reason: Invalid, details: {kind: ConfigMap, name: Not_A_Name,
				causes: [{reason: FieldValueInvalid, field: metadata.name}]}}`,
		},
		{
			name: "other namespace", request: "POST " + configMaps, sends: jsonType,
			body: `{"metadata":{"name":"x","namespace":"b"}}`, code: http.StatusBadRequest,
			want: `{reason: BadRequest,
				message: the namespace of the provided object does not match the namespace sent on the request}`,
		},
		{
			name: "the namespace of a cluster-scoped object is ignored", request: "POST /api/v1/nodes", sends: jsonType,
			body: `{"metadata":{"name":"x","namespace":"b"}}`, code: http.StatusCreated,
			want: `{kind: Node, metadata: {name: x, namespace: null}}`,
		},
		{
			name: "other kind", request: "POST " + configMaps, sends: jsonType,
			body: `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"x"}}`, code: http.StatusBadRequest,
			want: `{message: '~Secret in version "v1" cannot be handled as a ConfigMap'}`,
		},
		{
			name: "other version", request: "POST /apis/apps/v1/namespaces/a/deployments", sends: jsonType,
			body: `{"apiVersion":"apps/v1beta1","kind":"Deployment","metadata":{"name":"x"}}`, code: http.StatusBadRequest,
			want: `{message: "~the API version in the data (apps/v1beta1) does not match the expected API version (apps/v1)"}`,
		},
		{
			name: "not JSON", request: "POST " + configMaps, sends: jsonType, body: "nonsense", code: http.StatusBadRequest,
			want: `{message: "~the object provided is unrecognized (must be of type ConfigMap)"}`,
		},
		{
			name: "truncated JSON", request: "POST " + configMaps, sends: jsonType,
			body: body("truncated")[:40], code: http.StatusBadRequest, want: `{message: "~unexpected end of JSON input"}`,
		},
		{
			name: "no body", request: "POST " + configMaps, sends: jsonType, code: http.StatusBadRequest,
			want: `{message: "~<empty>"}`,
		},
		{
			name: "media type that is not supported", request: "POST " + configMaps, sends: "text/plain", body: body("x"),
			code: http.StatusUnsupportedMediaType,
			want: `{reason: UnsupportedMediaType, message: "~the body of the request was in an unknown format - accepted media
				types include: application/json, application/yaml, application/vnd.kubernetes.protobuf"}`,
		},
		{
			name: "media type that cannot be parsed", request: "POST " + configMaps, sends: "/", body: body("x"),
			code: http.StatusUnsupportedMediaType,
		},
		{
			name: "invalid option", request: "POST " + configMaps + "?dryRun=Some", sends: jsonType, body: body("x"),
			code: http.StatusUnprocessableEntity,
			want: `{reason: Invalid, details: {group: meta.k8s.io, kind: CreateOptions,
				causes: [{field: dryRun, reason: FieldValueNotSupported}]}}`,
		},
		{
			name: "field manager that is too long", sends: jsonType, body: body("x"), code: http.StatusUnprocessableEntity,
			request: "POST " + configMaps + "?fieldManager=" + strings.Repeat("x", 129),
			want:    `{details: {causes: [{field: fieldManager}]}}`,
		},
	})
}

// TestFieldValidation sends bodies with an unknown and a duplicate field to a built-in kind and to a custom resource.
// The option fieldValidation decides whether the request fails, succeeds with warnings, or succeeds without warnings.
// The default is Warn.
func TestFieldValidation(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	for resource, c := range map[string]struct{ path, body, unknown, warnings string }{
		"built-in": {
			path:    configMaps,
			body:    `{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"%"},"what":1,"data":{"k":"1","k":"2"}}`,
			unknown: "what", warnings: `299 - "unknown field \"what\"", 299 - "duplicate field \"data.k\""`,
		},
		"custom": {
			path: gadgetsInA,
			body: `{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"%"},` +
				`"spec":{"what":1,"color":"red","color":"red"}}`,
			unknown: "spec.what", warnings: `299 - "duplicate field \"spec.color\"", 299 - "unknown field \"spec.what\""`,
		},
	} {
		body := func(name string) string { return strings.Replace(c.body, "%", name, 1) }
		s.run(t, []exchange{
			{
				name: resource + ", strict", request: "POST " + c.path + "?fieldValidation=Strict", sends: jsonType,
				body: body("strict"), code: http.StatusBadRequest,
				want: `{reason: BadRequest, message: '~strict decoding error: '}`, header: map[string]string{"Warning": ""},
			},
			{
				name: resource + ", default", request: "POST " + c.path, sends: jsonType, body: body("default"),
				code: http.StatusCreated, want: `{what: null}`,
				header: map[string]string{"Warning": c.warnings},
			},
			{
				name: resource + ", ignored", request: "POST " + c.path + "?fieldValidation=Ignore", sends: jsonType,
				body: body("ignored"), code: http.StatusCreated, header: map[string]string{"Warning": ""},
			},
			{
				name: resource + ", invalid option", request: "POST " + c.path + "?fieldValidation=Maybe", sends: jsonType,
				body: body("invalid"), code: http.StatusUnprocessableEntity,
				want: `{details: {kind: CreateOptions, causes: [{field: fieldValidation}]}}`,
			},
			{
				name: resource + ", strict update", request: "PUT " + c.path + "/default?fieldValidation=Strict",
				sends: jsonType, body: body("default"), code: http.StatusBadRequest,
				want: `{message: '~unknown field "` + c.unknown + `"'}`,
			},
			{
				name: resource + ", strict patch", request: "PATCH " + c.path + "/default?fieldValidation=Strict",
				sends: mergePatch, body: `{"metadata":{"labels":{"a":"b"}},"unknown":true}`, code: http.StatusUnprocessableEntity,
				want: `{reason: Invalid, message: '~unknown field "unknown"'}`,
			},
		})
	}
}

// TestLargeBodies sends bodies above the limit of 3 MiB. The handlers reject them without decoding them.
func TestLargeBodies(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	for _, request := range []string{
		"POST " + configMaps, "PUT " + configMaps + "/x", "PATCH " + configMaps + "/x", "DELETE " + configMaps + "/x",
	} {
		method, url, _ := strings.Cut(request, " ")
		r := httptest.NewRequest(method, url, strings.NewReader(strings.Repeat(" ", 3<<20+1))).WithContext(t.Context())
		r.Header.Set("Content-Type", jsonType)
		if method == http.MethodPatch {
			r.Header.Set("Content-Type", mergePatch)
		}
		response := httptest.NewRecorder() // a server may close the connection while the client sends the body
		s.ServeHTTP(response, r)
		err := contains(parsed(t, response.Body.String()), parsed(t, `{kind: Status, reason: RequestEntityTooLarge}`), "")
		if response.Code != http.StatusRequestEntityTooLarge || err != nil {
			t.Errorf("%s: got status code %d, %v", request, response.Code, err)
		}
	}
}
