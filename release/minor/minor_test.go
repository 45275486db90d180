package main

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
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
	found.addMetrics(file, constants)
	found.addFilters(file)
	want := inventory{
		sectionHooks: {"start-controllers": "hook", "informer-sync": "check"},
		sectionMetrics: {
			"apiserver_request_total": "counter, STABLE, labels [code verb]",
			"plain":                   "gauge, ALPHA, labels []",
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
	document := written(t, sections, nil)
	if !strings.Contains(document, "1 changes, 1 without an answer") || strings.Count(document, open) != 1 {
		t.Fatal(document)
	}
	answered := strings.ReplaceAll(document, open, "found already so")
	sections["gates"] = []change{{"New", "", "ALPHA, off"}}
	document = written(t, sections, parseAnswers(answered))
	if !strings.Contains(document, "2 changes, 1 without an answer") || !strings.Contains(document, "found already so") {
		t.Error(document)
	}
}

func written(t *testing.T, sections map[string][]change, earlier answers) string {
	t.Helper()
	var text strings.Builder
	if err := write(&text, "v1.0.0", "v1.1.0", sections, earlier); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// FuzzAnswers checks that each answer is found again under the name of its change.
func FuzzAnswers(f *testing.F) {
	f.Add("--flag", "before", "after")
	f.Add("ClusterRole x: get|list", "", "a | b")
	f.Fuzz(func(t *testing.T, name, before, after string) {
		sections := map[string][]change{"flags": {{name, before, after}}}
		document := written(t, sections, nil)
		for _, names := range parseAnswers(document) {
			if found := slices.Collect(maps.Keys(names)); len(found) != 1 || found[0] != normalized(name) {
				t.Errorf("%q is found as %q in\n%s", name, found, document)
			}
		}
	})
}

func TestModule(t *testing.T) {
	specification := "module k8s.io/kubernetes\n\ngo 1.26.0\n\nreplace (\n\tk8s.io/api => ./staging/src/k8s.io/api\n)\n"
	if got := goDirective(specification); got != "go 1.26.0" {
		t.Error(got)
	}
	if got := stagingPattern.FindStringSubmatch(specification); len(got) != 2 || got[1] != "k8s.io/api" {
		t.Error(got)
	}
	if versionPattern.MatchString("1.36") || !versionPattern.MatchString("v1.37.0-rc.1") {
		t.Error("versions are not recognized")
	}
}
