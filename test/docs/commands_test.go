package docs

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"quorate.dev/test/docs/guide"
	"quorate.dev/test/upstream"
)

// recorded are the programs whose arguments a dry run of a block records. validators checks some of them.
var recorded = []string{
	"kubectl", "quorate", "go", "make", "helm", "docker", "skopeo", "ctr", "etcdctl", "age-keygen", "curl",
	"kubelet", "ssh", "git", "systemctl", "rm", "mv", "sudo", "sleep",
}

// harmless are the programs that a dry run executes, in an empty directory.
var harmless = []string{
	"cat", "head", "tail", "base64", "sed", "grep", "date", "mkdir", "ln", "openssl", "tr", "cut", "chmod", "cp",
	"ls", "sort", "jq", "sha256sum", "tar", "diff", "awk",
}

// call is a recorded command with its arguments, and its position in the documents.
type call struct {
	where string
	args  []string
}

// TestCommandsExist executes each block of commands, and each command in the text, with functions in place of the
// programs. It checks that subcommands, flags, targets of make, packages and tests exist.
func TestCommandsExist(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	path := harmlessPath(t)
	var calls []call
	for document, text := range sources(t) {
		for _, block := range blocks(t, document, text) {
			if block.Language == "sh" {
				calls = append(calls, dryRun(t, path, block.String(), block.Text)...)
			}
		}
		if strings.HasPrefix(document, "docs/runbooks/") { // blocks of runbooks may be indented
			for i, command := range regexp.MustCompile(`(?m)^    ((?:kubectl|quorate) .*)$`).FindAllStringSubmatch(text, -1) {
				calls = append(calls, dryRun(t, path, fmt.Sprintf("%s, command %d", document, i+1), command[1])...)
			}
		}
		for line, commands := range guide.Spans(text) {
			for _, command := range commands {
				calls = append(calls, dryRun(t, path, fmt.Sprintf("%s:%d", document, line), command)...)
			}
		}
	}
	if len(calls) < 250 {
		t.Errorf("found only %d commands", len(calls))
	}
	v := newValidator(t)
	for _, c := range calls {
		if err := v.validate(c.args); err != nil {
			t.Errorf("%s: %s: %v", c.where, strings.Join(c.args, " "), err)
		}
		// kubectl would select one of the two replicas, whose log is empty if it is not the leader.
		if slices.Contains(c.args, "logs") &&
			slices.ContainsFunc(c.args, func(arg string) bool { return strings.HasPrefix(arg, "deploy") }) {
			t.Errorf("%s: %s: select the pods by label", c.where, strings.Join(c.args, " "))
		}
	}
	for _, wrong := range []string{
		"kubectl get pods --no-such-flag", "kubectl frobnicate", "kubectl rollout frobnicate x", "kubectl quorate frobnicate",
		"kubectl quorate status --frobnicate", "kubectl exec demo-0 -- quorate etcd status --frobnicate",
		"quorate frobnicate", "quorate apiserver ... --frobnicate=1", "quorate etcd alarm frobnicate",
		"go run . sandbox frobnicate", "go run ./frobnicate", "go test ./test/docs -run TestFrobnicate", "make frobnicate",
	} {
		if v.validate(strings.Fields(wrong)) == nil {
			t.Errorf("%s is valid", wrong)
		}
	}
}

// sources returns the documents for users, with their blocks.
func sources(t *testing.T) map[string]string {
	t.Helper()
	texts := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "docs/howto/*.md", "docs/reference/*.md", "docs/runbooks/*.md"} {
		for _, file := range must(filepath.Glob(filepath.Join(root, pattern)))(t) {
			name := must(filepath.Rel(root, file))(t)
			texts[filepath.ToSlash(name)] = string(must(os.ReadFile(file))(t))
		}
	}
	delete(texts, "CHANGELOG.md") // it names commands of former versions
	return texts
}

// blocks returns the blocks of a document.
func blocks(t *testing.T, document, text string) []guide.Block {
	t.Helper()
	found, err := guide.Blocks(document, text)
	if err != nil {
		t.Error(err)
	}
	return found
}

// harmlessPath returns a $PATH that contains only the harmless programs.
func harmlessPath(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	for _, name := range harmless {
		if program, err := exec.LookPath(name); err == nil {
			check(t, os.Symlink(program, filepath.Join(directory, name)))
		}
	}
	return directory
}

