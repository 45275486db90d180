package main

import (
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCompare(t *testing.T) {
	before, after := inventory{}, inventory{}
	before.set("flags", "--kept", "bool")
	before.set("flags", "--removed", "bool")
	before.set("flags", "--changed", "default 1")
	after.set("flags", "--kept", "bool")
	after.set("flags", "--changed", "default 2")
	after.set("gates", "Added", "BETA, on")
	want := map[string][]change{
		"flags": {{"--changed", "default 1", "default 2"}, {"--removed", "bool", ""}},
		"gates": {{"Added", "", "BETA, on"}},
	}
	if different := cmp.Diff(want, compare(before, after), cmp.AllowUnexported(change{})); different != "" {
		t.Error(different)
	}
}

// parse returns the file of a package server with the given declarations.
func parse(t *testing.T, declarations string) *ast.File {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "server.go", "package server\n"+declarations,
		parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	return file
}

func TestSources(t *testing.T) {
	file := parse(t, `
const subsystem = "apiserver"
const hook = "start-" + "controllers"

var requests = metrics.NewCounterVec(&metrics.CounterOpts{
	Subsystem: subsystem, Name: "request_total", Help: "x", StabilityLevel: metrics.STABLE,
}, []string{"verb", "code"})
var plain = metrics.NewGauge(&metrics.GaugeOpts{Name: "plain"})
var old = metrics.NewHistogram(&metrics.HistogramOpts{
	Name: "old", Buckets: []float64{1, 2}, DeprecatedVersion: "1.36.0", StabilityLevel: metrics.BETA,
})
var late = metrics.NewGauge(&metrics.GaugeOpts{
	Name: "late", DeprecatedVersion: "1.35.0", StabilityLevel: metrics.STABLE,
})
var size = metrics.NewDesc("size_bytes", "x", []string{"cluster"}, nil, metrics.STABLE, "")

func DefaultBuildHandlerChain(handler http.Handler) http.Handler {
	handler = filters.WithAuthorization(handler)
	if c.FlowControl != nil {
		handler = filters.WithPriorityAndFairness(handler)
	}
	return handler
}

func other() {
	s.AddPostStartHookOrDie(hook, nil)
	s.AddHealthChecks(healthz.NamedCheck("informer-sync", nil))
	s.AddPostStartHook(computed(), nil)
}
`)
	found := inventory{}
	constants := stringConstants([]*ast.File{file})
	found.addHooks(file, constants)
	found.addMetrics(file, constants, 37)
	found.addFilters(file)
	want := inventory{
		sectionHooks: {"start-controllers": "hook", "informer-sync": "check"},
		sectionMetrics: {
			"apiserver_request_total": "counter, STABLE, labels [code verb], help: x",
			"plain":                   "gauge, ALPHA, labels []",
			"old":                     "histogram, BETA, labels [], buckets []float64{1, 2}, deprecated since 1.36.0, hidden",
			"late":                    "gauge, STABLE, labels [], deprecated since 1.35.0",
			"size_bytes":              "description, STABLE, labels [cluster]",
		},
		sectionFilters: {"WithAuthorization": "around none", "WithPriorityAndFairness": "around WithAuthorization"},
	}
	if different := cmp.Diff(want, found); different != "" {
		t.Error(different)
	}
}

// TestAnswersAreKept writes a document, answers one change, and writes it again after another change was found.
func TestAnswersAreKept(t *testing.T) {
	sections := map[string][]change{"rbac": {{"ClusterRole a: get|list of `pods`", "allowed", ""}}}
	document := written(t, sections, nil, nil)
	if !strings.Contains(document, "1 changes, 1 without an answer") || strings.Count(document, open) != 1 {
		t.Fatal(document)
	}
	answered := strings.ReplaceAll(document, open, "found already so")
	sections["gates"] = []change{{"New", "", "ALPHA, off"}}
	document = rewritten(t, sections, answered)
	if !strings.Contains(document, "Without changes: Dependencies, Flags and their defaults, ") {
		t.Error(document)
	}
	if !strings.Contains(document, "2 changes, 1 without an answer, 0 to be done") ||
		!strings.Contains(document, "found already so") {
		t.Error(document)
	}
}

// TestSharedAnswers answers two changes with a label, and a third one with a label that has no text.
func TestSharedAnswers(t *testing.T) {
	sections := map[string][]change{"gates": {{"A", "", "on"}, {"B", "", "on"}, {"C", "", "on"}}}
	answered := strings.Replace(written(t, sections, nil, nil), open, "kubelet", 2)
	answered += "\n- **kubelet**: open: only the kubelet reads it\n- **unused**: no row has the label\n"
	document := rewritten(t, sections, answered)
	if !strings.Contains(document, "3 changes, 1 without an answer, 2 to be done") ||
		!strings.Contains(document, "\n- **kubelet**: open: only the kubelet reads it\n") ||
		strings.Contains(document, "unused") {
		t.Error(document)
	}
	if again := rewritten(t, sections, document); again != document {
		t.Error(cmp.Diff(document, again))
	}
}

func written(t *testing.T, sections map[string][]change, earlier answers, groups shared) string {
	t.Helper()
	var text strings.Builder
	if err := write(&text, "v1.0.0", "v1.1.0", sections, earlier, groups); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// rewritten writes the document again, with the answers of an earlier one.
func rewritten(t *testing.T, sections map[string][]change, document string) string {
	t.Helper()
	earlier, groups := parseAnswers(document)
	return written(t, sections, earlier, groups)
}

// TestComments compares files that differ in comments only, and in code.
func TestComments(t *testing.T) {
	for _, test := range []struct {
		name, after string
		same        bool
	}{
		{"comment", "// Package a is a.\npackage a\n\nvar x = 1 // one\n", true},
		{"code", "package a\n\nvar x = 2\n", false},
	} {
		t.Run(test.name, func(t *testing.T) {
			directory := t.TempDir()
			before, after := filepath.Join(directory, "before.go"), filepath.Join(directory, "after.go")
			if err := errors.Join(os.WriteFile(before, []byte("package a\n\nvar x = 1\n"), 0o600),
				os.WriteFile(after, []byte(test.after), 0o600)); err != nil {
				t.Fatal(err)
			}
			if same, err := sameCode(before, after); same != test.same || err != nil {
				t.Error(same, err)
			}
		})
	}
}

func TestSectionOfPackages(t *testing.T) {
	for _, test := range []struct {
		importPath string
		linked     bool
		want       string
	}{
		{"k8s.io/kubernetes/pkg/registry/core/pod", true, sectionStrategies},
		{"k8s.io/kubernetes/pkg/registry/core/rest", false, sectionStrategies},
		{"k8s.io/apiserver/pkg/registry/rest", true, sectionLibraries},
		{"k8s.io/apiserver/pkg/storage/etcd3", true, sectionFiles},
		{"k8s.io/kubernetes/pkg/controlplane", false, sectionFiles},
		{"k8s.io/kubernetes/pkg/scheduler/apis/config", false, sectionOthers},
		{"k8s.io/api/core/v1", true, ""},
		{"k8s.io/client-go/informers/core/v1", true, ""},
		{"k8s.io/client-go/tools/cache", true, sectionLibraries},
	} {
		if got := sectionOf(test.importPath, test.linked); got != test.want {
			t.Errorf("%s: got %q, want %q", test.importPath, got, test.want)
		}
	}
	changes := []change{{"a/b/x.go", "-1", "+2"}, {"a/b/y.go", "", "new"}}
	want := []change{{"a/b", "", "x.go -1 +2, y.go new"}}
	if different := cmp.Diff(want, summarized("a/b", changes), cmp.AllowUnexported(change{})); different != "" {
		t.Error(different)
	}
}

// FuzzAnswers checks that each answer is found again under the name of its change.
func FuzzAnswers(f *testing.F) {
	f.Add("--flag", "before", "after")
	f.Add("ClusterRole x: get|list", "", "a | b")
	f.Fuzz(func(t *testing.T, name, before, after string) {
		sections := map[string][]change{"flags": {{name, before, after}}}
		document := written(t, sections, nil, nil)
		found, _ := parseAnswers(document)
		for _, names := range found {
			if found := slices.Collect(maps.Keys(names)); len(found) != 1 || found[0] != normalized(name) {
				t.Errorf("%q is found as %q in\n%s", name, found, document)
			}
		}
	})
}
