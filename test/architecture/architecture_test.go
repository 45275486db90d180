// Package architecture checks the rules of ARCHITECTURE.md: the layers, the imports of upstream packages, the length of
// files and the versions of libraries.
package architecture

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "quorate.dev"

// layers maps the packages of each half to their layers. A package imports only strictly lower layers of its half. A
// folder below a listed one belongs to it unless it is listed itself. ARCHITECTURE.md has the same table.
var layers = []map[string]int{
	{
		"apiserver/lazy": 0, "apiserver/jsonpatch": 0, "apiserver/memory": 0, "apiserver/deflate": 0,
		"apiserver/encoding/row": 0,
		"apiserver/tracing":      0, "apiserver/egress": 0, "apiserver/request": 0, "apiserver/resource": 0,
		"apiserver/metrics": 0, "apiserver/config": 0, "apiserver/system": 0,
		"apiserver/backup/format": 0, "apiserver/transport": 0, "apiserver/openapi/reduction": 0,
		"apiserver/audit": 1, "apiserver/codec": 1,
		"apiserver/etcd": 1, "apiserver/storage": 1, "apiserver/kubelet": 1, "apiserver/registry/change": 1,
		"apiserver/registry/strategy": 1, "apiserver/serviceresolver": 1, "apiserver/snapshot": 1, "apiserver/flowcontrol": 1,
		"apiserver/backup": 2, "apiserver/aggregator": 2, "apiserver/peers": 2, "apiserver/encoding": 2,
		"apiserver/encryption": 2, "apiserver/etcdctl": 2, "apiserver/serviceip": 2,
		"apiserver/authentication/serviceaccount": 2, "apiserver/watchcache": 3,
		"apiserver/authentication": 3, "apiserver/authorization": 3,
		"apiserver/authorization/node": 3, "apiserver/admission": 3, "apiserver/admission/plugins": 3,
		"apiserver/builtin": 3, "apiserver/crd": 3, "apiserver/registry/follow": 4, "apiserver/registry/selection": 4,
		"apiserver/informers": 5, "apiserver/host": 4, "apiserver/preflight": 4, "apiserver/admission/native": 4,
		"apiserver/controllers/autoregister": 4, "apiserver/controllers/bootstrap": 4,
		"apiserver/controllers/kubernetesservice": 4, "apiserver/controllers/storageversions": 4,
		"apiserver/controllers/availability": 5,
		"apiserver/registry":                 5, "apiserver/aggregator/remote": 5,
		"apiserver/builtin/builtintest": 7, "apiserver/registry/client": 6,
		"apiserver/handlers": 6, "apiserver/discovery": 6, "apiserver/openapi": 6,
		"apiserver/filters": 7, "apiserver/router": 7, "apiserver/serving": 7, "apiserver/controllers": 7,
		"apiserver/transfer": 8, "apiserver/startup": 8,
		"apiserver/stores": 9,
		"apiserver":        10,
	},
	{
		"operator/api": 0, "operator/pki": 0, "operator/membership": 0, "operator/rotation": 0, "operator/schedule": 0,
		"operator/parallel":   0,
		"operator/limited":    0,
		"operator/encryption": 0, "operator/rewrite": 0,
		"operator/backup":          1,
		"operator/etcd":            1,
		"operator/desired":         1,
		"operator/servingcert":     1,
		"operator/observed":        2,
		"operator/validation":      2,
		"operator/status":          3,
		"operator/reconcile/owned": 3, "operator/reconcile/credentials": 3,
		"operator/kubeconfig": 4, "operator/reconcile/owned/ownedtest": 4,
		"operator/reconcile/network": 5, "operator/reconcile/apiservices": 5, "operator/reconcile/companions": 5,
		"operator/reconcile/backups": 4, "operator/reconcile/stages": 4, "operator/reconcile/configuration": 5,
		"operator/reconcile/atrest": 5, "operator/reconcile/preparation": 5, "operator/reconcile/volumes": 5,
		"operator/reconcile/restore": 6, "operator/reconcile/recovery": 6, "operator/reconcile/rotations": 6,
		"operator/reconcile/certificates": 7, "operator/reconcile/outcome": 6, "operator/reconcile/watches": 6,
		"operator/reconcile/retention": 4, "operator/reconcile/upgrade": 5, "operator/reconcile/metrics": 5,
		"operator/reconcile/deletion": 6, "operator/reconcile/members": 7, "operator/reconcile": 8,
		"operator": 9,
	},
	{"plugin/replica": 0, "plugin/overview": 1, "plugin/render": 2, "plugin": 3},
}

