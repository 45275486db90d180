package architecture

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rawOutput are the only functions outside of package terminal that use standard output or standard error directly, and
// why.
var rawOutput = map[string]string{
	"apiserver.Run":           "the log of the server, whose format klog escapes",
	"operator.run":            "the log of the operator, whose format escapes",
	"apiserver/audit.openLog": "the audit log of --audit-log-path=-, which is JSON or upstream's escaped format",
	"plugin/replica.Connect":  "bytes of a TLS connection, which kubectl quorate reads",
	"sandbox.shell":           "the shell of the user owns the terminal",
}

// printers are the functions that write to standard output or standard error without naming it, and those that lay out
// tables without escapes in their cells.
var printers = map[string][]string{
	"fmt": {"Print", "Printf", "Println"}, "log": {"Print", "Printf", "Println", "Fatal", "Fatalf", "Fatalln"},
	"tabwriter": {"NewWriter"}, "os": {"Stdout", "Stderr"}, "syscall": {"Stdout", "Stderr"},
}

// TestCommandsWriteThroughTerminal checks that no code of the commands can write text to a terminal without escapes.
// Tools of contributors (release, test, tools) print only their own text.
func TestCommandsWriteThroughTerminal(t *testing.T) {
	used := map[string]bool{}
	for folder := range sources(t) {
		if isWithin(folder, []string{"terminal", "release", "test", "tools", "config"}) ||
			strings.HasSuffix(folder, "/generate") {
			continue
		}
		files, err := filepath.Glob(filepath.Join("../..", folder, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, file := range files {
			if !strings.HasSuffix(file, "_test.go") {
				checkOutput(t, folder, file, used)
			}
		}
	}
	for name := range rawOutput {
		if !used[name] {
			t.Errorf("%s does not use standard output directly any more: remove it from rawOutput", name)
		}
	}
}

func checkOutput(t *testing.T, folder, file string, used map[string]bool) {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, file, text, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	for _, declaration := range parsed.Decls {
		name := folder
		if function, ok := declaration.(*ast.FuncDecl); ok {
			name += "." + function.Name.Name
		}
		ast.Inspect(declaration, func(node ast.Node) bool {
			if raw := printer(node); raw != "" {
				used[name] = true
				if rawOutput[name] == "" {
					t.Errorf("%s: %s bypasses package terminal", files.Position(node.Pos()), raw)
				}
			}
			return true
		})
	}
}

// printer returns the function or variable that a node uses to write without escapes, or "".
func printer(node ast.Node) string {
	switch n := node.(type) {
	case *ast.SelectorExpr:
		if from, ok := n.X.(*ast.Ident); ok && slices.Contains(printers[from.Name], n.Sel.Name) {
			return from.Name + "." + n.Sel.Name
		}
	case *ast.CallExpr:
		if called, ok := n.Fun.(*ast.Ident); ok && (called.Name == "print" || called.Name == "println") {
			return called.Name
		}
	case *ast.BasicLit:
		if strings.Contains(n.Value, `\x1b`) || strings.Contains(n.Value, `\033`) || strings.Contains(n.Value, `\u001b`) {
			return "a control sequence"
		}
	}
	return ""
}

// TestPrinter checks that TestCommandsWriteThroughTerminal finds each way to bypass package terminal.
func TestPrinter(t *testing.T) {
	for text, want := range map[string]bool{
		`os.Stdout.WriteString("")`: true, `fmt.Println()`: true, `fmt.Fprintln(os.Stderr)`: true, `println()`: true,
		`log.Fatalf("")`: true, `tabwriter.NewWriter(out, 0, 0, 0, ' ', 0)`: true, `fmt.Fprint(out, "\x1b[K")`: true,
		`fmt.Fprintln(out, fmt.Sprint(1))`: false, `terminal.Stdout()`: false,
	} {
		expression, err := parser.ParseExpr(text)
		if err != nil {
			t.Fatal(err)
		}
		found := false
		ast.Inspect(expression, func(node ast.Node) bool {
			found = found || printer(node) != ""
			return true
		})
		if found != want {
			t.Errorf("%s: got %v", text, found)
		}
	}
}
