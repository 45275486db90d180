package docs

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// measuring are the documents that state times, ratios, sizes or counts of this software. Each number in them must be
// part of a claim.
var measuring = []string{
	"README.md", "docs/performance.md", "docs/availability.md", "docs/comparison.md",
	"docs/concepts.md", "docs/fairness.md", "docs/envtest.md", "docs/audit.md",
}

// claim is a text with numbers, and the command that fails if they are wrong. A text that begins with "| " is the
// header of a table, and represents the whole table.
type claim struct {
	document, text string
	check          string // make TARGET, go test ./PACKAGE -run TEST, or source FILE: LINE with the constant
	given          string // reason for which no check is needed: the numbers are not properties of this software
}

var (
	benchmarkTable = regexp.MustCompile(`(?s)<!-- benchmark: .*?<!-- end -->`)
	tableLines     = regexp.MustCompile(`(?m)(?:^\|.*\n)+`)
	space          = regexp.MustCompile(`\s+`)
	target         = regexp.MustCompile(`\]\([^)]*\)`)

	// named matches numbers that are part of a name: versions and status codes of HTTP.
	named = regexp.MustCompile(
		`\b(?:Kubernetes|kube-apiserver|etcd|Go|containerd|kine|License) [0-9][0-9.]*[0-9]|\b(?:403|410|429)\b`,
	)
	// quantity matches a number, or a fraction in words.
	quantity = regexp.MustCompile(`(?:^|[\s(≤"~+|])[0-9][0-9.,/]*|\b[Tt]wice\b|\b(?:one|an?|two|three)[ -](?:half|third|quarter|fifth|sixth|eighth|tenth)s?\b|\bhalf\b`)
)

// prose returns a text without blocks, spans, targets of links, and the tables that test/benchmark compares with its
// recorded results.
func prose(text string) string {
	return target.ReplaceAllString(span.ReplaceAllString(withoutCode(benchmarkTable.ReplaceAllString(text, "")), "CODE"),
		"]")
}

// unclaimed returns the problems of a document: claims that the text does not contain, and numbers that are in no
// claim, with the text around them.
func unclaimed(text string, claims []claim) (problems []string) {
	text = prose(text)
	for _, c := range claims {
		if !strings.HasPrefix(c.text, "| ") {
			continue
		}
		found := false
		text = tableLines.ReplaceAllStringFunc(text, func(table string) string {
			if !strings.HasPrefix(table, c.text) {
				return table
			}
			found = true
			return "\n"
		})
		if !found {
			problems = append(problems, "no table begins with "+c.text)
		}
	}
	text = named.ReplaceAllString(space.ReplaceAllString(text, " "), "NAME")
	for _, c := range claims {
		if strings.HasPrefix(c.text, "| ") {
			continue
		}
		if !strings.Contains(text, c.text) {
			problems = append(problems, "the document does not say: "+c.text)
		}
		text = strings.ReplaceAll(text, c.text, "CLAIM")
	}
	for _, at := range quantity.FindAllStringIndex(text, -1) {
		problems = append(problems, "a number in no claim: ..."+text[max(0, at[0]-60):min(len(text), at[1]+40)]+"...")
	}
	return problems
}

// TestClaims checks that each number in the documents that state figures has a check, and that the check exists.
func TestClaims(t *testing.T) {
	texts := sources(t)
	v := &validator{targets: makeTargets(t)}
	of := map[string][]claim{}
	for _, c := range claims {
		of[c.document] = append(of[c.document], c)
		if (c.check == "") == (c.given == "") {
			t.Errorf("%s: %s: has neither a check nor a reason, or both", c.document, c.text)
		}
		if c.check != "" {
			if err := v.checkExists(t, c.check); err != nil {
				t.Errorf("%s: %s: %v", c.document, c.text, err)
			}
		}
	}
	for _, document := range measuring {
		for _, problem := range unclaimed(texts[document], of[document]) {
			t.Errorf("%s: %s", document, problem)
		}
		delete(of, document)
	}
	for document := range of {
		t.Errorf("%s has claims, but is not in measuring", document)
	}
}

// checkExists returns an error if the check of a claim would pass without checking anything.
func (v *validator) checkExists(t *testing.T, check string) error {
	t.Helper()
	source, isSource := strings.CutPrefix(check, "source ")
	if !isSource {
		if args := strings.Fields(check); args[0] != "make" &&
			(args[0] != "go" || args[1] != "test" || !strings.Contains(check, " -run ")) {
			return fmt.Errorf("%s is no check", check)
		}
		return v.validate(strings.Fields(check))
	}
	file, line, _ := strings.Cut(source, ": ")
	text := space.ReplaceAllString(string(must(os.ReadFile(filepath.Join(root, file)))(t)), " ")
	if line == "" || !strings.Contains(text, line) {
		return fmt.Errorf("%s has no line %s", file, line)
	}
	return nil
}

func TestCheckExists(t *testing.T) {
	v := &validator{targets: makeTargets(t)}
	for check, exists := range map[string]bool{
		"make availability": true, "make frobnicate": false, "go test ./test/docs -run TestClaims": true,
		"go run ./test/benchmark": false, "go test ./test/docs -run TestFrobnicate": false,
		"source go.mod: module quorate.dev": true, "source go.mod: module frobnicate": false,
	} {
		if err := v.checkExists(t, check); (err == nil) != exists {
			t.Errorf("%s: %v", check, err)
		}
	}
}

func TestUnclaimed(t *testing.T) {
	claims := []claim{{text: "at most 60 %"}, {text: "| event | gap |"}}
	const claimed = "A create needs at most\n60 % with Go 1.26 and `x=5`.\n\n| event | gap |\n| --- | --: |\n| kill | 3 " +
		"s |\n\nIt gets 429.\n"
	if problems := unclaimed(claimed, claims); len(problems) != 0 {
		t.Errorf("%q", problems)
	}
	for _, wrong := range []string{
		"A GET needs 80 %.\n", "It needs a tenth.\n", "It needs 1/4.\n", "(3 s)\n", "Twice as fast.\n",
		"| other | table |\n| --- | --- |\n| kill | 3 s |\n",
	} {
		if problems := unclaimed(claimed+"\n"+wrong, claims); len(problems) != 1 {
			t.Errorf("%s: %q", wrong, problems)
		}
	}
	if problems := unclaimed("Nothing.\n", claims); len(problems) != 2 {
		t.Errorf("claims that are not in the document: %q", problems)
	}
}
