package controlplane

import (
	"bytes"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// kinds maps each kind of problem in a log of klog's format to a line of it. A kind is the message without what
// differs between two lines about the same thing: names, addresses, numbers, identifiers.
func kinds(log []byte) map[string]string {
	found := map[string]string{}
	for _, line := range strings.Split(string(log), "\n") {
		if head := header.FindString(line); head != "" {
			found[kind(line[len(head):])] = line
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

// compareLogs fails for each kind of problem that a component had with our server and not with kube-apiserver, but for
// those that come and go with the timing of a run.
func compareLogs(t *testing.T, component, ours, theirs string) {
	t.Helper()
	known := knownKinds(t)
	read := func(path string) map[string]string {
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(content, []byte("Starting")) {
			t.Errorf("%s says nothing", path)
		}
		return kinds(content)
	}
	expected := read(theirs)
	for k, line := range read(ours) {
		if _, ok := expected[k]; !ok && !slices.ContainsFunc(known, func(pattern *regexp.Regexp) bool { return pattern.MatchString(k) }) {
			t.Errorf("%s had a problem that it does not have with kube-apiserver:\n  %s\n  %s", component, line, k)
		}
	}
	if t.Failed() {
		for k := range expected {
			t.Logf("%s with kube-apiserver: %s", component, k)
		}
	}
}

// knownKinds are patterns of those that kube-apiserver's clients have in some runs and not in others.
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
	var got []string
	for k := range kinds([]byte(log)) {
		got = append(got, k)
	}
	slices.Sort(got)
	want := []string{`"Unhandled Error" err="sync NAME failed with conflict N on ADDRESS" logger=... pod=...`, "leaderelection lost"}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}
