// Package docs checks the documents: links, anchors, the index, commands, YAML and numbers.
package docs

import (
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

const root = "../.."

// documents returns the text of each Markdown file of the repository, without its blocks of code, by its path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	err := filepath.WalkDir(root, func(file string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name := entry.Name()
		if entry.IsDir() &&
			(name == "dist" || name == "node_modules" || name == "vendor" || strings.HasPrefix(name, ".") && name != "..") {
			return filepath.SkipDir
		}
		if filepath.Ext(name) != ".md" {
			return nil
		}
		text, err := os.ReadFile(file)
		relative, _ := filepath.Rel(root, file)
		texts[filepath.ToSlash(relative)] = withoutCode(string(text))
		return err
	})
	if err != nil || len(texts) < 20 {
		t.Fatalf("found %d documents: %v", len(texts), err)
	}
	return texts
}

// withoutCode removes fenced blocks of code and spans of code.
func withoutCode(text string) string {
	var kept []string
	fenced := false
	for line := range strings.Lines(text) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			fenced = !fenced
			continue
		}
		if !fenced {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept, "")
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#{1,6} +(.+?) *$`)
	span    = regexp.MustCompile("`[^`\n]*`")
)

// anchors returns the anchors of the headings of a document, as GitHub and GitLab generate them.
func anchors(text string) map[string]bool {
	found := map[string]bool{}
	for _, match := range heading.FindAllStringSubmatch(text, -1) {
		anchor := slug(match[1])
		for n := 1; found[anchor]; n++ {
			anchor = fmt.Sprintf("%s-%d", slug(match[1]), n)
		}
		found[anchor] = true
	}
	return found
}

// slug returns the anchor of a heading: lower case, without punctuation, with hyphens for spaces.
func slug(heading string) string {
	heading = link.ReplaceAllString(heading, "]")
	var b strings.Builder
	for _, r := range strings.ToLower(heading) {
		switch {
		case r == ' ':
			b.WriteByte('-')
		case unicode.IsLetter(r), unicode.IsDigit(r), r == '-', r == '_':
			b.WriteRune(r)
		}
	}
	return b.String()
}

func TestLinks(t *testing.T) {
	texts := documents(t)
	for document, text := range texts {
		for _, match := range link.FindAllStringSubmatch(span.ReplaceAllString(text, ""), -1) {
			if problem := broken(document, match[1], texts); problem != "" {
				t.Errorf("%s: %s: %s", document, match[1], problem)
			}
		}
	}
}

// broken returns the problem of a link, or "". Links to other sites are not followed.
func broken(document, target string, texts map[string]string) string {
	parsed, err := url.Parse(target)
	if err != nil {
		return err.Error()
	}
	if parsed.Scheme != "" {
		return ""
	}
	file := document
	if parsed.Path != "" {
		file = path.Join(path.Dir(document), parsed.Path)
	}
	if _, err := os.Stat(filepath.Join(root, file)); err != nil {
		return "there is no such file"
	}
	if parsed.Fragment != "" && !anchors(texts[file])[parsed.Fragment] {
		return "the document has no such heading"
	}
	return ""
}

func TestBroken(t *testing.T) {
	texts := map[string]string{"docs/install.md": "# Installing\n\n## With Helm\n\n## With `OLM`, and more\n"}
	for target, want := range map[string]string{
		"install.md":                  "",
		"install.md#with-helm":        "",
		"#with-olm-and-more":          "",
		"https://example.org/x#y":     "",
		"install.md#with-kustomize":   "the document has no such heading",
		"does-not-exist.md":           "there is no such file",
		"../README.md":                "",
		"../does/not/exist/README.md": "there is no such file",
	} {
		if got := broken("docs/install.md", target, texts); got != want {
			t.Errorf("%s: %q, want %q", target, got, want)
		}
	}
}

// TestIndex checks that every document can be reached from docs/README.md.
func TestIndex(t *testing.T) {
	texts := documents(t)
	linked := map[string]bool{}
	for _, match := range link.FindAllStringSubmatch(texts["docs/README.md"], -1) {
		target, _, _ := strings.Cut(match[1], "#")
		linked[path.Join("docs", target)] = true
	}
	for document := range texts {
		folder := path.Dir(document)
		if folder == "docs" && document != "docs/README.md" && !linked[document] {
			t.Errorf("docs/README.md does not link to %s", document)
		}
	}
}