// recording returns shell functions in place of the recorded programs. Each appends its arguments to $RECORD.
func recording() string {
	var script strings.Builder
	for _, name := range append(slices.Clone(recorded), "command_not_found_handle", "/quorate", "/bin/sh") {
		fmt.Fprintf(&script, "function %s { printf '%%s\\0' %q \"$@\" $'\\x1e' >> \"$RECORD\"; }\n", name, path.Base(name))
	}
	return script.String()
}

// loop matches a loop that waits for something that does not happen in a dry run.
var loop = regexp.MustCompile(`until (.*); do sleep [0-9.]+; done`)

// dryRun executes a script and returns the recorded calls.
func dryRun(t *testing.T, path, where, script string) []call {
	t.Helper()
	directory := t.TempDir()
	record := filepath.Join(directory, "record")
	script = loop.ReplaceAllString(script, "$1")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	shell := exec.CommandContext(ctx, "bash", "--norc", "-c", recording()+script+"\nwait")
	shell.Dir, shell.Env = directory, []string{"PATH=" + path, "RECORD=" + record, "HOME=" + directory, "PWD=" + directory}
	output, err := shell.CombinedOutput()
	if ctx.Err() != nil {
		t.Errorf("%s does not end in a dry run", where)
	}
	if bytes.Contains(output, []byte("syntax error")) {
		t.Errorf("%s: %v\n%s", where, err, output)
	}
	text, _ := os.ReadFile(record)
	var calls []call
	for _, line := range strings.Split(string(text), "\x1e\x00") {
		args := strings.Split(strings.TrimSuffix(line, "\x00"), "\x00")
		if line == "" {
			continue
		}
		if args[0] == "command_not_found_handle" {
			t.Errorf("%s: the program %s is not known; see recorded and harmless in this test", where, args[1])
			continue
		}
		calls = append(calls, call{where, args})
	}
	return calls
}

// validator checks commands. It uses that programs print help only for subcommands and flags that exist.
type validator struct {
	kubectl, quorate string
	targets          []string

	mu   sync.Mutex
	seen map[string]error
}

func newValidator(t *testing.T) *validator {
	t.Helper()
	return &validator{
		kubectl: must(upstream.Binary(t.Context(), "kubectl"))(t),
		quorate: must(upstream.Quorate(t.Context()))(t), seen: map[string]error{},
		targets: makeTargets(t),
	}
}

// makeTargets returns the targets of the Makefile.
func makeTargets(t *testing.T) (targets []string) {
	t.Helper()
	makefile := string(must(os.ReadFile(filepath.Join(root, "Makefile")))(t))
	for _, match := range regexp.MustCompile(`(?m)^([a-z -]+):`).FindAllStringSubmatch(makefile, -1) {
		targets = append(targets, strings.Fields(match[1])...)
	}
	return targets
}

func (v *validator) validate(args []string) error {
	program, rest := args[0], args[1:]
	switch {
	case program == "kubectl" && len(rest) > 0 && rest[0] == "quorate":
		return v.validate(slices.Concat([]string{"quorate", "kubectl"}, rest[1:]))
	case program == "kubectl":
		if i := slices.Index(rest, "--"); i >= 0 {
			if err := v.validate(append([]string{path.Base(rest[i+1])}, rest[i+2:]...)); err != nil {
				return err
			}
			rest = rest[:i]
		}
		return v.help(v.kubectl, rest)
	case program == "quorate":
		return v.help(v.quorate, rest)
	case program == "make":
		return v.makes(rest)
	case program == "go":
		return v.goCommand(rest)
	}
	return nil
}

// help runs a command with --help, which fails if a flag does not exist.
func (v *validator) help(program string, args []string) error {
	args = slices.DeleteFunc(slices.Clone(args), func(arg string) bool { return arg == "..." })
	if len(args) == 0 || args[len(args)-1] == "connect" { // `kubectl quorate` runs connect in pods, without arguments
		return nil
	}
	key := program + " " + skeleton(args)
	v.mu.Lock()
	defer v.mu.Unlock()
	err, known := v.seen[key]
	if !known {
		err = helpOf(program, args)
		v.seen[key] = err
	}
	return err
}

// skeleton returns the words before the first flag, and the names of the flags.
func skeleton(args []string) string {
	var kept []string
	flags := false
	for _, arg := range args {
		name, isFlag := strings.CutPrefix(arg, "-")
		flags = flags || isFlag
		if isFlag {
			name, _, _ = strings.Cut(name, "=")
			kept = append(kept, "-"+name)
		} else if !flags {
			kept = append(kept, arg)
		}
	}
	return strings.Join(kept, " ")
}