// between are the only imports from one half to another.
var between = map[string][]string{
	"operator/desired":               {"apiserver/config"},
	"operator/etcd":                  {"apiserver/config"},
	"operator/validation":            {"apiserver/config", "apiserver/preflight"},
	"operator/reconcile/restore":     {"apiserver/backup/format"},
	"operator/reconcile/preparation": {"apiserver/backup/format"},
	"operator/reconcile/backups":     {"apiserver/backup/format"},
	"plugin/replica":                 {"operator/desired"},
	"plugin/overview":                {"operator/api/v1alpha1", "operator/desired"},
	"plugin/render":                  {"operator/api/v1alpha1"},
	"plugin":                         {"operator/api/v1alpha1", "operator/desired"},
}

// shared are the folders that every package may import: config embeds the manifests, panics turns panics into errors,
// terminal writes to terminals, writelimit bounds the writes of controllers.
var shared = []string{"config", "panics", "terminal", "writelimit"}

// kubernetesOnlyIn are the folders that may import k8s.io/kubernetes, which promises no API. The generator is not part
// of the server. depguard in .golangci.yml has the same list.
var kubernetesOnlyIn = []string{
	"apiserver/admission/plugins", "apiserver/authentication/serviceaccount", "apiserver/authorization/abac",
	"apiserver/authorization/node",
	"apiserver/builtin", "apiserver/controllers", "apiserver/kubelet", "apiserver/serviceip",
	"apiserver/system", "apiserver/openapi/generate", "test",
}

// replaced are upstream's frameworks that this project replaces, with all packages below them.
var replaced = []string{
	"k8s.io/apiserver/pkg/server", "k8s.io/apiserver/pkg/registry/generic/registry", "k8s.io/apiserver/pkg/storage/cacher",
	"k8s.io/apiserver/pkg/storage/etcd3", "k8s.io/apiextensions-apiserver/pkg/apiserver",
	"k8s.io/kube-aggregator/pkg/apiserver", "k8s.io/kubernetes/pkg/controlplane",
}

// installer is replaced too, but not the packages below it.
const installer = "k8s.io/apiserver/pkg/endpoints"

// notReplaced are libraries below replaced frameworks.
var notReplaced = []string{
	"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion", // calls of webhooks, and the validation of their answers
	"k8s.io/apiextensions-apiserver/pkg/apiserver/schema", "k8s.io/apiextensions-apiserver/pkg/apiserver/validation",
	"k8s.io/apiserver/pkg/server/egressselector",                       // connections through proxies
	"k8s.io/apiserver/pkg/server/options/authenticationconfig/metrics", // of reloads
	"k8s.io/apiserver/pkg/server/options/authorizationconfig/metrics",
	// Upstream's dumps of priority and fairness have an argument of this package.
	"k8s.io/apiserver/pkg/server/mux",
	"k8s.io/apiserver/pkg/server/options/encryptionconfig",         // transformers, KMS plugins, reloads
	"k8s.io/kubernetes/pkg/controlplane/controller/leaderelection", // one controller, and nothing of the framework
}

func isReplaced(imported string) bool {
	return imported == installer || isWithin(imported, replaced) && !isWithin(imported, notReplaced)
}

// isWithin reports whether a path is one of the parents or below one.
func isWithin(path string, parents []string) bool {
	return slices.ContainsFunc(parents, func(parent string) bool {
		return path == parent || strings.HasPrefix(path, parent+"/")
	})
}

