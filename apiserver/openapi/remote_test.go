package openapi_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	openapiv2 "github.com/google/gnostic-models/openapiv2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kube-openapi/pkg/aggregator"
	"k8s.io/kube-openapi/pkg/spec3"
	"k8s.io/kube-openapi/pkg/validation/spec"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/aggregator/remote"
	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/openapi"
	"quorate.dev/apiserver/resource"
)

// remotes is a settable source of documents of extension API servers.
type remotes struct{ set *remote.Set }

func (r *remotes) Current() *remote.Set { return r.set }

func remoteHandler(t *testing.T, source remote.Source, forward openapi.Forward) http.Handler {
	t.Helper()
	holder := &resource.CatalogHolder{}
	holder.Publish(resource.NewCatalog(append(definitions(t, nil), widgets(t))...))
	clock := clocktesting.NewFakePassiveClock(time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC))
	h, err := openapi.New(openapi.Options{
		Catalogs: holder, Remote: source, Forward: forward, Idle: &lazy.Set{}, Clock: clock, Logger: testr.New(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	return h
}

// documentV2 returns the document of an extension API server. Its model Time is this server's with one more kind, its
// Status has other content, and servers of different colors have different Colors and parameters.
func documentV2(group, color string) string {
	return `{"swagger":"2.0","info":{"title":"t","version":"v"},
"parameters":{"p-1":{"name":"` + color + `","in":"query","type":"string"}},
"paths":{"/apis/` + group + `/v1/":{"get":{"operationId":"` + color +
		`","parameters":[{"$ref":"#/parameters/p-1"}],"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/Color"}}}}},
"/apis/apps/v1/":{"get":{"operationId":"conflict","responses":{"200":{"description":"` + color + `"}}}},
"/apis/` + group +
		`/v1/status":{"get":{"consumes":["application/json"],"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Status"}}},
"parameters":[{"in":"body","name":"body","schema":{"$ref":"#/definitions/Plain"}}]},"post":{"responses":{"200":{"description":"OK","schema":{"$ref":"#/definitions/io.k8s.apimachinery.pkg.apis.meta.v1.Time"}}}}}},
"definitions":{"Color":{"type":"object","properties":{"` + color +
		`":{"type":"string"}},"x-kubernetes-group-version-kind":[{"group":"` + group + `","version":"v1","kind":"Color"}]},
"Plain":{"type":"string"},
"io.k8s.apimachinery.pkg.apis.meta.v1.Time":{"description":"Time is a wrapper around time.Time which supports correct marshaling to YAML and JSON.  Wrappers are provided for many of the factory methods that the time package offers.","type":"string","format":"date-time","x-kubernetes-group-version-kind":[{"group":"` + group + `","version":"v1","kind":"Time"}]},
"io.k8s.apimachinery.pkg.apis.meta.v1.Status":{"type":"object","properties":{"` + color +
		`":{"$ref":"#/definitions/Color"}}}}}`
}

func swagger(t *testing.T, content string) *spec.Swagger {
	t.Helper()
	parsed := &spec.Swagger{}
	if err := parsed.UnmarshalJSON([]byte(content)); err != nil {
		t.Fatal(err)
	}
	return parsed
}

func remoteDocuments(t *testing.T, group, content string) *remote.Documents {
	t.Helper()
	v2, err := remote.NewOpenAPIV2(swagger(t, content))
	if err != nil {
		t.Fatal(err)
	}
	return &remote.Documents{GroupVersion: schema.GroupVersion{Group: group, Version: "v1"}, V2: v2}
}

// TestMergedV2EqualsKubeOpenAPI compares mergeV2 with kube-openapi's merge of whole documents.
func TestMergedV2EqualsKubeOpenAPI(t *testing.T) {
	source := &remotes{}
	h := remoteHandler(t, source, nil)
	local := get(h, "/openapi/v2")
	want := swagger(t, local.Body.String())
	source.set = &remote.Set{}
	for _, group := range []string{"red.example.com", "blue.example.com", "red2.example.com"} {
		content := documentV2(group, strings.TrimRight(strings.TrimSuffix(group, ".example.com"), "2"))
		source.set.Remote = append(source.set.Remote, remoteDocuments(t, group, content))
		for name, definition := range want.Definitions { // kube-openapi's merge panics on a nil map
			if definition.Extensions == nil {
				definition.Extensions = spec.Extensions{}
				want.Definitions[name] = definition
			}
		}
		if err := aggregator.MergeSpecsIgnorePathConflictRenamingDefinitionsAndParameters(
			want, swagger(t, content),
		); err != nil {
			t.Fatal(err)
		}
	}
	got := get(h, "/openapi/v2")
	var gotJSON, wantJSON any
	decode(t, got.Body.Bytes(), &gotJSON)
	encoded, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	decode(t, encoded, &wantJSON)
	if difference := cmp.Diff(wantJSON, gotJSON); difference != "" {
		t.Errorf("(-kube-openapi +ours):\n%.3000s", difference)
	}
	for _, name := range []string{"Color_v2", "io.k8s.apimachinery.pkg.apis.meta.v1.Status_v3"} {
		if _, ok := want.Definitions[name]; !ok {
			t.Errorf("the documents do not clash: there is no %s", name)
		}
	}
	var parsed openapiv2.Document
	if err := proto.Unmarshal(get(h, "/openapi/v2", "Accept", v2Protobuf).Body.Bytes(), &parsed); err != nil {
		t.Error(err)
	} else if len(parsed.Definitions.AdditionalProperties) != len(want.Definitions) {
		t.Errorf("%d definitions in protobuf, want %d", len(parsed.Definitions.AdditionalProperties), len(want.Definitions))
	}
}

func TestMergedV2Tag(t *testing.T) {
	source := &remotes{}
	h := remoteHandler(t, source, nil)
	tag := func() string { return get(h, "/openapi/v2").Header().Get("Etag") }
	local := tag()
	source.set = &remote.Set{
		Remote: []*remote.Documents{{GroupVersion: schema.GroupVersion{Group: "none", Version: "v1"}}},
	}
	if got := tag(); got != local {
		t.Errorf("without document the tag is %s, want %s", got, local)
	}
	source.set = &remote.Set{
		Remote: []*remote.Documents{remoteDocuments(t, "red.example.com", documentV2("red.example.com", "red"))},
	}
	red := tag()
	if w := get(h, "/openapi/v2", "If-None-Match", red); w.Code != http.StatusNotModified || red == local {
		t.Errorf("unchanged: %d, tag %s, local %s", w.Code, red, local)
	}
	source.set = &remote.Set{
		Remote: []*remote.Documents{remoteDocuments(t, "red.example.com", documentV2("red.example.com", "blue"))},
	}
	if w := get(h, "/openapi/v2", "If-None-Match", red); w.Code != http.StatusOK ||
		!strings.Contains(w.Body.String(), `"blue"`) {
		t.Errorf("changed: %d", w.Code)
	}
	source.set = nil
	if got := tag(); got != local {
		t.Errorf("after the server is gone the tag is %s, want %s", got, local)
	}
}

// TestInvalidV2IsLeftOut checks that a document which cannot be merged, because a field has an unexpected type, is
// left out without an effect on others.
func TestInvalidV2IsLeftOut(t *testing.T) {
	invalid := strings.ReplaceAll(documentV2("bad.example.com", "bad"),
		`[{"group":"bad.example.com","version":"v1","kind":"Time"}]`, `[{"group":"bad.example.com"}, 3]`)
	source := &remotes{set: &remote.Set{Remote: []*remote.Documents{
		remoteDocuments(t, "good.example.com", documentV2("good.example.com", "good")),
		remoteDocuments(t, "bad.example.com", invalid),
		remoteDocuments(t, "fine.example.com", documentV2("fine.example.com", "fine")),
	}}}
	merged := swagger(t, get(remoteHandler(t, source, nil), "/openapi/v2").Body.String())
	for path, want := range map[string]bool{
		"/apis/good.example.com/v1/": true, "/apis/bad.example.com/v1/": false,
		"/apis/fine.example.com/v1/": true, "/apis/apps/v1/": true,
	} {
		if _, ok := merged.Paths.Paths[path]; ok != want {
			t.Errorf("%s is published: %v", path, ok)
		}
	}
}

func TestRemoteV3(t *testing.T) {
	const url = "/openapi/v3/apis/red.example.com/v1?hash=ABC"
	red := &remote.Documents{
		GroupVersion: schema.GroupVersion{Group: "red.example.com", Version: "v1"},
		V3: map[string]string{
			"apis/red.example.com/v1": url, "apis/red.example.com": "/openapi/v3/apis/red.example.com?hash=D",
		},
	}
	shadow := &remote.Documents{
		GroupVersion: schema.GroupVersion{Group: "apps", Version: "v1"},
		V3: map[string]string{
			"apis/apps/v1": "/openapi/v3/apis/apps/v1?hash=E", "apis/apps": "/openapi/v3/apis/apps?hash=F",
		},
	}
	old := remoteDocuments(t, "old.example.com", documentV2("old.example.com", "old"))
	old.Converted = true
	source := &remotes{set: &remote.Set{Remote: []*remote.Documents{red, shadow, old}}}
	h := remoteHandler(t, source, func(w http.ResponseWriter, r *http.Request, gv schema.GroupVersion) {
		w.Header().Set("Etag", `"remote"`)
		_, _ = w.Write([]byte(gv.String() + " " + r.URL.RequestURI()))
	})
	addresses := index(t, h)
	for path, want := range map[string]string{
		"apis/red.example.com/v1": url, "apis/apps/v1": "/openapi/v3/apis/apps/v1?hash=E",
		"apis/red.example.com": "/openapi/v3/apis/red.example.com?hash=D",
	} {
		if addresses[path] != want {
			t.Errorf("%s is at %s, want %s", path, addresses[path], want)
		}
	}
	if strings.Contains(addresses["apis/apps"], "hash=F") || addresses["apis/example.com/v1"] == "" ||
		addresses["apis/batch/v1"] == "" {
		t.Errorf("documents of this server were replaced: %v", addresses)
	}
	if w := get(h, url); w.Body.String() != "red.example.com/v1 "+url || w.Header().Get("Etag") != `"remote"` {
		t.Errorf("forwarded: %s %v", w.Body, w.Header())
	}
	checkConverted(t, h, addresses["apis/old.example.com/v1"])
}

func checkConverted(t *testing.T, h http.Handler, address string) {
	t.Helper()
	var document spec3.OpenAPI
	w := get(h, address)
	decode(t, w.Body.Bytes(), &document)
	if document.Components.Schemas["Color"] == nil || document.Paths.Paths["/apis/old.example.com/v1/"] == nil {
		t.Errorf("converted: %s", w.Body)
	}
	tag := w.Header().Get("Etag")
	if !strings.Contains(address, strings.Trim(tag, `"`)) || tag == "" {
		t.Errorf("tag %s at %s", tag, address)
	}
	if w := get(h, address, "If-None-Match", tag); w.Code != http.StatusNotModified {
		t.Errorf("unchanged: %d", w.Code)
	}
	if w := get(h, "/openapi/v3/apis/old.example.com/v1?hash=other"); w.Code != http.StatusMovedPermanently {
		t.Errorf("another hash: %d", w.Code)
	}
	if w := get(h, address, "Accept", v3Protobuf); w.Code != http.StatusOK {
		t.Errorf("protobuf: %d", w.Code)
	}
}
