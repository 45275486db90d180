package upstream

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
)

func TestUpstreamResources(t *testing.T) {
	resources, err := UpstreamResources(t.Context(), "there")
	if err != nil {
		t.Fatal(err)
	}
	if len(resources) < 60 {
		t.Errorf("only %d resources were found", len(resources))
	}
	for name, resource := range resources {
		if !strings.HasPrefix(resource.Stub, "{") || !strings.HasPrefix(resource.Path, "/registry/") {
			t.Errorf("%v: %+v", name, resource)
		}
	}
	want := UpstreamResource{
		Stub: `{"data": {"foo": "bar"}, "metadata": {"name": "cm1"}}`, Path: "/registry/configmaps/there/cm1",
	}
	if got := resources[schema.GroupVersionResource{Version: "v1", Resource: "configmaps"}]; got != want {
		t.Errorf("got %+v", got)
	}
}

func TestReadTable(t *testing.T) {
	const head = "package p\nvar t = map[gvk]data{\n"
	read := func(table string) (map[schema.GroupVersionResource]UpstreamResource, error) {
		file, err := parser.ParseFile(token.NewFileSet(), "", head+table+"}", parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		return readTable(file, version.MustParseSemantic("v1.36.3"), map[string]string{"namespace": "there"})
	}
	got, err := read(`
		gvr("g", "v2", "old"): {Stub: "{}", ExpectedEtcdPath: "/old", RemovedVersion: "1.36"},
		gvr("g", "v2", "new"): {Stub: ` + "`{\"a\": \"` + namespace + `\"}`" +
		`, ExpectedEtcdPath: "/new/" + namespace + "/x",
			ExpectedGVK: gvkP("h", "v1", "New"), IntroducedVersion: "1.2", RemovedVersion: "1.37"},
	`)
	want := UpstreamResource{
		`{"a": "there"}`, "/new/there/x", schema.GroupVersionKind{Group: "h", Version: "v1", Kind: "New"},
	}
	if name := (schema.GroupVersionResource{Group: "g", Version: "v2", Resource: "new"}); err != nil ||
		len(got) != 1 || got[name] != want {
		t.Errorf("got %+v, %v", got, err)
	}
	for _, table := range []string{
		`gvr("g", "v1", "r"): {Stub: other}`, `gvr("g", "r"): {Stub: "{}"}`, `gvr("g", "v1", "r"): {ExpectedGVK: kind}`,
	} {
		if _, err := read(table + ",\n"); err == nil {
			t.Errorf("no error for %s", table)
		}
	}
}

// TestSourcesBesideSandbox checks that the links that a stopped sandbox leaves in the repository do not prevent a build
// for tests, and that a missing source does.
func TestSourcesBesideSandbox(t *testing.T) {
	root := t.TempDir()
	for _, folder := range []string{".quorate/bin", "apiserver"} {
		if err := os.MkdirAll(filepath.Join(root, folder), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("/no/such/binary", filepath.Join(root, ".quorate/bin/quorate")); err != nil {
		t.Fatal(err)
	}
	if err := lookAtSources(root); err != nil {
		t.Errorf("with a stopped sandbox: %v", err)
	}
	if err := os.Symlink("/no/such/file", filepath.Join(root, "apiserver/server.go")); err != nil {
		t.Fatal(err)
	}
	if err := lookAtSources(root); err == nil {
		t.Error("a source that does not exist is not noticed")
	}
}
