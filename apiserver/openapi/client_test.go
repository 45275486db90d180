package openapi_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/go-logr/logr/testr"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/kube-openapi/pkg/spec3"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/lazy"
	"quorate.dev/apiserver/openapi"
	"quorate.dev/apiserver/resource"
)

// TestClient compares the URLs with the URLs that a client gets through HTTP.
func TestClient(t *testing.T) {
	builtIn := definitions(t, nil)
	catalogs := &resource.CatalogHolder{}
	catalogs.Publish(resource.NewCatalog(append(builtIn, widgets(t))...))
	handler, err := openapi.New(openapi.Options{
		Catalogs: catalogs, Remote: &remotes{}, Idle: &lazy.Set{},
		Clock: clocktesting.NewFakePassiveClock(time.Now()), Logger: testr.New(t),
	})
	if err != nil {
		t.Fatal(err)
	}
	client := handler.Client()
	paths, err := client.Paths()
	if err != nil {
		t.Fatal(err)
	}
	urls := index(t, handler)
	for path, version := range paths {
		if got, want := version.ServerRelativeURL(), urls[path]; got != want {
			t.Errorf("%s: got %q, want %q", path, got, want)
		}
	}
	for _, path := range []string{"api/v1", "apis/apps/v1", "apis/example.com/v1"} {
		document, err := paths[path].Schema(runtime.ContentTypeJSON)
		if err != nil {
			t.Fatal(err)
		}
		var parsed spec3.OpenAPI
		if err := json.Unmarshal(document, &parsed); err != nil || len(parsed.Components.Schemas) == 0 {
			t.Errorf("%s: %d schemas, %v", path, len(parsed.Components.Schemas), err)
		}
	}
	if again, err := client.Paths(); err != nil || again["api/v1"] != paths["api/v1"] {
		t.Errorf("the paths of the same catalog are built again: %v", err)
	}

	changed := definitionOf(t, func(definition *apiextensionsv1.CustomResourceDefinition) { definition.Generation++ })
	catalogs.Publish(resource.NewCatalog(append(builtIn, changed)...))
	after, err := client.Paths()
	if err != nil {
		t.Fatal(err)
	}
	if after["apis/example.com/v1"].ServerRelativeURL() == paths["apis/example.com/v1"].ServerRelativeURL() {
		t.Error("the URL of a changed custom resource is the same")
	}
	if after["apis/apps/v1"].ServerRelativeURL() != paths["apis/apps/v1"].ServerRelativeURL() {
		t.Error("the URL of a built-in version changes with custom resources")
	}
}
