package style

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
	"strings"
	"testing"
)

// constructors are functions whose results are values that nothing changes: errors, patterns, names, descriptions. A
// package-level variable may have such a value, or one that a literal or an embedded file has.
var constructors = []string{
	"errors.New", "fmt.Errorf", "apierrors.NewBadRequest",
	"regexp.MustCompile", "strings.NewReplacer", "filepath.Join", "http.CanonicalHeaderKey", "sets.New",
	"version.MustParseSemantic", "prometheus.NewDesc", "GroupVersion.WithResource", "SchemeGroupVersion.WithKind", "len",
	"[]byte", "func", // a conversion; a table that a function computes
	"describe",    // apiserver/aggregator/remote: prometheus.NewDesc
	"keyAskedBy",  // apiserver/request: a key that upstream's packages do not export
	"literal",     // a constant part of a serialized form
	"terminating", // apiserver/crd: the condition Terminating
}

// variables are the package-level variables that are neither of this kind nor unchanged, with the reason for each.
var variables = map[string]string{
	"apiserver/audit.encoders":          pool,
	"apiserver/deflate.writers":         pool,
	"apiserver/handlers.chunks":         pool,
	"apiserver/handlers.compressors":    pool,
	"apiserver/handlers.initials":       pool,
	"apiserver/authorization/rbac.seed": seed,
	"apiserver/flowcontrol.seed":        seed,
	"operator/desired.builtInResources": "it is computed once from client-go's scheme, which does not change",
}

const (
	pool = "no caller can observe the state of a pool, and one pool for all callers needs the least memory"
	seed = "it is random, and does not change while the process runs"
)

// TestPackageVariables checks that package-level variables are constants in all but name: their values are immutable
// by kind, and no code of the module changes them, or a reason is in the list. State belongs in values that have an
// owner.
func TestPackageVariables(t *testing.T) {
	declared := map[string]map[string]bool{} // names by folder
	found := map[string]bool{}
	all := commandSources(t)
	for _, file := range all {
		folder := path.Dir(file.name)
		for _, spec := range packageVariables(file) {
			for i, id := range spec.Names {
				if id.Name == "_" {
					continue
				}
				if declared[folder] == nil {
					declared[folder] = map[string]bool{}
				}
				declared[folder][id.Name] = true
				if isConstantValue(file, spec, i) {
					continue
				}
				key := folder + "." + id.Name
				found[key] = true
				if variables[key] == "" {
					t.Errorf("%s: %s is a package-level variable: pass it as an argument, or list it with a reason", file.at(id), key)
				}
			}
		}
	}
	for _, file := range all {
		folder := path.Dir(file.name)
		for _, id := range changed(file) {
			if !declared[folder][id.Name] {
				continue
			}
			key := folder + "." + id.Name
			found[key] = true
			if variables[key] == "" {
				t.Errorf("%s: %s is a package-level variable, and this changes it or takes its address", file.at(id), key)
			}
		}
	}
	for key := range variables {
		if !found[key] {
			t.Errorf("%s is in the list, but it is no package-level variable that needs a reason", key)
		}
	}
}

// commandSources returns the files that are not only used by tests.
func commandSources(t *testing.T) []*source {
	t.Helper()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(slices.Clone(all), (*source).isTest)
}

func packageVariables(file *source) []*ast.ValueSpec {
	var found []*ast.ValueSpec
	for _, d := range file.Decls {
		if general, ok := d.(*ast.GenDecl); ok && general.Tok == token.VAR {
			for _, spec := range general.Specs {
				found = append(found, spec.(*ast.ValueSpec))
			}
		}
	}
	return found
}

// isConstantValue reports whether a variable's initial value is immutable by kind, so that only an assignment could
// change the variable. A variable without a value is one if it has an embedded file.
func isConstantValue(file *source, spec *ast.ValueSpec, i int) bool {
	if len(spec.Values) != len(spec.Names) {
		return isEmbedded(file, spec)
	}
	return isConstant(spec.Values[i])
}

// isEmbedded reports whether a go:embed directive is directly above the declaration.
func isEmbedded(file *source, spec *ast.ValueSpec) bool {
	line := file.files.Position(spec.Pos()).Line
	return slices.ContainsFunc(file.Comments, func(group *ast.CommentGroup) bool {
		last := group.List[len(group.List)-1]
		return strings.HasPrefix(last.Text, "//go:embed ") && file.files.Position(last.End()).Line == line-1
	})
}

func isConstant(value ast.Expr) bool {
	switch value := value.(type) {
	case *ast.BasicLit, *ast.FuncLit, *ast.SelectorExpr:
		return true
	case *ast.CompositeLit:
		named, ok := value.Type.(*ast.SelectorExpr)
		return !ok || !isSync(named)
	case *ast.BinaryExpr:
		return isConstant(value.X) && isConstant(value.Y)
	case *ast.SliceExpr:
		return true
	case *ast.CallExpr:
		return slices.Contains(constructors, called(value.Fun))
	}
	return false
}

func isSync(named *ast.SelectorExpr) bool {
	x, ok := named.X.(*ast.Ident)
	return ok && (x.Name == "sync" || x.Name == "atomic")
}

// called returns the last two names of a called function, or what else is called.
func called(f ast.Expr) string {
	switch f := f.(type) {
	case *ast.Ident:
		return f.Name
	case *ast.SelectorExpr:
		switch x := f.X.(type) {
		case *ast.Ident:
			return x.Name + "." + f.Sel.Name
		case *ast.SelectorExpr:
			return x.Sel.Name + "." + f.Sel.Name
		}
	case *ast.IndexExpr:
		return called(f.X)
	case *ast.ArrayType:
		return "[]byte"
	case *ast.FuncLit:
		return "func"
	}
	return ""
}

// changed returns the names that are not declared in the file's functions and are assigned to, deleted from, or whose
// address is taken.
func changed(file *source) []*ast.Ident {
	var found []*ast.Ident
	note := func(e ast.Expr) {
		if id := base(e); id != nil && (id.Obj == nil || file.Scope.Lookup(id.Name) == id.Obj) {
			found = append(found, id)
		}
	}
	ast.Inspect(file.File, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.AssignStmt:
			if n.Tok != token.DEFINE {
				for _, e := range n.Lhs {
					note(e)
				}
			}
		case *ast.IncDecStmt:
			note(n.X)
		case *ast.UnaryExpr:
			if n.Op == token.AND {
				note(n.X)
			}
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.Ident); ok && slices.Contains([]string{"delete", "clear", "copy"}, f.Name) {
				note(n.Args[0])
			}
		}
		return true
	})
	return found
}

// base returns the variable that an expression such as v.field[key] is part of, or nil.
func base(e ast.Expr) *ast.Ident {
	for {
		switch x := e.(type) {
		case *ast.Ident:
			return x
		case *ast.SelectorExpr:
			e = x.X
		case *ast.IndexExpr:
			e = x.X
		case *ast.SliceExpr:
			e = x.X
		case *ast.ParenExpr:
			e = x.X
		case *ast.StarExpr:
			e = x.X
		default:
			return nil
		}
	}
}