var wordless = regexp.MustCompile(`^[a-z-]+$`)

func helpOf(program string, args []string) error {
	output, err := exec.Command(program, append(slices.Clone(args), "--help")...).CombinedOutput()
	if err != nil {
		first, _, _ := strings.Cut(string(output), "\n")
		return fmt.Errorf("%w: %s", err, first)
	}
	// A command with subcommands prints its own help for a subcommand that does not exist.
	last := args[0]
	for _, arg := range args[1:] {
		if strings.HasPrefix(arg, "-") {
			break
		}
		last = arg
	}
	usage := regexp.MustCompile(`(?m)^Usage:\n +(.*)$`).FindSubmatch(output)
	if bytes.Contains(output, []byte("Available Commands:")) && wordless.MatchString(last) && usage != nil &&
		!slices.Contains(strings.Fields(string(usage[1])), last) {
		return fmt.Errorf("%q is not one of the subcommands", last)
	}
	return nil
}

func (v *validator) makes(args []string) error {
	for _, target := range args {
		if !strings.Contains(target, "=") && !slices.Contains(v.targets, target) {
			return fmt.Errorf("the Makefile has no target %s", target)
		}
	}
	return nil
}

// goCommand checks that the folder of `go run` and the tests of `go test -run` exist.
func (v *validator) goCommand(args []string) error {
	if len(args) < 2 || args[0] != "run" && args[0] != "test" {
		return nil
	}
	if args[0] == "run" && args[1] == "." {
		return v.validate(append([]string{"quorate"}, args[2:]...))
	}
	pattern, folder := "", ""
	for i, arg := range args {
		switch {
		case arg == "-run" && i+1 < len(args):
			pattern = args[i+1]
		case strings.HasPrefix(arg, "./"):
			folder = arg
		}
	}
	if folder == "./..." || folder == "" || strings.HasSuffix(folder, "/...") {
		return nil
	}
	files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("%s has no Go files: %w", folder, err)
	}
	return testsExist(files, pattern)
}

// testsExist checks that each alternative of a pattern matches a test. The pattern "." matches all tests.
func testsExist(files []string, pattern string) error {
	var text strings.Builder
	for _, file := range files {
		source, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		text.Write(source)
	}
	for _, name := range strings.Split(strings.Trim(pattern, "'()"), "|") {
		name, _, _ = strings.Cut(name, "/")
		name = strings.Trim(name, "^$")
		if name != "" && name != "." && name != "xxx" && !strings.Contains(text.String(), "func "+name) &&
			!strings.Contains(text.String(), "func Test"+name) {
			return fmt.Errorf("no test is named %s", name)
		}
	}
	return nil
}

// TestBlocks checks that the words after each fence describe the block, and that no block is only indented.
func TestBlocks(t *testing.T) {
	executed, validated := 0, map[string]int{}
	for document, text := range sources(t) {
		for _, block := range blocks(t, document, text) {
			switch {
			case block.NotRun != "":
				validated[block.NotRun]++
			case block.Language == "sh":
				executed++
			}
		}
		if strings.HasPrefix(document, "docs/runbooks/") {
			continue
		}
		for _, line := range indented(text) {
			t.Errorf("%s:%d: an indented block; use a fence with a language", document, line)
		}
	}
	sum := 0
	for _, n := range validated {
		sum += n
	}
	t.Logf("%d blocks are executed, %d are only validated: %v", executed, sum, validated)
	if executed < 3*sum/2 {
		t.Errorf("%d blocks are executed, and %d are only validated: %v", executed, sum, validated)
	}
}

// indented returns the lines at which indented blocks of code begin. In a list, such a line continues an item.
func indented(text string) []int {
	var found []int
	fenced, list, blank, number := false, false, true, 0
	for line := range strings.Lines(text) {
		number++
		trimmed := strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(trimmed, "```"):
			fenced = !fenced
		case fenced || trimmed == "":
		case strings.HasPrefix(line, "    ") && blank && !list:
			found = append(found, number)
		case !strings.HasPrefix(line, " "):
			list = item.MatchString(line)
		}
		blank = trimmed == ""
	}
	return found
}

var item = regexp.MustCompile(`^([-*]|[0-9]+\.) `)

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// must returns a value, or fails the test if err is not nil.
func must[T any](value T, err error) func(*testing.T) T {
	return func(t *testing.T) T {
		t.Helper()
		check(t, err)
		return value
	}
}
