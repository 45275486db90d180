package handlers_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
)

// TestUpdate sends PUT requests.
func TestUpdate(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "x")
	first := s.do(t, exchange{request: "GET " + configMaps + "/x", code: http.StatusOK})
	old := field(t, first, "metadata", "resourceVersion")
	s.run(t, []exchange{
		{
			name: "without a resource version", request: "PUT " + configMaps + "/x?fieldManager=me", sends: jsonType,
			body: `{"metadata":{"name":"x"},"data":{"k":"2"}}`, code: http.StatusOK,
			want: `{kind: ConfigMap, data: {k: "2", key: null}, metadata: {labels: null,
				uid: ` + field(t, first, "metadata", "uid") + `, managedFields: [{manager: me}, {manager: tester}]}}`,
		},
		{
			name: "with an old resource version", request: "PUT " + configMaps + "/x", sends: jsonType,
			body: `{"metadata":{"name":"x","resourceVersion":"` + old + `"}}`, code: http.StatusConflict,
			want: `{reason: Conflict, details: {name: x, kind: configmaps}, message: '~Operation cannot be fulfilled on
				configmaps "x": the object has been modified; please apply your changes to the latest version and try again'}`,
		},
		{
			name: "dry run", request: "PUT " + configMaps + "/x?dryRun=All", sends: jsonType,
			body: `{"metadata":{"name":"x"},"data":{"k":"3"}}`, code: http.StatusOK, want: `{data: {k: "3"}}`,
		},
		{
			name: "a dry run stores nothing", request: "GET " + configMaps + "/x", code: http.StatusOK,
			want: `{data: {k: "2"}}`,
		},
		{
			name: "other name", request: "PUT " + configMaps + "/x", sends: jsonType, body: `{"metadata":{"name":"y"}}`,
			code: http.StatusBadRequest,
			want: `{message: the name of the object (y) does not match the name on the URL (x)}`,
		},
		{
			name: "other namespace", request: "PUT " + configMaps + "/x", sends: jsonType,
			body: `{"metadata":{"name":"x","namespace":"b"}}`, code: http.StatusBadRequest, want: `{message: "~namespace"}`,
		},
		{
			name: "object that does not exist", request: "PUT " + configMaps + "/missing", sends: jsonType,
			body: `{"metadata":{"name":"missing"}}`, code: http.StatusNotFound,
			want: `{reason: NotFound, details: {name: missing}}`,
		},
		{
			name: "body that cannot be decoded", request: "PUT " + configMaps + "/x", sends: jsonType, body: "[]",
			code: http.StatusBadRequest, want: `{message: "~cannot unmarshal array"}`,
		},
		{
			name: "options are checked before the media type", request: "PUT " + configMaps + "/x?dryRun=Some",
			sends: "text/plain", code: http.StatusUnprocessableEntity, want: `{details: {kind: UpdateOptions}}`,
		},
		{
			name: "media type that is not supported", request: "PUT " + configMaps + "/x", sends: "text/plain",
			code: http.StatusUnsupportedMediaType,
		},
		{
			name: "protobuf is not supported for custom resources", request: "PUT " + gadgetsInA + "/x", sends: protobufType,
			code: http.StatusUnsupportedMediaType, want: `{message: "~accepted media types include: application/json,
				application/yaml"}`,
		},
	})
}

// TestUpdateCreates sends PUT requests for objects that do not exist, of a kind that may be created by an update. The
// user must be permitted to create the object, too.
func TestUpdateCreates(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	put := exchange{
		request: "PUT /apis/coordination.k8s.io/v1/namespaces/a/leases/x", sends: jsonType,
		body: `{"metadata":{"name":"x"}}`, code: http.StatusForbidden, want: `{reason: Forbidden}`,
	}
	s.permissions.denied = []string{"create"}
	s.do(t, put)
	s.permissions.denied = nil
	s.permissions.take()
	put.code, put.want = http.StatusCreated, `{kind: Lease, metadata: {name: x, uid: "*"}}`
	created := s.do(t, put)
	if checked := s.permissions.take(); !slices.Equal(checked, []string{"create leases for alice"}) {
		t.Errorf("the authorizer checked %v", checked)
	}
	put.code = http.StatusOK
	put.body = `{"metadata":{"name":"x","resourceVersion":"` + field(t, created, "metadata", "resourceVersion") + `"}}`
	s.do(t, put)
	if checked := s.permissions.take(); len(checked) > 0 {
		t.Errorf("an update of an existing object: the authorizer checked %v", checked)
	}
}

