package differential

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/schema"
)

// stubTable is upstream's table of one small valid object of every kind, in the module k8s.io/kubernetes. It is read as
// source: importing its package would link kube-apiserver into this test.
const stubTable = "test/integration/etcd/data.go"

// Stubs returns upstream's smallest valid objects, as JSON without apiVersion and kind; they lie in the namespace ${ns}.
func Stubs() (map[schema.GroupVersionResource]string, error) {
	output, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes").Output()
	if err != nil {
		return nil, fmt.Errorf("find the source of Kubernetes: %w", err)
	}
	path := filepath.Join(strings.TrimSpace(string(output)), stubTable)
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		return nil, err
	}
	stubs := map[schema.GroupVersionResource]string{}
	ast.Inspect(file, func(node ast.Node) bool {
		if entry, ok := node.(*ast.KeyValueExpr); ok {
			if resource, stub, ok := stubOf(entry); ok {
				stubs[resource] = stub
			}
		}
		return true
	})
	return stubs, nil
}

// stubOf reads an entry of the table: gvr("group", "version", "resource"): {Stub: ...}.
func stubOf(entry *ast.KeyValueExpr) (resource schema.GroupVersionResource, stub string, ok bool) {
	call, isCall := entry.Key.(*ast.CallExpr)
	fields, isLiteral := entry.Value.(*ast.CompositeLit)
	if !isCall || !isLiteral || len(call.Args) != 3 {
		return resource, "", false
	}
	resource = schema.GroupVersionResource{Group: text(call.Args[0]), Version: text(call.Args[1]), Resource: text(call.Args[2])}
	for _, element := range fields.Elts {
		field, isField := element.(*ast.KeyValueExpr)
		if !isField {
			continue
		}
		if name, isName := field.Key.(*ast.Ident); isName && name.Name == "Stub" {
			return resource, text(field.Value), true
		}
	}
	return resource, "", false
}

// text evaluates what the table's strings are made of: literals, the variables image and namespace, and "+".
func text(expression ast.Expr) string {
	switch e := expression.(type) {
	case *ast.BasicLit:
		value, _ := strconv.Unquote(e.Value) // it is Go source that compiles
		return value
	case *ast.BinaryExpr:
		return text(e.X) + text(e.Y)
	case *ast.Ident:
		return map[string]string{"image": "busybox", "namespace": "${ns}"}[e.Name]
	}
	return ""
}
