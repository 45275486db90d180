package guide

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
)

// Script is the shell script of a reader who executes the blocks of a document in order, in one shell.
type Script struct {
	Long    bool              // execute long blocks, too
	Replace map[string]string // text to replace, with the reader's values
	// DryRun says that complete YAML objects that the reader does not apply are sent to the server in a dry run.
	DryRun bool

	text   strings.Builder
	blocks []Block // blocks with commands; the index is the name of the output file
}

// Add appends those blocks that are executed.
func (s *Script) Add(blocks []Block) {
	for _, b := range blocks {
		if b.Long && !s.Long {
			continue
		}
		switch text := s.replaced(b.Text); {
		case b.Language == "sh" && b.NotRun == "":
			s.command(b, text)
		case b.File != "":
			s.command(b,
				fmt.Sprintf("mkdir -p \"$(dirname %[1]s)\"; cat > %[1]s <<'END OF BLOCK'\n%[2]sEND OF BLOCK\n",
					s.replaced(b.File), text))
		case b.Apply:
			s.command(b, "kubectl apply --validate=strict -f - <<'END OF BLOCK'\n"+text+"END OF BLOCK\n")
		case b.Language == "yaml" && b.Fragment == "" && s.DryRun && isObject(text):
			s.command(b, "kubectl apply --dry-run=server --validate=strict -f - <<'END OF BLOCK'\n"+
				existing.ReplaceAllString(text, "${1}dry-run")+"END OF BLOCK\n")
		}
	}
}

// existing matches the name of the cluster that the reader already has, which a dry run must not update.
var existing = regexp.MustCompile(`(?m)^(metadata: \{name: |  name: )demo\b`)

// isObject reports whether a block contains objects of an API server rather than the content of a configuration file.
func isObject(text string) bool {
	for line := range strings.Lines(text) {
		version, ok := strings.CutPrefix(line, "apiVersion: ")
		if ok && (strings.Contains(version, ".config.k8s.io") || strings.HasPrefix(version, "audit.k8s.io") ||
			strings.HasPrefix(version, "apiserver.k8s.io")) {
			return false
		}
	}
	return strings.HasPrefix(text, "apiVersion: ")
}

func (s *Script) replaced(text string) string {
	for _, old := range slices.SortedFunc(maps.Keys(s.Replace), func(a, b string) int { return len(b) - len(a) }) {
		text = strings.ReplaceAll(text, old, s.Replace[old])
	}
	return text
}

// command appends commands whose standard output is redirected to a file for the block.
func (s *Script) command(b Block, text string) {
	fmt.Fprintf(&s.text, ": %s\nexec > \"$OUTPUT/%d\"\n%s\n", b, len(s.blocks), text)
	s.blocks = append(s.blocks, b)
}

// Len returns the number of blocks with commands.
func (s *Script) Len() int { return len(s.blocks) }

func (s *Script) String() string { return s.text.String() }

// Check compares the blocks of output in a document with the output of the commands before them, in files of the
// directory. Each line of the document must begin with the first word of a printed line.
func (s *Script) Check(document []Block, directory string) error {
	for i, b := range document {
		if !b.Output || i == 0 {
			continue
		}
		n := slices.IndexFunc(s.blocks, func(c Block) bool {
			return c.Document == b.Document && c.Line == document[i-1].Line
		})
		if n < 0 {
			continue // long
		}
		printed, err := os.ReadFile(filepath.Join(directory, fmt.Sprint(n)))
		if err != nil {
			return err
		}
		if missing := compare(b.Text, string(printed)); missing != "" {
			return fmt.Errorf("%s: the output has no line that begins with %q:\n%s", b, missing, printed)
		}
	}
	return nil
}

// compare returns the first word of the first line that no printed line begins with, or "". "..." represents any number
// of lines.
func compare(shown, printed string) string {
	begins := map[string]bool{"...": true}
	for line := range strings.Lines(printed) {
		if words := strings.Fields(line); len(words) > 0 {
			begins[words[0]] = true
		}
	}
	for line := range strings.Lines(shown) {
		if words := strings.Fields(line); len(words) > 0 && !begins[words[0]] {
			return words[0]
		}
	}
	return ""
}