// TestSubresources updates the status and the scale of objects. The scale is an object of another kind.
func TestSubresources(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	const deployments = "/apis/apps/v1/namespaces/a/deployments"
	s.run(t, []exchange{
		{
			name: "create", request: "POST " + gadgetsInA, sends: jsonType, code: http.StatusCreated,
			body: `{"apiVersion":"example.com/v1","kind":"Gadget","metadata":{"name":"x"},` +
				`"spec":{"replicas":2},"status":{"replicas":9}}`,
			want: `{kind: Gadget, spec: {replicas: 2}, status: null, metadata: {generation: 1}}`,
		},
		{
			name: "status", request: "PATCH " + gadgetsInA + "/x/status", sends: mergePatch, code: http.StatusOK,
			body: `{"spec":{"replicas":7},"status":{"replicas":1}}`,
			want: `{kind: Gadget, spec: {replicas: 2}, status: {replicas: 1}, metadata: {generation: 1}}`,
		},
		{
			name: "update of a custom resource without a resource version", request: "PUT " + gadgetsInA + "/x/status",
			sends: yamlType, body: `{apiVersion: example.com/v1, kind: Gadget, metadata: {name: x}}`,
			code: http.StatusUnprocessableEntity,
			want: `{message: "~metadata.resourceVersion: Invalid value: 0: must be specified for an update"}`,
		},
		{
			name: "scale of a custom resource", request: "GET " + gadgetsInA + "/x/scale", code: http.StatusOK,
			want: `{kind: Scale, apiVersion: autoscaling/v1, spec: {replicas: 2}, status: {replicas: 1}}`,
		},
		{
			name: "scale up", request: "PATCH " + gadgetsInA + "/x/scale", sends: mergePatch, code: http.StatusOK,
			body: `{"spec":{"replicas":3}}`, want: `{kind: Scale, spec: {replicas: 3}}`,
		},
		{
			name: "scaled", request: "GET " + gadgetsInA + "/x", code: http.StatusOK,
			want: `{kind: Gadget, spec: {replicas: 3}, metadata: {generation: 2}}`,
		},
		{
			name: "create a Deployment", request: "POST " + deployments, sends: yamlType, code: http.StatusCreated,
			body: `{metadata: {name: x}, spec: {selector: {matchLabels: {a: b}}, template: {metadata: {labels: {a: b}},
				spec: {containers: [{name: c, image: i}]}}}}`,
			want: `{kind: Deployment, spec: {replicas: 1}}`,
		},
		{
			name: "scale of a Deployment", request: "PUT " + deployments + "/x/scale", sends: jsonType, code: http.StatusOK,
			body: `{"metadata":{"name":"x"},"spec":{"replicas":5}}`,
			want: `{kind: Scale, apiVersion: autoscaling/v1, spec: {replicas: 5}}`,
		},
		{
			name: "kind of another subresource", request: "PUT " + deployments + "/x/scale", sends: jsonType,
			body: `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"x"}}`, code: http.StatusBadRequest,
			want: `{message: '~Deployment in version "v1" cannot be handled as a Scale'}`,
		},
		{
			name: "binding to a node, which returns a Status", request: "POST /api/v1/namespaces/a/pods/p/binding",
			sends: jsonType, body: `{"metadata":{"name":"p"},"target":{"kind":"Node","name":"node-1"}}`,
			code: http.StatusNotFound,
			want: `{kind: Status, reason: NotFound, message: pods "p" not found}`,
		},
		{
			name: "create a pod", request: "POST /api/v1/namespaces/a/pods", sends: yamlType, code: http.StatusCreated,
			body: `{metadata: {name: p}, spec: {containers: [{name: c, image: i}]}}`,
			want: `{kind: Pod, spec: {nodeName: null}}`,
		},
		{
			name: "binding", request: "POST /api/v1/namespaces/a/pods/p/binding", sends: jsonType,
			body: `{"metadata":{"name":"p"},"target":{"kind":"Node","name":"node-1"}}`, code: http.StatusCreated,
			want: `{kind: Status, apiVersion: v1, status: Success, code: 201}`,
		},
		{
			name: "bound", request: "GET /api/v1/namespaces/a/pods/p", code: http.StatusOK, want: `{spec: {nodeName: node-1}}`,
		},
	})
}

