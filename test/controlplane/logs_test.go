package controlplane

import (
	"bytes"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// problem is a kind of problem in a log: the number of its lines, and the last one.
type problem struct {
	count int
	line  string
}

// kinds are the problems in a log of klog's format. A kind is the message without variable parts: names, addresses,
// numbers, identifiers.
func kinds(log []byte) map[string]problem {
	found := map[string]problem{}
	for _, line := range strings.Split(string(log), "\n") {
		if head := header.FindString(line); head != "" {
			k := kind(line[len(head):])
			found[k] = problem{found[k].count + 1, line}
		}
	}
	return found
}

var (
	header = regexp.MustCompile(`^[EF]\d{4} [0-9:.]+ +\d+ [\w.]+:\d+\] `)
	// field is a value of klog's structured messages.
	field = regexp.MustCompile(`(\w+)=("(?:[^"\\]|\\.)*"|\S+)`)
	// variable parts of messages, in this order
	variables = []struct {
		pattern *regexp.Regexp
		name    string
	}{
		{regexp.MustCompile(`\\"[^"\\]*\\"`), "NAME"},
		{regexp.MustCompile(`&\w+\{.*`), "OBJECT"},
		{regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}`), "UID"},
		{regexp.MustCompile(`https?://[^\s"\\]+`), "URL"},
		{regexp.MustCompile(`\d+\.\d+\.\d+\.\d+(:\d+)?`), "ADDRESS"},
		{regexp.MustCompile(`[\w.-]+/[\w./-]+`), "NAME"},
		{regexp.MustCompile(`\d+`), "N"},
	}
)

func kind(message string) string {
	message = field.ReplaceAllStringFunc(message, func(found string) string {
		if key, _, _ := strings.Cut(found, "="); key != "err" {
			return key + "=..."
		}
		return found
	})
	for _, v := range variables {
		message = v.pattern.ReplaceAllString(message, v.name)
	}
	return message
}

// A kind of problem is too frequent if it exceeds kube-apiserver's count by this factor and by this number of lines.
// Variations of timing stay below. Stale reads are more frequent here, some 60 lines in a run and 10 to 25 with
// kube-apiserver: events in quick succession share a write and may be 15 ms late, in which a controller retries twice.
const (
	oftener  = 5
	somewhat = 100
)

// compareLogs fails for each kind of problem that a component has with our server only, except those that depend on the
// timing of a run, and for each that is much more frequent.
func compareLogs(t *testing.T, component, ours, theirs string) {
	t.Helper()
	got, expected := readLog(t, ours), readLog(t, theirs)
	for k, text := range worse(got, expected, knownKinds(t)) {
		t.Errorf("%s %s:\n  %s\n  %s", component, text, got[k].line, k)
	}
	if t.Failed() {
		for k, p := range expected {
			t.Logf("%s with kube-apiserver, %d times: %s", component, p.count, k)
		}
	}
}

func readLog(t *testing.T, path string) map[string]problem {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(content, []byte("Starting")) {
		t.Errorf("%s says nothing", path)
	}
	return kinds(content)
}

// worse describes each kind of problem that is worse than expected.
func worse(got, expected map[string]problem, known []*regexp.Regexp) map[string]string {
	found := map[string]string{}
	for k, p := range got {
		isKnown := slices.ContainsFunc(known, func(pattern *regexp.Regexp) bool { return pattern.MatchString(k) })
		switch theirs := expected[k].count; {
		case theirs == 0 && !isKnown:
			found[k] = "had a problem that it does not have with kube-apiserver"
		case p.count > oftener*theirs+somewhat:
			found[k] = fmt.Sprintf("had a problem %d times that it has %d times with kube-apiserver", p.count, theirs)
		}
	}
	return found
}

// knownKinds are patterns of problems that kube-apiserver's clients have in some runs only.
func knownKinds(t *testing.T) (known []*regexp.Regexp) {
	t.Helper()
	content, err := os.ReadFile("testdata/known.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, line := range strings.Split(string(content), "\n") {
		if line != "" && !strings.HasPrefix(line, "#") {
			known = append(known, regexp.MustCompile(line))
		}
	}
	return known
}

func TestKinds(t *testing.T) {
	log := `I1122 00:41:36.123456   123 a.go:1] "Starting"
E1122 00:41:36.123456   123 replica_set.go:564] "Unhandled Error" err="sync \"ns/web-5d\" failed with conflict 12 on 10.0.0.1:80" logger="x" pod="a/b"
E1122 00:41:37.123456   123 replica_set.go:564] "Unhandled Error" err="sync \"ns/db-6e\" failed with conflict 7 on 10.0.0.2:80" logger="y" pod="c/d"
F1122 00:41:37.123456   123 main.go:5] leaderelection lost
`
	lines := strings.Split(log, "\n")
	want := map[string]problem{
		`"Unhandled Error" err="sync NAME failed with conflict N on ADDRESS" logger=... pod=...`: {2, lines[2]},
		"leaderelection lost": {1, lines[3]},
	}
	if got := kinds([]byte(log)); !maps.Equal(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

func TestWorse(t *testing.T) {
	count := func(n int) problem { return problem{count: n} }
	known := []*regexp.Regexp{regexp.MustCompile("^sometimes")}
	got := worse(
		map[string]problem{
			"new": count(1), "sometimes": count(100), "sometimes, and a lot": count(101),
			"usual": count(110), "storm": count(111),
		},
		map[string]problem{"usual": count(2), "storm": count(2), "theirs alone": count(5)}, known)
	want := map[string]string{
		"new":                  "had a problem that it does not have with kube-apiserver",
		"sometimes, and a lot": "had a problem 101 times that it has 0 times with kube-apiserver",
		"storm":                "had a problem 111 times that it has 2 times with kube-apiserver",
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
