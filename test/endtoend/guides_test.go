package endtoend

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"quorate.dev/test/upstream"
)

// guides are the sections of documents whose commands are executed, in this order, on one sandbox.
var guides = []struct {
	document string
	sections []string // headings
}{
	{"docs/start.md", []string{"Use it", "Break it", "Change it"}},
	{"README.md", []string{"Quorate"}},
	{"docs/troubleshooting.md", []string{"Troubleshooting"}},
}

// TestGuides executes the commands of guides as a reader does: all blocks of a document in one shell, in a directory with
// .quorate.
func TestGuides(t *testing.T) {
	upstream.NeedsProcesses(t)
	s := startSandbox(t)
	s.settled(3, 3)
	directory := t.TempDir()
	check(t, os.Symlink(s.directory, filepath.Join(directory, ".quorate")))
	for _, guide := range guides {
		t.Run(guide.document, func(t *testing.T) {
			text := must(os.ReadFile(filepath.Join("../..", guide.document)))(t)
			script := commands(string(text), guide.sections)
			if script == "" {
				t.Fatal("there are no commands")
			}
			s.execute(t, directory, script)
		})
		s.settled(s.cluster().ReplicaCount(), s.cluster().VoterCount())
	}
}

// commands returns the fenced blocks without a language in sections of a document. A block that shows output or starts the
// sandbox is left out.
func commands(document string, sections []string) string {
	var script strings.Builder
	for _, section := range strings.Split("\n"+document, "\n#") {
		heading, body, _ := strings.Cut(section, "\n")
		if !slices.Contains(sections, strings.TrimSpace(strings.TrimLeft(heading, "#"))) {
			continue
		}
		for i, block := range strings.Split(body, "\n```") {
			block, isCommand := strings.CutPrefix(block, "\n")
			if i%2 == 1 && isCommand && !strings.HasPrefix(block, "management  ") && !strings.HasPrefix(block, "go run . sandbox  ") {
				script.WriteString(block + "\n")
			}
		}
	}
	return script.String()
}

// prelude replaces `go run .` by the binary that runs the sandbox, and has the variables of its terminals.
const prelude = `
set -euo pipefail
go() {
  [ "$1 $2 $3" = "run . sandbox" ] || { echo "unexpected: go $*" >&2; return 1; }
  "$QUORATE" "${@:3}"
}
eval "$(go run . sandbox env 2>/dev/null)"
set -x
`

// execute runs a script in a directory.
func (s *sandbox) execute(t *testing.T, directory, script string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "bash", "-c", prelude+script)
	command.Dir = directory
	command.Env = append(os.Environ(), "QUORATE="+filepath.Join(s.directory, "bin", "quorate"),
		"PATH="+filepath.Dir(s.kubectl)+":"+os.Getenv("PATH"), "KUBECONFIG=")
	if output, err := command.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, output)
	}
}

func TestCommands(t *testing.T) {
	const document = "# A\n\ntext\n\n```\none\n  two\n```\n\n```yaml\nspec: {}\n```\n\n## B\n\n```\nthree\n```\n\n## C\n\n```\nfour\n```\n"
	for sections, want := range map[string]string{"A": "one\n  two\n", "B": "three\n", "A,C": "one\n  two\nfour\n", "D": ""} {
		if got := commands(document, strings.Split(sections, ",")); got != want {
			t.Errorf("%s: %q, want %q", sections, got, want)
		}
	}
}
