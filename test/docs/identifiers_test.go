package docs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// upstreamNames are the identifiers of upstream that the documents name, with the package that declares each.
var upstreamNames = map[string]string{
	"AggregationController":           "k8s.io/kube-aggregator/pkg/controllers/openapi",
	"AllOrderedPlugins":               "k8s.io/kubernetes/pkg/kubeapiserver/options",
	"AuditOptions":                    "k8s.io/apiserver/pkg/server/options",
	"AvailableConditionController":    "k8s.io/kube-aggregator/pkg/controllers/status/remote",
	"Cacher":                          "k8s.io/apiserver/pkg/storage/cacher",
	"ConnectResource":                 "k8s.io/apiserver/pkg/endpoints/handlers",
	"CoordinatedLeaderElection":       "k8s.io/apiserver/pkg/features",
	"CoreAPIOptions":                  "k8s.io/apiserver/pkg/server/options",
	"CreateServerChain":               "k8s.io/kubernetes/cmd/kube-apiserver/app",
	"DefaultBuildHandlerChain":        "k8s.io/apiserver/pkg/server",
	"DefaultOffAdmissionPlugins":      "k8s.io/kubernetes/pkg/kubeapiserver/options",
	"DelegatingAuthenticationOptions": "k8s.io/apiserver/pkg/server/options",
	"DelegatingAuthorizationOptions":  "k8s.io/apiserver/pkg/server/options",
	"EgressSelector":                  "k8s.io/apiserver/pkg/server/egressselector",
	"GenericAPIServer.Run":            "k8s.io/apiserver/pkg/server",
	"InstallAPIs":                     "k8s.io/kubernetes/pkg/controlplane/apiserver",
	"InstallLegacyAPIGroup":           "k8s.io/apiserver/pkg/server",
	"KubeletClientConfig":             "k8s.io/kubernetes/pkg/kubelet/client",
	"MuxAndDiscoveryComplete":         "k8s.io/apiserver/pkg/server",
	"PeerEndpointLeaseReconciler":     "k8s.io/apiserver/pkg/reconcilers",
	"PostStartHook":                   "k8s.io/apiserver/pkg/server",
	"SharedInformerFactory":           "k8s.io/client-go/informers",
	"WithAudit":                       "k8s.io/apiserver/pkg/endpoints/filters",
	"WithFailedAuthenticationAudit":   "k8s.io/apiserver/pkg/endpoints/filters",
	"WithStorageVersionPrecondition":  "k8s.io/apiserver/pkg/endpoints/filters",
	"WithPriorityAndFairness":         "k8s.io/apiserver/pkg/server/filters",
	"apiVersionPriorities":            "k8s.io/kubernetes/cmd/kube-apiserver/app",
	"apierrors.NewForbidden":          "k8s.io/apimachinery/pkg/api/errors",
	"cachingObject":                   "k8s.io/apiserver/pkg/storage/cacher",
	"configController":                "k8s.io/apiserver/pkg/util/flowcontrol",
	"conversion.CRConverterFactory":   "k8s.io/apiextensions-apiserver/pkg/apiserver/conversion",
	"crdHandler":                      "k8s.io/apiextensions-apiserver/pkg/apiserver",
	"discoveryManager":                "k8s.io/kube-aggregator/pkg/apiserver",
	"etcd3.store":                     "k8s.io/apiserver/pkg/storage/etcd3",
	"genericregistry.Store":           "k8s.io/apiserver/pkg/registry/generic/registry",
	"metav1.Condition":                "k8s.io/apimachinery/pkg/apis/meta/v1",
	"proxyHandler":                    "k8s.io/kube-aggregator/pkg/apiserver",
	"registerResourceHandlers":        "k8s.io/apiserver/pkg/endpoints",
	"rest.Storage":                    "k8s.io/apiserver/pkg/registry/rest",
	"runtime.Codec":                   "k8s.io/apimachinery/pkg/runtime",
	"storage.SelectionPredicate":      "k8s.io/apiserver/pkg/storage",
	"value.Transformer":               "k8s.io/apiserver/pkg/storage/value",
	"watchCache":                      "k8s.io/apiserver/pkg/storage/cacher",
}

// foreign matches backquoted text that names no identifier or file of this repository: commands, flags, placeholders in
// capitals, names and fields of objects, upstream's packages, values, and dist, which a build creates.
var foreign = regexp.MustCompile(`[ \s]|^--|^/|GROUP|KIND|TYPE|^k8s\.io/|^pkg/|^endpoints/|\.\.\.|^spec\.|^[a-z-]+$|^True$|^quorate\.dev$|^observedGeneration$|^default/kubernetes$|^dist/$`)

