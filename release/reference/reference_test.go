package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

// sources parses the files of the operator, without tests, that report reasons.
func sources(t *testing.T) (*token.FileSet, map[string]*ast.File) {
	t.Helper()
	set, files := token.NewFileSet(), map[string]*ast.File{}
	err := filepath.WalkDir(filepath.Join(root, "operator"), func(file string, entry fs.DirEntry, err error) error {
		if entry.IsDir() && slices.Contains([]string{"api", "membership", "testdata"}, entry.Name()) {
			return filepath.SkipDir
		}
		if err != nil || filepath.Ext(file) != ".go" || strings.HasSuffix(file, "_test.go") {
			return err
		}
		files[file], err = parser.ParseFile(set, file, nil, parser.SkipObjectResolution)
		return err
	})
	if err != nil || len(files) < 40 {
		t.Fatalf("parsed %d files: %v", len(files), err)
	}
	return set, files
}

func declared(t *testing.T) []reason {
	t.Helper()
	reasons, err := readReasons(root)
	if err != nil || len(reasons) < 80 {
		t.Fatalf("%d reasons: %v", len(reasons), err)
	}
	return reasons
}

// reasonArgument is the index of the reason among the arguments of functions that report one.
var reasonArgument = map[string]int{
	"condition": 2, "Eventf": 3, "setComplete": 2, "unavailable": 1, "restoreBlocked": 0,
}

var camelCase = regexp.MustCompile(`^"[A-Z][A-Za-z]+"$`)

func isReason(expression ast.Expr) bool {
	literal, ok := expression.(*ast.BasicLit)
	return ok && literal.Kind == token.STRING && camelCase.MatchString(literal.Value)
}

// literals returns the reasons in a node that are literals instead of declared constants.
func literals(node ast.Node, values map[string]bool) (found []*ast.BasicLit) {
	switch n := node.(type) {
	case *ast.KeyValueExpr:
		if key, ok := n.Key.(*ast.Ident); ok && strings.EqualFold(key.Name, "reason") && isReason(n.Value) {
			found = append(found, n.Value.(*ast.BasicLit))
		}
	case *ast.CallExpr:
		name := ""
		switch function := n.Fun.(type) {
		case *ast.Ident:
			name = function.Name
		case *ast.SelectorExpr:
			name = function.Sel.Name
		}
		if i, ok := reasonArgument[name]; ok && i < len(n.Args) && isReason(n.Args[i]) {
			found = append(found, n.Args[i].(*ast.BasicLit))
		}
	case *ast.BasicLit:
		value := strings.Trim(n.Value, `"`)
		if n.Kind == token.STRING && values[value] && strings.ContainsAny(value[1:], "ABCDEFGHIJKLMNOPQRSTUVWXYZ") {
			found = append(found, n)
		}
	}
	return found
}

// TestReasonsAreDeclared fails for a reason that is used and not declared, and for one that is declared and not used.
func TestReasonsAreDeclared(t *testing.T) {
	reasons := declared(t)
	values, used := map[string]bool{}, map[string]bool{}
	for _, r := range reasons {
		values[r.value] = true
	}
	set, files := sources(t)
	for _, file := range files {
		ast.Inspect(file, func(node ast.Node) bool {
			for _, literal := range literals(node, values) {
				t.Errorf("%s: use or declare a constant in operator/api/v1alpha1/reasons.go for %s",
					set.Position(literal.Pos()), literal.Value)
			}
			if selector, ok := node.(*ast.SelectorExpr); ok {
				used[selector.Sel.Name] = true
			}
			return true
		})
	}
	for _, r := range reasons {
		if !used["Reason"+r.value] {
			t.Errorf("Reason%s is not used", r.value)
		}
	}
}

// TestLiterals checks that TestReasonsAreDeclared finds literals.
func TestLiterals(t *testing.T) {
	const source = `package p
var _ = event{reason: "Unknown1", action: "Create"}
var _ = event{reason: "Mystery"}
var _ = condition(v1alpha1.Available, true, "Mystery", "Message")
var _ = []string{"BackupFailed", "Running", "Some text"}
`
	file, err := parser.ParseFile(token.NewFileSet(), "p.go", source, 0)
	if err != nil {
		t.Fatal(err)
	}
	var found []string
	ast.Inspect(file, func(node ast.Node) bool {
		for _, literal := range literals(node, map[string]bool{"BackupFailed": true, "Running": true}) {
			found = append(found, literal.Value)
		}
		return true
	})
	if want := []string{`"Mystery"`, `"Mystery"`, `"BackupFailed"`}; !slices.Equal(found, want) {
		t.Errorf("found %v, want %v", found, want)
	}
}

// TestConditionsOfReasons compares the conditions in the comments of reasons with the calls of condition.
func TestConditionsOfReasons(t *testing.T) {
	of := map[string][]state{}
	for _, r := range declared(t) {
		of[r.value] = r.of
	}
	set, files := sources(t)
	calls := 0
	for _, file := range files {
		ast.Inspect(file, func(node ast.Node) bool {
			call, ok := node.(*ast.CallExpr)
			if !ok || len(call.Args) < 3 {
				return true
			}
			condition, isCondition := call.Args[0].(*ast.SelectorExpr)
			status, isStatus := call.Args[1].(*ast.Ident)
			used, isReason := call.Args[2].(*ast.SelectorExpr)
			if function, ok := call.Fun.(*ast.Ident); !ok || function.Name != "condition" || !isCondition ||
				!isStatus || !isReason {
				return true
			}
			value, ok := strings.CutPrefix(used.Sel.Name, "Reason")
			if !ok || value == "" {
				return true
			}
			calls++
			want := state{defaultKind, condition.Sel.Name, strings.ToUpper(status.Name[:1]) + status.Name[1:]}
			if !slices.Contains(of[value], want) {
				t.Errorf("%s: the comment of Reason%s does not have %s=%s", set.Position(call.Pos()), value,
					want.condition, want.status)
			}
			return true
		})
	}
	if calls < 30 {
		t.Errorf("found only %d calls", calls)
	}
}

// TestCommandsAreCurrent compares commands.md with the flags. The environment must not change their defaults.
func TestCommandsAreCurrent(t *testing.T) {
	t.Setenv("QUORATE_IMAGE", "registry.example/quorate:1")
	t.Setenv("POD_NAMESPACE", "other")
	got, err := commands("")
	if err != nil {
		t.Fatal(err)
	}
	want, err := os.ReadFile("../../docs/reference/commands.md")
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Error("commands.md differs from the flags of the commands; run make generate")
	}
	for _, command := range []string{
		"operator", "sandbox env", "etcd alarm disarm", "backup restore", "extension move GROUP",
	} {
		if !strings.Contains(got, "# `quorate "+command) {
			t.Errorf("commands.md lacks %s", command)
		}
	}
}
