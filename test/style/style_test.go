// Package style checks rules of docs/style.md: phrases, errors, log messages, variables, lengths of lines.
package style

import (
	"bufio"
	"go/ast"
	"go/parser"
	"go/scanner"
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

// ban is a phrase and what to write instead.
type ban struct {
	phrase  *regexp.Regexp
	instead string
}

// bans reads testdata/banned.txt: "PATTERN => INSTEAD" in each line, a regular expression of whole words. The second
// result matches any of them.
func bans(t *testing.T) ([]ban, *regexp.Regexp) {
	t.Helper()
	file, err := os.Open("testdata/banned.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all []ban
	var patterns []string
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		pattern, instead, ok := strings.Cut(lines.Text(), " => ")
		if !ok || strings.HasPrefix(pattern, "#") {
			continue
		}
		pattern = wholeWords(strings.TrimSpace(pattern))
		patterns = append(patterns, pattern)
		all = append(all, ban{regexp.MustCompile(pattern), instead})
	}
	if len(all) < 20 {
		t.Fatalf("only %d phrases are banned", len(all))
	}
	return all, regexp.MustCompile(strings.Join(patterns, "|"))
}

func wholeWords(pattern string) string { return `(?i:\b(?:` + pattern + `)\b)` }

// passage is text at a place in a file.
type passage struct {
	line int
	text string
}

// passages returns the comments, string literals and declared names of a Go file, or the lines of any other.
func passages(t *testing.T, name string) []passage {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if strings.HasSuffix(name, ".go") {
		return append(literals(data), names(t, name, data)...)
	}
	var found []passage
	for i, line := range strings.Split(string(data), "\n") {
		found = append(found, passage{i + 1, line})
	}
	return found
}

// literals returns comments and strings.
func literals(data []byte) []passage {
	files := token.NewFileSet()
	file := files.AddFile("", files.Base(), len(data))
	var s scanner.Scanner
	s.Init(file, data, nil, scanner.ScanComments)
	var found []passage
	for {
		at, kind, text := s.Scan()
		switch kind {
		case token.EOF:
			return found
		case token.COMMENT, token.STRING:
			for i, line := range strings.Split(text, "\n") {
				found = append(found, passage{files.Position(at).Line + i, line})
			}
		}
	}
}

// words splits a Go name.
var words = regexp.MustCompile(`[A-Z]?[a-z]+|[A-Z]+`)

// names returns the names that a file declares, as words.
func names(t *testing.T, name string, data []byte) []passage {
	t.Helper()
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, name, data, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	var found []passage
	note := func(id *ast.Ident) {
		if id != nil {
			found = append(found, passage{files.Position(id.Pos()).Line, strings.Join(words.FindAllString(id.Name, -1), " ")})
		}
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			note(n.Name)
		case *ast.TypeSpec:
			note(n.Name)
		case *ast.Field:
			for _, id := range n.Names {
				note(id)
			}
		case *ast.ValueSpec:
			for _, id := range n.Names {
				note(id)
			}
		}
		return true
	})
	return found
}

// exempt are texts by others, and texts about the phrases.
var exempt = []string{"docs/style.md", "test/style", "LICENSE", "go.sum"}

// checked reports whether a file has text of this project.
func checked(name string) bool {
	if slices.ContainsFunc(exempt, func(e string) bool { return strings.HasPrefix(name, e) }) ||
		strings.Contains(name, "zz_generated") {
		return false
	}
	switch filepath.Ext(name) {
	case ".go", ".md", ".sh", ".yaml", ".script":
		return true
	}
	return strings.HasPrefix(name, ".ci/") || filepath.Base(name) == "Makefile"
}

func report(t *testing.T, banned []ban, name string, p passage) {
	t.Helper()
	for _, b := range banned {
		if found := b.phrase.FindString(p.text); found != "" {
			t.Errorf("%s:%d: %q: %s", name, p.line, found, b.instead)
		}
	}
}

// TestBannedPhrases has a subtest for each folder.
func TestBannedPhrases(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped under -short: slow under the race detector, and not concurrent")
	}
	banned, anyOf := bans(t)
	folders := map[string][]string{}
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := filepath.ToSlash(strings.TrimPrefix(path, root+"/"))
		hidden := strings.HasPrefix(entry.Name(), ".") && path != root && entry.Name() != ".ci" && entry.Name() != ".github"
		switch {
		case entry.IsDir() && (hidden || strings.HasSuffix(name, "testdata/fuzz")):
			return filepath.SkipDir
		case !entry.IsDir() && checked(name):
			folders[filepath.Dir(name)] = append(folders[filepath.Dir(name)], name)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	for folder, files := range folders {
		t.Run(folder, func(t *testing.T) {
			for _, name := range files {
				for _, p := range passages(t, filepath.Join(root, name)) {
					if anyOf.MatchString(p.text) && !strings.Contains(p.text, "style:allow") {
						report(t, banned, name, p)
					}
				}
			}
		})
	}
}
