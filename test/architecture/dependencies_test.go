package architecture

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// dependencies is the document that lists the libraries whose version is not kube-apiserver's.
const dependencies = "../../docs/dependencies.md"

// visible are the libraries whose behaviour clients see: how objects are decoded, encoded, defaulted, patched, merged
// and validated, and how documents are built. Their versions must be kube-apiserver's, without exception.
var visible = []string{
	"github.com/evanphx/json-patch", "github.com/fxamacker/cbor/v2", "github.com/go-openapi/jsonpointer",
	"github.com/go-openapi/jsonreference", "github.com/go-openapi/swag",
	"github.com/go-openapi/swag/cmdutils", "github.com/go-openapi/swag/conv", "github.com/go-openapi/swag/fileutils",
	"github.com/go-openapi/swag/jsonutils", "github.com/go-openapi/swag/loading", "github.com/go-openapi/swag/mangling",
	"github.com/go-openapi/swag/netutils", "github.com/go-openapi/swag/pools", "github.com/go-openapi/swag/stringutils",
	"github.com/go-openapi/swag/typeutils", "github.com/go-openapi/swag/yamlutils", "github.com/gogo/protobuf",
	"github.com/google/cel-go", "github.com/google/gnostic-models", "github.com/json-iterator/go",
	"github.com/munnerz/goautoneg", "github.com/prometheus/client_golang", "github.com/prometheus/common",
	"go.yaml.in/yaml/v2", "go.yaml.in/yaml/v3", "google.golang.org/protobuf", "gopkg.in/evanphx/json-patch.v4",
	"gopkg.in/go-jose/go-jose.v2", "gopkg.in/inf.v0", "k8s.io/kube-openapi", "k8s.io/utils", "sigs.k8s.io/json",
	"sigs.k8s.io/structured-merge-diff/v6", "sigs.k8s.io/yaml",
}

// manifest is what the go command says of a go.mod file.
type manifest struct {
	Require []struct{ Path, Version string }
	Replace []struct{ Old struct{ Path string } }
	Exclude []struct{ Path string }
}

func (m manifest) versions() map[string]string {
	versions := map[string]string{}
	for _, required := range m.Require {
		versions[required.Path] = required.Version
	}
	return versions
}

func goCommand(t *testing.T, arguments ...string) []byte {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", arguments...)
	command.Dir = "../.."
	command.Stderr = os.Stderr
	output, err := command.Output()
	if err != nil {
		t.Fatalf("go %s: %v", strings.Join(arguments, " "), err)
	}
	return output
}

func readManifest(t *testing.T, file string) (m manifest) {
	t.Helper()
	if err := json.Unmarshal(goCommand(t, "mod", "edit", "-json", file), &m); err != nil {
		t.Fatal(err)
	}
	return m
}

// difference is a library at two versions.
type difference struct{ upstream, ours string }

// differences returns the libraries in both manifests at different versions. Upstream's own modules, which have no
// version in its manifest, are expected at the version that their release is published as.
func differences(upstream, ours map[string]string) map[string]difference {
	staging := "v0." + strings.TrimPrefix(ours["k8s.io/kubernetes"], "v1.")
	different := map[string]difference{}
	for path, version := range ours {
		expected, ok := upstream[path]
		if !ok {
			continue
		}
		if expected == "v0.0.0" {
			expected = staging
		}
		if version != expected {
			different[path] = difference{expected, version}
		}
	}
	return different
}

// row matches a line of the document's table: module, kube-apiserver's version, ours, reason.
var row = regexp.MustCompile("(?m)^\\| `([^`]+)` \\| (v\\S+) \\| (v\\S+) \\| *(.*?) *\\|$")

func TestDependenciesAreThoseOfKubeAPIServer(t *testing.T) {
	document, err := os.ReadFile(dependencies)
	if err != nil {
		t.Fatal(err)
	}
	upstream := strings.TrimSpace(string(goCommand(t, "list", "-m", "-f", "{{.GoMod}}", "k8s.io/kubernetes")))
	ours := readManifest(t, "go.mod")
	different := differences(readManifest(t, upstream).versions(), ours.versions())
	listed := map[string]bool{}
	for _, fields := range row.FindAllStringSubmatch(string(document), -1) {
		path := fields[1]
		listed[path] = true
		if got, ok := different[path]; !ok || got != (difference{fields[2], fields[3]}) {
			t.Errorf("%s lists %s at %s and %s, which go.mod does not have: %v", dependencies, path, fields[2], fields[3], got)
		}
		if fields[4] == "" {
			t.Errorf("%s gives no reason for %s", dependencies, path)
		}
	}
	for path, versions := range different {
		if !listed[path] {
			t.Errorf("%s does not list %s, which is at %s, in kube-apiserver at %s",
				dependencies, path, versions.ours, versions.upstream)
		}
	}
	for _, path := range visible {
		if versions, ok := different[path]; ok {
			t.Errorf("%s is at %s, in kube-apiserver at %s: clients can see the difference",
				path, versions.ours, versions.upstream)
		}
	}
	if len(ours.Replace) > 0 || len(ours.Exclude) > 0 {
		t.Errorf("go.mod replaces %v and excludes %v: versions follow from requirements alone", ours.Replace, ours.Exclude)
	}
}

func TestDifferences(t *testing.T) {
	upstream := map[string]string{
		"a": "v1.0.0", "b": "v1.0.0", "k8s.io/api": "v0.0.0", "k8s.io/apiserver": "v0.0.0", "only/upstream": "v1.0.0",
	}
	ours := map[string]string{
		"a": "v1.0.1", "b": "v1.0.0", "k8s.io/api": "v0.36.3", "k8s.io/apiserver": "v0.36.2",
		"k8s.io/kubernetes": "v1.36.3", "only/ours": "v1.0.0",
	}
	want := map[string]difference{"a": {"v1.0.0", "v1.0.1"}, "k8s.io/apiserver": {"v0.36.3", "v0.36.2"}}
	if got := differences(upstream, ours); !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
