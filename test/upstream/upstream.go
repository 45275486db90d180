package upstream

import (
	"context"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strconv"

	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/version"
)

// storageTable is the source file of upstream's test of storage in the module k8s.io/kubernetes. It is parsed and not
// imported, because an import would link kube-apiserver.
const storageTable = "test/integration/etcd/data.go"

// UpstreamResource is an entry of upstream's storage test for a resource in one version.
type UpstreamResource struct {
	Stub   string                  // a small valid object in JSON, without apiVersion and kind
	Path   string                  // key under which the object is stored
	Stored schema.GroupVersionKind // kind in which the object is stored; empty: its own kind
}

// UpstreamResources returns the entries of upstream's table, which contains every resource of this release. Namespaced
// objects are in the given namespace.
func UpstreamResources(
	ctx context.Context, namespace string,
) (map[schema.GroupVersionResource]UpstreamResource, error) {
	workspace, err := inspect(ctx)
	if err != nil {
		return nil, err
	}
	return workspace.resources(ctx, namespace)
}

// UpstreamResourcesOf is like UpstreamResources, for a release such as v1.36.3.
func UpstreamResourcesOf(
	ctx context.Context, release, namespace string,
) (map[schema.GroupVersionResource]UpstreamResource, error) {
	workspace, err := workspaceOf(ctx, release)
	if err != nil {
		return nil, err
	}
	return workspace.resources(ctx, namespace)
}

// resources returns the entries of the table in the release of Kubernetes that the workspace requires.
func (w *workspace) resources(
	ctx context.Context, namespace string,
) (map[schema.GroupVersionResource]UpstreamResource, error) {
	directory, err := w.module(ctx, "Dir", kubernetesModule)
	if err != nil {
		return nil, err
	}
	number, err := w.module(ctx, "Version", kubernetesModule)
	if err != nil {
		return nil, err
	}
	release, err := version.ParseSemantic(number)
	if err != nil {
		return nil, err
	}
	file, err := parser.ParseFile(token.NewFileSet(), filepath.Join(directory, storageTable), nil,
		parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	return readTable(file, release, map[string]string{"namespace": namespace, "image": "busybox"})
}

// ModuleDirectory returns the directory of a module.
func ModuleDirectory(ctx context.Context, module string) (string, error) {
	workspace, err := inspect(ctx)
	if err != nil {
		return "", err
	}
	return workspace.module(ctx, "Dir", module)
}

// readTable returns the entries of the form gvr("group", "version", "resource"): {Stub: ..., ...}. Their texts contain
// variables.
func readTable(
	file *ast.File, release *version.Version, variables map[string]string,
) (map[schema.GroupVersionResource]UpstreamResource, error) {
	resources := map[schema.GroupVersionResource]UpstreamResource{}
	var failure error
	ast.Inspect(file, func(node ast.Node) bool {
		pair, _ := node.(*ast.KeyValueExpr)
		if pair == nil || failure != nil {
			return failure == nil
		}
		fields, isLiteral := pair.Value.(*ast.CompositeLit)
		if !isLiteral || !calls(pair.Key, "gvr") {
			return true
		}
		e := &entry{variables: variables}
		name := e.names(pair.Key)
		e.read(fields)
		if failure = e.failure; failure == nil && !e.isGone(release) {
			resources[schema.GroupVersionResource{Group: name[0], Version: name[1], Resource: name[2]}] = e.UpstreamResource
		}
		return false
	})
	return resources, failure
}

// entry is an entry of the table that is being evaluated.
type entry struct {
	UpstreamResource
	removed   string // the first release without the resource, or ""
	variables map[string]string
	failure   error // the first error
}

func (e *entry) read(fields *ast.CompositeLit) {
	for _, element := range fields.Elts {
		field, isField := element.(*ast.KeyValueExpr)
		if !isField {
			e.fail(element)
			continue
		}
		switch fmt.Sprint(field.Key) { // the name itself
		case "Stub":
			e.Stub = e.text(field.Value)
		case "ExpectedEtcdPath":
			e.Path = e.text(field.Value)
		case "ExpectedGVK":
			kind := e.names(field.Value)
			e.Stored = schema.GroupVersionKind{Group: kind[0], Version: kind[1], Kind: kind[2]}
		case "RemovedVersion":
			e.removed = e.text(field.Value)
		}
	}
}

func (e *entry) isGone(release *version.Version) bool {
	return e.removed != "" && release.AtLeast(version.MustParseGeneric(e.removed))
}

func calls(expression ast.Expr, function string) bool {
	call, isCall := expression.(*ast.CallExpr)
	if !isCall {
		return false
	}
	name, isName := call.Fun.(*ast.Ident)
	return isName && name.Name == function
}

// names returns the three arguments of a call of gvr or gvkP.
func (e *entry) names(expression ast.Expr) (names [3]string) {
	call, isCall := expression.(*ast.CallExpr)
	if !isCall || len(call.Args) != len(names) {
		e.fail(expression)
		return names
	}
	for i, argument := range call.Args {
		names[i] = e.text(argument)
	}
	return names
}

// text returns the value of an expression of literals, variables and "+".
func (e *entry) text(expression ast.Expr) string {
	switch x := expression.(type) {
	case *ast.BasicLit:
		if value, err := strconv.Unquote(x.Value); err == nil {
			return value
		}
	case *ast.BinaryExpr:
		return e.text(x.X) + e.text(x.Y)
	case *ast.Ident:
		if value, ok := e.variables[x.Name]; ok {
			return value
		}
	}
	e.fail(expression)
	return ""
}

func (e *entry) fail(expression ast.Expr) {
	if e.failure == nil {
		e.failure = fmt.Errorf("%s: offset %d: not understood: %T", storageTable, expression.Pos(), expression)
	}
}
