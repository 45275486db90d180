package reduction

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func decode(t *testing.T, text string) Object {
	t.Helper()
	var document Object
	if err := json.Unmarshal([]byte(text), &document); err != nil {
		t.Fatal(err)
	}
	return document
}

func TestResource(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/api/v1/nodes/{name}":                                           "/v1/nodes",
		"/api/v1/namespaces":                                             "/v1/namespaces",
		"/api/v1/namespaces/{name}/finalize":                             "/v1/namespaces",
		"/api/v1/namespaces/{namespace}/pods/{name}/log":                 "/v1/pods",
		"/api/v1/watch/namespaces/{namespace}/pods":                      "/v1/pods",
		"/apis/apps/v1/namespaces/{namespace}/deployments/{name}/status": "apps/v1/deployments",
		"/apis/apps/v1/watch/deployments":                                "apps/v1/deployments",
		"/apis/apps/v1/":                                                 "",
		"/apis/apps/":                                                    "",
		"/api/":                                                          "",
		"/version/":                                                      "",
	} {
		if got, ok := Resource(path); got != want || ok != (want != "") {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
}

const swagger = `{
	"paths": {
		"/version/": {}, "/apis/": {}, "/apis/apps/": {}, "/apis/apps/v1/": {}, "/apis/batch/": {}, "/apis/batch/v1/": {},
		"/apis/apps/v1/deployments": {"parameters": [{"$ref": "#/parameters/limit"}], "get": {"schema": {"$ref": "#/definitions/List"}}},
		"/apis/batch/v1/jobs": {"parameters": [{"$ref": "#/parameters/watch"}], "get": {"schema": {"$ref": "#/definitions/Job"}}}
	},
	"definitions": {
		"List": {"items": {"$ref": "#/definitions/Deployment"}}, "Deployment": {"owner": {"$ref": "#/definitions/Deployment"}},
		"Job": {}, "Body": {}
	},
	"parameters": {"limit": {"schema": {"$ref": "#/definitions/Body"}}, "watch": {}},
	"info": {"title": "Kubernetes"}
}`

func apps(resource string) bool { return strings.HasPrefix(resource, "apps/") }

// TestReductionOfVersion2 keeps the paths of one group of a document, and the definitions that the paths refer to.
func TestReductionOfVersion2(t *testing.T) {
	t.Parallel()
	document := decode(t, swagger)
	if err := V2(document, apps); err != nil {
		t.Fatal(err)
	}
	for member, want := range map[string][]string{
		"paths":       {"/apis/", "/apis/apps/", "/apis/apps/v1/", "/apis/apps/v1/deployments", "/version/"},
		"definitions": {"Body", "Deployment", "List"},
		"parameters":  {"limit"},
	} {
		if got := slices.Sorted(maps.Keys(document[member].(Object))); !slices.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", member, got, want)
		}
	}
	if err := V2(decode(t, `{"paths": {}}`), apps); err == nil {
		t.Error("a document without definitions is accepted")
	}
}

// TestReductionOfVersion3 keeps no resource of a document.
func TestReductionOfVersion3(t *testing.T) {
	t.Parallel()
	document := decode(t,
		`{"paths": {"/apis/batch/v1/": {}, "/apis/batch/v1/jobs": {"get": {"$ref": "#/components/schemas/Job"}}},
		"components": {"schemas": {"Job": {}}}}`)
	if err := V3(document, apps); err != nil {
		t.Fatal(err)
	}
	if want := decode(t, `{"paths": {}, "components": {"schemas": {}}}`); !reflect.DeepEqual(document, want) {
		t.Errorf("got %v, want %v", document, want)
	}
	if err := V3(decode(t, `{"paths": {}}`), apps); err == nil {
		t.Error("a document without schemas is accepted")
	}
}

// TestInsertionPoints inserts a path and a definition into an encoded document.
func TestInsertionPoints(t *testing.T) {
	t.Parallel()
	encoded, at, err := EncodeV2(decode(t, swagger))
	if err != nil {
		t.Fatal(err)
	}
	inserted := string(encoded[:at.Paths]) + `,"/new": {}` + string(encoded[at.Paths:at.Definitions]) + `,"New": {}` +
		string(encoded[at.Definitions:])
	want := decode(t, swagger)
	want["paths"].(Object)["/new"], want["definitions"].(Object)["New"] = Object{}, Object{}
	if got := decode(t, inserted); !reflect.DeepEqual(got, want) {
		t.Errorf("got %s", inserted)
	}
	if _, _, err := EncodeV2(Object{"paths": make(chan int)}); err == nil {
		t.Error("a value that is no JSON is encoded")
	}
}
