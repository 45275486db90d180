package openapi_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	openapiv2 "github.com/google/gnostic-models/openapiv2"
	openapiv3 "github.com/google/gnostic-models/openapiv3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
	kjson "sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"quorate.dev/apiserver/crd"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/openapi"
	"quorate.dev/apiserver/resource"
)

const (
	v2Protobuf = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
	v3Protobuf = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
)

func widgets(t *testing.T) *resource.Definition {
	t.Helper()
	return definitionOf(t, func(*apiextensionsv1.CustomResourceDefinition) {})
}

// definitionOf returns the definition of the sample after a change.
func definitionOf(t *testing.T, change func(*apiextensionsv1.CustomResourceDefinition)) *resource.Definition {
	t.Helper()
	content, err := os.ReadFile("testdata/widgets.yaml")
	if err != nil {
		t.Fatal(err)
	}
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict(content, definition); err != nil {
		t.Fatal(err)
	}
	change(definition)
	definition.Status = crd.Conditions(definition, crd.Claim(), true)
	builder, err := crd.NewBuilder(&lazy.Set{}, nil, clock.RealClock{})
	if err != nil {
		t.Fatal(err)
	}
	made, err := builder.Definition(definition)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func deployments() *resource.Definition {
	kind := schema.GroupVersionKind{Group: "apps", Version: "v1", Kind: "Deployment"}
	return &resource.Definition{
		Group: "apps", Plural: "deployments", Versions: []*resource.Version{{Name: "v1", Kind: kind}},
	}
}

func handler(t *testing.T, definitions ...*resource.Definition) http.Handler {
	t.Helper()
	return handlerOf(t, openapi.Options{}, definitions)
}

// handlerOf returns a handler with the given options and the dependencies of tests.
func handlerOf(t *testing.T, options openapi.Options, definitions []*resource.Definition) http.Handler {
	t.Helper()
	publisher := &resource.CatalogHolder{}
	publisher.Publish(resource.NewCatalog(definitions...))
	now := clocktesting.NewFakePassiveClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	options.Catalogs, options.Remote, options.Idle = publisher, &remotes{}, &lazy.Set{}
	options.Clock, options.Logger = now, testr.New(t)
	h, err := openapi.New(options)
	if err != nil {
		t.Fatal(err)
	}
	return h
}

func get(h http.Handler, path string, header ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequest(http.MethodGet, path, nil)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

func decode(t *testing.T, content []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatalf("%v: %.200s", err, content)
	}
}

// index returns the URLs of the version 3 documents.
func index(t *testing.T, h http.Handler) map[string]string {
	t.Helper()
	var list struct {
		Paths map[string]struct{ ServerRelativeURL string }
	}
	decode(t, get(h, "/openapi/v3").Body.Bytes(), &list)
	addresses := map[string]string{}
	for path, entry := range list.Paths {
		addresses[path] = entry.ServerRelativeURL
	}
	return addresses
}

func TestIndexListsWhatIsServed(t *testing.T) {
	addresses := index(t, handler(t, deployments(), widgets(t)))
	for path, want := range map[string]bool{
		"apis/apps/v1": true, "apis/apps": true, "apis/example.com/v1": true, "version": true, "apis/batch/v1": false,
	} {
		if _, ok := addresses[path]; ok != want {
			t.Errorf("%s is listed: %v", path, ok)
		}
	}
}

// kubectl keeps the index on disk and requests it with If-Modified-Since, whose unit is the second.
func TestIndexThatChangesTwiceInASecond(t *testing.T) {
	publisher := &resource.CatalogHolder{}
	publisher.Publish(resource.NewCatalog(deployments()))
	now := clocktesting.NewFakePassiveClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	h, err := openapi.New(openapi.Options{
		Catalogs: publisher, Remote: &remotes{}, Idle: &lazy.Set{}, Clock: now, Logger: testr.New(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	before := get(h, "/openapi/v3")
	publisher.Publish(resource.NewCatalog(deployments(), widgets(t)))
	get(h, "/openapi/v3")
	now.SetTime(now.Now().Add(time.Second))
	after := get(h, "/openapi/v3", "If-Modified-Since", before.Header().Get("Last-Modified"))
	if after.Code != http.StatusOK || !strings.Contains(after.Body.String(), "apis/example.com/v1") {
		t.Errorf("status %d: %s", after.Code, after.Body)
	}
}

func TestCustomResourceV3(t *testing.T) {
	h := handler(t, widgets(t))
	w := get(h, index(t, h)["apis/example.com/v1"])
	var document spec3.OpenAPI
	decode(t, w.Body.Bytes(), &document)
	const item = "/apis/example.com/v1/namespaces/{namespace}/widgets/{name}"
	for _, path := range []string{"/apis/example.com/v1/widgets", item, item + "/status", item + "/scale"} {
		if document.Paths.Paths[path] == nil {
			t.Errorf("no path %s", path)
		}
	}
	patch := document.Paths.Paths[item].Patch
	if patch.OperationId != "patchExampleComV1NamespacedWidget" || patch.Extensions["x-kubernetes-action"] != "patch" {
		t.Errorf("patch %s %v", patch.OperationId, patch.Extensions)
	}
	names := map[string]bool{}
	for _, parameter := range patch.Parameters {
		names[parameter.Name] = true
	}
	if !names["fieldValidation"] || !names["force"] {
		t.Errorf("kubectl finds no fieldValidation among %v", names)
	}
	var got map[string]any
	encoded, err := json.Marshal(document.Components.Schemas["com.example.v1.Widget"].Properties["spec"])
	if err != nil {
		t.Fatal(err)
	}
	decode(t, encoded, &got)
	if difference := cmp.Diff(expected(t, "testdata/widget-spec-v3.json"), got); difference != "" {
		t.Errorf("spec (-want +got):\n%s", difference)
	}
	assertReferencesResolve(t, w.Body.Bytes(), "#/components/schemas/", func(name string) bool {
		return document.Components.Schemas[name] != nil
	})
}

func expected(t *testing.T, file string) map[string]any {
	t.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var value map[string]any
	decode(t, content, &value)
	return value
}

func assertReferencesResolve(t *testing.T, content []byte, prefix string, known func(string) bool) {
	t.Helper()
	parts := strings.Split(string(content), `"$ref":"`+prefix)
	if len(parts) < 2 {
		t.Error("no references")
	}
	for _, part := range parts[1:] {
		if name, _, _ := strings.Cut(part, `"`); !known(name) {
			t.Errorf("nothing is called %s", name)
		}
	}
}

func TestCustomResourceV2(t *testing.T) {
	h := handler(t, deployments(), widgets(t))
	w := get(h, "/openapi/v2")
	var document spec.Swagger
	decode(t, w.Body.Bytes(), &document)
	for _, path := range []string{"/apis/apps/v1/deployments", "/apis/example.com/v1/widgets"} {
		if _, ok := document.Paths.Paths[path]; !ok {
			t.Errorf("no path %s", path)
		}
	}
	var got map[string]any
	encoded, err := json.Marshal(document.Definitions["com.example.v1.Widget"].Properties["spec"])
	if err != nil {
		t.Fatal(err)
	}
	decode(t, encoded, &got)
	if difference := cmp.Diff(expected(t, "testdata/widget-spec-v2.json"), got); difference != "" {
		t.Errorf("spec (-want +got):\n%s", difference)
	}
	assertReferencesResolve(t, w.Body.Bytes(), "#/definitions/", func(name string) bool {
		_, ok := document.Definitions[name]
		return ok
	})
	assertReferencesResolve(t, w.Body.Bytes(), "#/parameters/", func(name string) bool {
		_, ok := document.Parameters[name]
		return ok
	})
}

// TestProtobuf checks that the protobuf encodings equal the JSON encodings.
func TestProtobuf(t *testing.T) {
	h := handler(t, deployments(), widgets(t))
	t.Run("v2", func(t *testing.T) {
		want, err := openapiv2.ParseDocument(get(h, "/openapi/v2").Body.Bytes())
		if err != nil {
			t.Fatal(err)
		}
		var got openapiv2.Document
		if err := proto.Unmarshal(get(h, "/openapi/v2", "Accept", v2Protobuf).Body.Bytes(), &got); err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(want, &got) {
			t.Error("the documents differ")
		}
	})
	for _, path := range []string{"apis/apps/v1", "apis/example.com/v1"} {
		t.Run(path, func(t *testing.T) {
			address := index(t, h)[path]
			want, err := openapiv3.ParseDocument(get(h, address).Body.Bytes())
			if err != nil {
				t.Fatal(err)
			}
			w := get(h, address, "Accept", v3Protobuf)
			var got openapiv3.Document
			if err := proto.Unmarshal(w.Body.Bytes(), &got); err != nil {
				t.Fatal(err)
			}
			if !proto.Equal(want, &got) || w.Header().Get("Content-Type") != v3Protobuf {
				t.Errorf("the documents differ, or the type %s", w.Header().Get("Content-Type"))
			}
		})
	}
}

func TestHashMakesImmutable(t *testing.T) {
	h := handler(t, widgets(t))
	address := index(t, h)["apis/example.com/v1"]
	w := get(h, address)
	if w.Header().Get("Cache-Control") != "public, immutable" ||
		w.Header().Get("Expires") != "Wed, 01 Jan 2031 00:00:00 UTC" {
		t.Errorf("headers %v", w.Header())
	}
	if w := get(h, address, "If-None-Match", w.Header().Get("Etag")); w.Code != http.StatusNotModified {
		t.Errorf("with its tag: %d", w.Code)
	}
	if w := get(h, "/openapi/v3/apis/example.com/v1?hash=OLD"); w.Code != http.StatusMovedPermanently ||
		w.Header().Get("Location") != address {
		t.Errorf("with another hash: %d %s", w.Code, w.Header().Get("Location"))
	}
	if w := get(h, "/openapi/v3/apis/example.com/v1"); w.Code != http.StatusOK || w.Header().Get("Cache-Control") != "" {
		t.Errorf("without hash: %d %v", w.Code, w.Header())
	}
}

func TestTagFollowsRevision(t *testing.T) {
	before, after := widgets(t), widgets(t)
	after.Revision = "another"
	for _, path := range []string{"/openapi/v2", "/openapi/v3/apis/example.com/v1"} {
		if get(handler(t, before), path).Header().Get("Etag") == get(handler(t, after), path).Header().Get("Etag") {
			t.Errorf("%s has the same tag", path)
		}
	}
}

func TestCompressed(t *testing.T) {
	for _, h := range []http.Handler{handler(t, deployments()), handler(t, deployments(), widgets(t))} {
		plain := get(h, "/openapi/v2")
		compressed := get(h, "/openapi/v2", "Accept-Encoding", "gzip")
		if compressed.Header().Get("Content-Encoding") != "gzip" {
			t.Fatal("not compressed")
		}
		reader, err := gzip.NewReader(compressed.Body)
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(reader)
		if err != nil || !bytes.Equal(content, plain.Body.Bytes()) {
			t.Errorf("%d bytes instead of %d: %v", len(content), plain.Body.Len(), err)
		}
	}
}

func TestRefuses(t *testing.T) {
	h := handler(t, widgets(t))
	for path, code := range map[string]int{
		"/openapi/v2": 406, "/openapi/v3/version": 406, "/openapi/v3/apis/none": 404, "/openapi/v3/": 404,
	} {
		if w := get(h, path, "Accept", "text/html"); w.Code != code {
			t.Errorf("%s: %d", path, w.Code)
		}
	}
}

// TestModelNameCollision has a custom resource whose model name, which is derived from the group, collides with that
// of a built-in kind.
func TestModelNameCollision(t *testing.T) {
	custom := definitionOf(t, func(d *apiextensionsv1.CustomResourceDefinition) {
		d.Name, d.Spec.Group = "deployments.apps.api.k8s.io", "apps.api.k8s.io"
		d.Spec.Names = apiextensionsv1.CustomResourceDefinitionNames{
			Plural: "deployments", Singular: "deployment", Kind: "Deployment", ListKind: "DeploymentList",
		}
	})
	h := handler(t, deployments(), custom)
	const kind, list = "io.k8s.api.apps.v1.Deployment_v2", "io.k8s.api.apps.v1.DeploymentList_v2"

	content := get(h, "/openapi/v2").Body.Bytes()
	var document map[string]any
	if duplicates, err := kjson.UnmarshalStrict(content, &document); err != nil || len(duplicates) > 0 {
		t.Fatalf("%v, twice: %v", err, duplicates)
	}
	definitions := document["definitions"].(map[string]any)
	for _, name := range []string{kind, list} {
		if definitions[name] == nil {
			t.Errorf("there is no %s", name)
		}
	}
	path := document["paths"].(map[string]any)["/apis/apps.api.k8s.io/v1/deployments"]
	for name, from := range map[string]any{kind: definitions[list], list: path} {
		if text, _ := json.Marshal(from); !bytes.Contains(text, []byte(`"#/definitions/`+name+`"`)) {
			t.Errorf("%s is not referred to in %.300s", name, text)
		}
	}
	var parsed openapiv2.Document
	if err := proto.Unmarshal(get(h, "/openapi/v2", "Accept", v2Protobuf).Body.Bytes(), &parsed); err != nil {
		t.Fatal(err)
	}
	found := map[string]int{}
	for _, definition := range parsed.Definitions.AdditionalProperties {
		if found[definition.Name]++; found[definition.Name] > 1 {
			t.Errorf("%s is there twice", definition.Name)
		}
	}
	if found[kind] != 1 || found[list] != 1 {
		t.Errorf("%s %d times, %s %d times", kind, found[kind], list, found[list])
	}
	for name := range definitions {
		if !strings.HasPrefix(name, "io.k8s.") && !strings.HasPrefix(name, "com.example.") {
			t.Errorf("%s: the names of built-in models are expected to begin with io.k8s.", name)
		}
	}
}