var (
	quotedText = regexp.MustCompile("`([^`\n]+)`")
	fencedText = regexp.MustCompile("(?ms)^```.*?^```")
	arguments  = regexp.MustCompile(`\([^)]*\)$`)
	dotted     = regexp.MustCompile(`^[A-Za-z]\w*(\.[A-Za-z]\w*)*$`)
	file       = regexp.MustCompile(`/|\.(go|md|sh|yml|yaml|script|txt)$|\*`)
)

// TestIdentifiers checks that the files, packages, types, functions and fields that contributors' documents name exist.
func TestIdentifiers(t *testing.T) {
	documents, err := filepath.Glob("../../docs/howto/*.md")
	if err != nil || len(documents) < 5 {
		t.Fatal(documents, err)
	}
	declared, paths := index(t, "../..")
	used := map[string]bool{}
	for _, document := range append(documents, "../../ARCHITECTURE.md") {
		text, err := os.ReadFile(document)
		if err != nil {
			t.Fatal(err)
		}
		for _, found := range quotedText.FindAllStringSubmatch(string(fencedText.ReplaceAll(text, nil)), -1) {
			name := arguments.ReplaceAllString(found[1], "")
			switch {
			case foreign.MatchString(found[1]):
			case upstreamNames[name] != "":
				used[name] = true
			case file.MatchString(name):
				if !exists(paths, strings.TrimSuffix(name, "/")) {
					t.Errorf("%s names the file %s, which does not exist", document, name)
				}
			case dotted.MatchString(name) && !declared[name]:
				t.Errorf("%s names %s, which is not declared", document, name)
			}
		}
	}
	checkUpstream(t, used)
}

// checkUpstream checks that the documents name each of upstreamNames, and that upstream declares it.
func checkUpstream(t *testing.T, used map[string]bool) {
	t.Helper()
	packages := slices.Sorted(maps.Values(upstreamNames))
	list := exec.CommandContext(t.Context(), "go", "list", "-C", "../..", "-f", "{{.ImportPath}} {{.Dir}}")
	list.Args = append(list.Args, slices.Compact(packages)...)
	output, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]map[string]bool{}
	for line := range strings.Lines(string(output)) {
		pkg, folder, _ := strings.Cut(strings.TrimSpace(line), " ")
		declared[pkg], _ = index(t, folder)
	}
	for name, pkg := range upstreamNames {
		_, unqualified, _ := strings.Cut(name, ".")
		if !declared[pkg][name] && !declared[pkg][unqualified] {
			t.Errorf("%s does not declare %s", pkg, name)
		}
		if !used[name] {
			t.Errorf("no document names upstream's %s", name)
		}
	}
}

// exists reports whether a path is complete or the end of a path of the repository. Documents name files of a folder
// that the sentence names, and in tables without the first folders.
func exists(paths map[string]bool, name string) bool {
	for p := range paths {
		if p == name || strings.HasSuffix(p, "/"+name) {
			return true
		}
		if matched, _ := path.Match(name, path.Base(p)); matched {
			return true
		}
	}
	return false
}

// index returns the identifiers that the Go files below a folder declare, as "Name", "package.Name", "Type.Member" and
// "package.Type.Member", and the paths of all files and folders.
func index(t *testing.T, root string) (declared, paths map[string]bool) {
	t.Helper()
	declared, paths = map[string]bool{}, map[string]bool{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.IsDir() && entry.Name() == ".git" {
			return filepath.SkipDir
		}
		paths[filepath.ToSlash(strings.TrimPrefix(strings.TrimPrefix(path, root), "/"))] = true
		if filepath.Ext(path) != ".go" || strings.Contains(path, "testdata") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err == nil {
			declare(declared, parsed)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return declared, paths
}

// declare adds the identifiers that a file declares.
func declare(declared map[string]bool, parsed *ast.File) {
	add := func(names ...string) {
		for i := range names {
			declared[strings.Join(names[i:], ".")] = true
		}
	}
	pkg := parsed.Name.Name
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			if n.Recv != nil {
				add(pkg, receiver(n.Recv.List[0].Type), n.Name.Name)
			} else {
				add(pkg, n.Name.Name)
			}
		case *ast.TypeSpec:
			add(pkg, n.Name.Name)
			for _, member := range members(n.Type) {
				add(pkg, n.Name.Name, member)
			}
		case *ast.ValueSpec:
			for _, id := range n.Names {
				add(pkg, id.Name)
			}
		}
		return true
	})
}

// members returns the names of the fields of a struct, or of the methods of an interface.
func members(e ast.Expr) []string {
	var fields *ast.FieldList
	switch e := e.(type) {
	case *ast.StructType:
		fields = e.Fields
	case *ast.InterfaceType:
		fields = e.Methods
	default:
		return nil
	}
	var names []string
	for _, field := range fields.List {
		for _, id := range field.Names {
			names = append(names, id.Name)
		}
	}
	return names
}

// receiver returns the name of a receiver's type.
func receiver(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.IndexListExpr:
		return receiver(e.X)
	}
	return ""
}
