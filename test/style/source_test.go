package style

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// source is a parsed Go file of the repository. name is its path from the root, with slashes.
type source struct {
	name  string
	files *token.FileSet
	*ast.File
}

// at returns the place of a node as "file:line".
func (s *source) at(n ast.Node) string {
	return s.name + ":" + strconv.Itoa(s.files.Position(n.Pos()).Line)
}

// isTest reports whether only tests use the file: it is below test, or in a package such as etcdtest.
func (s *source) isTest() bool {
	return strings.HasSuffix(s.name, "_test.go") || strings.Contains(s.name, "test/")
}

// sources parses all Go files except generated ones, once for all tests.
var sources = sync.OnceValues(func() ([]*source, error) {
	var all []*source
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != root && strings.HasPrefix(entry.Name(), "."):
			return filepath.SkipDir
		case entry.IsDir() || filepath.Ext(path) != ".go":
			return nil
		}
		files := token.NewFileSet()
		parsed, err := parser.ParseFile(files, path, nil, parser.ParseComments)
		if err == nil && !ast.IsGenerated(parsed) {
			name := filepath.ToSlash(strings.TrimPrefix(path, root+"/"))
			all = append(all, &source{name: name, files: files, File: parsed})
		}
		return err
	})
	return all, err
})

// inspect calls visit for each node of each Go file that is not generated.
func inspect(t *testing.T, visit func(*source, ast.Node)) {
	t.Helper()
	all, err := sources()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) < 1000 {
		t.Fatalf("only %d Go files found", len(all))
	}
	for _, file := range all {
		ast.Inspect(file.File, func(n ast.Node) bool {
			visit(file, n)
			return true
		})
	}
}

// opening returns the first string literal of an expression of literals joined with +, or "".
func opening(e ast.Expr) string {
	for {
		switch x := e.(type) {
		case *ast.BinaryExpr:
			e = x.X
			continue
		case *ast.BasicLit:
			if text, err := strconv.Unquote(x.Value); err == nil && x.Kind == token.STRING {
				return text
			}
		}
		return ""
	}
}

// selector returns the qualified name of the called function, such as "fmt.Errorf", or "".
func selector(call *ast.CallExpr) string {
	s, ok := call.Fun.(*ast.SelectorExpr)
	if !ok {
		return ""
	}
	x, ok := s.X.(*ast.Ident)
	if !ok {
		return ""
	}
	return x.Name + "." + s.Sel.Name
}
