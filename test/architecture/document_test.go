package architecture

import (
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const (
	document = "../../ARCHITECTURE.md"
	linter   = "../../.golangci.yml"
)

var (
	// layerRow matches "| 1 | `codec`, `storage` | purpose |".
	layerRow = regexp.MustCompile("(?m)^\\| (\\d+) \\| (`[^|]+`) \\| [^|]+ \\|$")
	quoted   = regexp.MustCompile("`([^`]+)`")
)

// documented returns the layers of one half in ARCHITECTURE.md: the rows below the heading "| layer | `HALF/...` |".
func documented(t *testing.T, text, half string) map[string]int {
	t.Helper()
	_, table, ok := strings.Cut(text, "| layer | `"+half+"/...` |")
	if !ok {
		t.Fatalf("%s has no table of %s", document, half)
	}
	table, _, _ = strings.Cut(table, "\n\n")
	found := map[string]int{}
	for _, row := range layerRow.FindAllStringSubmatch(table, -1) {
		layer, err := strconv.Atoi(row[1])
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range quoted.FindAllStringSubmatch(row[2], -1) {
			folder := half
			if name[1] != half {
				folder = path.Join(half, name[1])
			}
			if _, twice := found[folder]; twice {
				t.Errorf("%s lists %s twice", document, folder)
			}
			found[folder] = layer
		}
	}
	return found
}

func TestDocumentHasTheLayers(t *testing.T) {
	text, err := os.ReadFile(document)
	if err != nil {
		t.Fatal(err)
	}
	for i, half := range []string{"apiserver", "operator", "plugin"} {
		listed := documented(t, string(text), half)
		for _, folder := range slices.Sorted(maps.Keys(layers[i])) {
			if layer, ok := listed[folder]; !ok || layer != layers[i][folder] {
				t.Errorf("%s is on layer %d; %s has layer %d, listed: %t", folder, layers[i][folder], document, layer, ok)
			}
		}
		for _, folder := range slices.Sorted(maps.Keys(listed)) {
			if _, ok := layers[i][folder]; !ok {
				t.Errorf("%s lists %s, which has no layer in architecture_test.go", document, folder)
			}
		}
	}
}

func TestLinterHasTheImportRules(t *testing.T) {
	text, err := os.ReadFile(linter)
	if err != nil {
		t.Fatal(err)
	}
	for _, folder := range kubernetesOnlyIn {
		if !strings.Contains(string(text), `"!**/`+folder+`/**"`) {
			t.Errorf("%s: depguard does not allow k8s.io/kubernetes in %s", linter, folder)
		}
	}
	for _, framework := range append([]string{installer}, replaced...) {
		if !strings.Contains(string(text), "pkg: "+framework) {
			t.Errorf("%s: depguard does not deny %s", linter, framework)
		}
	}
}
