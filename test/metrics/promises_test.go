package metrics

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// promise is a stable or beta metric in the sources of kube-apiserver. TestFamilies compares buckets.
type promise struct {
	name   string
	kind   string   // the type in lower case
	labels []string // sorted
}

// promised are the metrics of API servers in the sources of kube-apiserver, stable or beta. Upstream's list of them
// (hack/tools/instrumentation/testdata/stable-metrics-list.yaml) is in a module that is not published.
func promised(t *testing.T) (promises []promise) {
	t.Helper()
	const template = `{{$dir := .Dir}}{{range .GoFiles}}{{$dir}}/{{.}}{{"\n"}}{{end}}`
	const server = "k8s.io/kubernetes/cmd/kube-apiserver"
	list, err := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", template, server).Output()
	if err != nil {
		t.Fatal(err)
	}
	for path := range strings.Lines(string(list)) {
		if path = strings.TrimSpace(path); !strings.Contains(path, "k8s.io/") {
			continue
		}
		source, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if bytes.Contains(source, []byte(".STABLE")) || bytes.Contains(source, []byte(".BETA")) {
			promises = append(promises, promisesIn(t, path)...)
		}
	}
	promises = slices.DeleteFunc(promises, func(p promise) bool {
		return !strings.HasPrefix(p.name, "apiserver_") && !strings.HasPrefix(p.name, "kubernetes_")
	})
	if len(promises) < 30 {
		t.Fatalf("kube-apiserver has only %d stable and beta metrics: the form of their declarations has changed",
			len(promises))
	}
	return promises
}

// promisesIn returns the stable and beta metrics that a file declares with calls such as
// NewGaugeVec(&GaugeOpts{...}, labels).
func promisesIn(t *testing.T, path string) (promises []promise) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	constants := constantsOf(t, filepath.Dir(path))
	ast.Inspect(file, func(node ast.Node) bool {
		call, isCall := node.(*ast.CallExpr)
		if !isCall || len(call.Args) == 0 {
			return true
		}
		options := optionsOf(call.Args[0])
		level, isSelector := options["StabilityLevel"].(*ast.SelectorExpr)
		if !isSelector || level.Sel.Name != "STABLE" && level.Sel.Name != "BETA" {
			return true
		}
		p, err := newPromise(call, options, constants)
		if err != nil {
			t.Errorf("%s: %v", path, err)
		}
		promises = append(promises, p)
		return true
	})
	return promises
}

// newPromise returns the metric that a call declares.
func newPromise(call *ast.CallExpr, options map[string]ast.Expr, constants map[string]string) (p promise, err error) {
	function, isSelector := call.Fun.(*ast.SelectorExpr)
	if !isSelector {
		return p, fmt.Errorf("a metric is declared by a %T", call.Fun)
	}
	p.kind = strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(function.Sel.Name, "New"), "Vec"))
	var parts []string
	for _, field := range []string{"Namespace", "Subsystem", "Name"} {
		if options[field] == nil {
			continue
		}
		part, err := constant(options[field], constants)
		if err != nil {
			return p, fmt.Errorf("read the %s of a metric: %w", field, err)
		}
		parts = append(parts, part)
	}
	p.name = strings.Join(parts, "_")
	if len(call.Args) < 2 {
		return p, nil
	}
	names, isLiteral := call.Args[1].(*ast.CompositeLit)
	if !isLiteral {
		return p, fmt.Errorf("the labels of %s are a %T", p.name, call.Args[1])
	}
	for _, name := range names.Elts {
		label, err := constant(name, constants)
		if err != nil {
			return p, fmt.Errorf("read a label of %s: %w", p.name, err)
		}
		p.labels = append(p.labels, label)
	}
	slices.Sort(p.labels)
	return p, nil
}

// optionsOf returns the fields of a literal of options, such as &GaugeOpts{...}.
func optionsOf(argument ast.Expr) map[string]ast.Expr {
	pointer, isPointer := argument.(*ast.UnaryExpr)
	if !isPointer {
		return nil
	}
	literal, isLiteral := pointer.X.(*ast.CompositeLit)
	if !isLiteral {
		return nil
	}
	fields := map[string]ast.Expr{}
	for _, element := range literal.Elts {
		if pair, isPair := element.(*ast.KeyValueExpr); isPair {
			fields[fmt.Sprint(pair.Key)] = pair.Value
		}
	}
	return fields
}

// constantsOf returns the string constants of the package in a directory.
func constantsOf(t *testing.T, directory string) map[string]string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(directory, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	constants := map[string]string{}
	for _, path := range paths {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(node ast.Node) bool {
			if spec, isSpec := node.(*ast.ValueSpec); isSpec && len(spec.Names) == len(spec.Values) {
				for i, name := range spec.Names {
					if text, err := constant(spec.Values[i], nil); err == nil {
						constants[name.Name] = text
					}
				}
			}
			return true
		})
	}
	return constants
}

// constant returns the value of a string literal, or of the name of a constant.
func constant(expression ast.Expr, constants map[string]string) (string, error) {
	switch e := expression.(type) {
	case *ast.BasicLit:
		return strconv.Unquote(e.Value)
	case *ast.Ident:
		if value, found := constants[e.Name]; found {
			return value, nil
		}
		return "", fmt.Errorf("%s is not a constant of the package", e.Name)
	default:
		return "", fmt.Errorf("a %T is neither a literal nor the name of a constant", e)
	}
}