// sources maps each folder with Go code, relative to the module's root, to the imports of its files except tests.
func sources(t *testing.T) map[string][]string {
	t.Helper()
	root := "../.."
	found := map[string][]string{}
	err := filepath.WalkDir(root, func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && (entry.Name() == "testdata" || (strings.HasPrefix(entry.Name(), ".") && file != root)) {
			return filepath.SkipDir
		}
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		relative, err := filepath.Rel(root, filepath.Dir(file))
		if err != nil {
			return err
		}
		for _, spec := range parsed.Imports {
			name, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return err
			}
			found[filepath.ToSlash(relative)] = append(found[filepath.ToSlash(relative)], name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(found) < 20 {
		t.Fatalf("only %d folders with code were found: the root is wrong", len(found))
	}
	return found
}

// place returns the listed package that a folder belongs to.
func place(half map[string]int, folder string) (string, int, bool) {
	for name := folder; name != "."; name = path.Dir(name) {
		if layer, ok := half[name]; ok {
			// The composition at the root of a half is not the parent of unlisted folders.
			return name, layer, name == folder || strings.Contains(name, "/")
		}
	}
	return "", 0, false
}

func TestLayers(t *testing.T) {
	for folder, imports := range sources(t) {
		for _, imported := range imports {
			target, ours := strings.CutPrefix(imported, module+"/")
			if ours {
				checkImport(t, folder, target)
			}
		}
	}
}

func checkImport(t *testing.T, folder, target string) {
	t.Helper()
	for _, half := range layers {
		from, above, ok := place(half, folder)
		if !ok {
			continue
		}
		to, below, ok := place(half, target)
		if !ok {
			if !slices.Contains(between[from], target) && !slices.Contains(shared, strings.Split(target, "/")[0]) {
				t.Errorf("%s imports %s, which is outside its half", folder, target)
			}
			continue
		}
		if from != to && below >= above {
			t.Errorf("%s (layer %d) imports %s (layer %d)", folder, above, target, below)
		}
	}
}

func TestEveryPackageOfTheHalvesHasALayer(t *testing.T) {
	for folder := range sources(t) {
		for i, root := range []string{"apiserver", "operator", "plugin"} {
			if folder == root || strings.HasPrefix(folder, root+"/") {
				if _, _, ok := place(layers[i], folder); !ok {
					t.Errorf("%s has no layer", folder)
				}
			}
		}
	}
}

func TestUpstreamImports(t *testing.T) {
	for folder, imports := range sources(t) {
		for _, imported := range imports {
			if isWithin(imported, []string{"k8s.io/kubernetes"}) && !isWithin(folder, kubernetesOnlyIn) {
				t.Errorf("%s imports %s: only %v may", folder, imported, kubernetesOnlyIn)
			}
			if isReplaced(imported) && !isWithin(folder, []string{"test"}) {
				t.Errorf("%s imports %s, which this project replaces", folder, imported)
			}
		}
	}
}

func TestReplaced(t *testing.T) {
	for imported, want := range map[string]bool{
		"k8s.io/apiserver/pkg/server":                                 true,
		"k8s.io/apiserver/pkg/server/options":                         true,
		"k8s.io/apiserver/pkg/endpoints":                              true,
		"k8s.io/apiserver/pkg/endpoints/request":                      false,
		"k8s.io/apiextensions-apiserver/pkg/apiserver":                true,
		"k8s.io/apiextensions-apiserver/pkg/apiserver/conversion":     false,
		"k8s.io/apiextensions-apiserver/pkg/apiserver/schema/pruning": false,
		"k8s.io/apiextensions-apiserver/pkg/apiserver/validation":     false,
		"k8s.io/kubernetes/pkg/controlplane/apiserver":                true,
		"k8s.io/kubernetes/pkg/controller":                            false,
	} {
		if got := isReplaced(imported); got != want {
			t.Errorf("%s: got %v", imported, got)
		}
	}
}

func TestFoldersFormNoCycle(t *testing.T) {
	graph := map[string][]string{}
	for folder, imports := range sources(t) {
		for _, imported := range imports {
			if target, ours := strings.CutPrefix(imported, module+"/"); ours && target != folder {
				graph[folder] = append(graph[folder], target)
			}
		}
	}
	done := map[string]bool{}
	var visit func(folder string, trail []string)
	visit = func(folder string, trail []string) {
		if slices.Contains(trail, folder) {
			t.Fatalf("import cycle: %s", strings.Join(append(trail, folder), " > "))
		}
		if done[folder] {
			return
		}
		for _, next := range graph[folder] {
			visit(next, append(trail, folder))
		}
		done[folder] = true
	}
	for folder := range graph {
		visit(folder, nil)
	}
}

// TestFilesStayShort: a file that grows past the limit should be divided.
func TestFilesStayShort(t *testing.T) {
	const limit = 500
	for folder := range sources(t) {
		files, err := filepath.Glob(filepath.Join("../..", folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			generated := strings.Contains(filepath.Base(file), "zz_generated")
			if lines := strings.Count(string(data), "\n"); lines > limit && !generated {
				t.Errorf("%s has %d lines", file, lines)
			}
		}
	}
}