// TestPatch sends patches of all types, and checks the object in each response.
func TestPatch(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	s.create(t, "x")
	patch := "PATCH " + configMaps + "/x"
	s.run(t, []exchange{
		{
			name: "JSON patch", request: patch, sends: jsonPatch, code: http.StatusOK,
			body: `[{"op":"test","path":"/data/key","value":"x"},{"op":"add","path":"/data/json","value":"1"}]`,
			want: `{kind: ConfigMap, data: {key: x, json: "1"}}`,
		},
		{
			name: "merge patch", request: patch, sends: mergePatch + "; charset=utf-8", code: http.StatusOK,
			body: `{"data":{"json":null,"merge":"1"}}`, want: `{data: {key: x, merge: "1", json: null}}`,
		},
		{
			name: "strategic merge patch", request: patch + "?fieldManager=me", sends: strategic, code: http.StatusOK,
			body: `{"metadata":{"finalizers":["example.com/a"]},"data":{"$patch":"replace","strategic":"1"}}`,
			want: `{data: {strategic: "1", key: null}, metadata: {finalizers: [example.com/a]}}`,
		},
		{
			name: "strategic merge patch of a list", request: patch, sends: strategic, code: http.StatusOK,
			body: `{"metadata":{"finalizers":["example.com/b"]}}`,
			want: `{metadata: {finalizers: [example.com/b, example.com/a]}}`,
		},
		{
			name: "dry run", request: patch + "?dryRun=All", sends: mergePatch, code: http.StatusOK,
			body: `{"data":{"dry":"1"}}`, want: `{data: {dry: "1"}}`,
		},
		{
			name: "a dry run stores nothing", request: "GET " + configMaps + "/x", code: http.StatusOK,
			want: `{data: {dry: null}}`,
		},
		{
			name: "failed test of a JSON patch", request: patch, sends: jsonPatch, code: http.StatusUnprocessableEntity,
			body: `[{"op":"test","path":"/data/strategic","value":"2"}]`, want: `{reason: Invalid}`,
		},
		{
			name: "invalid JSON", request: patch, sends: mergePatch, body: "{", code: http.StatusBadRequest,
			want: `{reason: BadRequest, message: invalid JSON patch}`,
		},
		{
			name: "old resource version", request: patch, sends: mergePatch, code: http.StatusConflict,
			body: `{"metadata":{"resourceVersion":"1"}}`, want: `{reason: Conflict}`,
		},
		{
			name: "object that does not exist", request: "PATCH " + configMaps + "/missing", sends: mergePatch, body: "{}",
			code: http.StatusNotFound, want: `{reason: NotFound}`,
		},
		{
			name: "media type that is not a patch", request: patch, sends: jsonType, body: "{}",
			code: http.StatusUnsupportedMediaType, want: `{message: "415: Unsupported Media Type"}`,
		},
		{
			name: "no media type", request: patch, body: "{}", code: http.StatusUnsupportedMediaType,
			want: `{message: "415: Unsupported Media Type"}`,
		},
		{
			name: "strategic merge patch of a custom resource", request: "PATCH " + gadgetsInA + "/x", sends: strategic,
			body: "{}", code: http.StatusUnsupportedMediaType,
			want: `{message: "~accepted media types include: application/json-patch+json, application/merge-patch+json,
				application/apply-patch+yaml"}`,
		},
		{
			name: "force without apply", request: patch + "?force=true", sends: mergePatch, body: "{}",
			code: http.StatusUnprocessableEntity,
			want: `{details: {kind: PatchOptions, causes: [{field: force, reason: FieldValueForbidden}]}}`,
		},
		{
			name: "invalid result", request: patch, sends: mergePatch, body: `{"data":{"not a key":"x"}}`,
			code: http.StatusUnprocessableEntity, want: `{reason: Invalid, details: {kind: ConfigMap}}`,
		},
	})
}

// TestApply applies configurations of two managers to one object.
func TestApply(t *testing.T) {
	t.Parallel()
	s := newServer(t, nil)
	for kind, c := range map[string]struct{ path, config, value string }{
		"built-in": {configMaps, "{apiVersion: v1, kind: ConfigMap, metadata: {name: applied}, data: %}", "data"},
		"custom":   {gadgetsInA, "{apiVersion: example.com/v1, kind: Gadget, metadata: {name: applied}, spec: %}", "spec"},
	} {
		config := func(fields string) string { return strings.Replace(c.config, "%", fields, 1) }
		path := "PATCH " + c.path + "/applied?fieldManager="
		s.permissions.denied = []string{"create"}
		s.do(t, exchange{
			request: path + "one", sends: applyPatch, body: config("{color: red}"), code: http.StatusForbidden,
			want: `{reason: Forbidden}`,
		})
		s.permissions.denied = nil
		s.permissions.take()
		s.run(t, []exchange{
			{
				name: kind + ", create", request: path + "one", sends: applyPatch, body: config("{color: red}"),
				code: http.StatusCreated,
				want: `{` + c.value + `: {color: red}, metadata: {managedFields: [{manager: one, operation: Apply}]}}`,
			},
			{
				name: kind + ", conflict", request: path + "two", sends: applyPatch, body: config("{color: green}"),
				code: http.StatusConflict,
				want: `{reason: Conflict, details: {causes: [{reason: FieldManagerConflict, message: conflict with "one",
					field: .` + c.value + `.color}]}}`,
			},
			{
				name: kind + ", force", request: path + "two&force=true", sends: applyPatch, body: config("{color: green}"),
				code: http.StatusOK, want: `{` + c.value + `: {color: green}, metadata: {managedFields: [{manager: two}]}}`,
			},
			{
				name: kind + ", without a manager", request: "PATCH " + c.path + "/applied", sends: applyPatch,
				body: config("{}"), code: http.StatusUnprocessableEntity,
				want: `{details: {causes: [{field: fieldManager, reason: FieldValueRequired}]}}`,
			},
			{
				name: kind + ", not YAML", request: path + "one", sends: applyPatch, body: "a: [", code: http.StatusBadRequest,
				want: `{reason: BadRequest, message: "~error encoding patch: "}`,
			},
		})
		if checked := s.permissions.take(); len(checked) != 1 || !strings.HasPrefix(checked[0], "create ") {
			t.Errorf("%s: the authorizer checked %v, want only create", kind, checked)
		}
	}
}
