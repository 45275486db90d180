package architecture

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

const (
	workflows    = "../../.github/workflows"
	makefile     = "../../Makefile"
	contributing = "../../CONTRIBUTING.md"
	continuous   = "../../.ci/run"
)

// unscheduled are long targets that no workflow runs, with the reason.
var unscheduled = map[string]string{
	"availability-cluster": "needs a cluster; realcluster runs it",
	"screenshot":           "takes a picture",
}

// workflow is the part of a workflow of GitHub Actions that the tests read.
type workflow struct {
	Permissions map[string]string
	Concurrency map[string]any
	Jobs        map[string]job
}

type job struct {
	TimeoutMinutes any `json:"timeout-minutes"`
	Strategy       struct {
		Matrix struct{ Include []map[string]any }
	}
	Steps []jobStep
}

// jobStep is a step of a job.
type jobStep struct {
	If, Uses, Run string
	Shell         string
}

func readWorkflows(t *testing.T) map[string]workflow {
	t.Helper()
	files, err := filepath.Glob(workflows + "/*")
	if err != nil || len(files) < 2 {
		t.Fatalf("found the workflows %v: %v", files, err)
	}
	all := map[string]workflow{}
	for _, file := range files {
		var w workflow
		if err := yaml.Unmarshal([]byte(read(t, file)), &w); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		all[filepath.Base(file)] = w
	}
	return all
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

var rule = regexp.MustCompile(`(?m)^([a-z][a-z -]*):.*## (.*)$`)

// recipes returns the recipe of each documented target of the Makefile.
func recipes(text string) map[string]string {
	all := map[string]string{}
	for _, at := range rule.FindAllStringSubmatchIndex(text, -1) {
		recipe, _, _ := strings.Cut(text[at[1]:], "\n\n")
		for _, target := range strings.Fields(text[at[2]:at[3]]) {
			all[target] = recipe
		}
	}
	return all
}

// long reports whether a target is a test that takes more time than its default form: such a target sets a variable
// of the test.
func long(target, recipe string) bool {
	return regexp.MustCompile(`(QUORATE|DIFFERENTIAL|COMPATIBILITY)_[A-Z_]+=`).MatchString(recipe) ||
		strings.Contains(recipe, "prove.sh") || slices.Contains([]string{"benchmark-ratios", "fuzz"}, target)
}

var makes = regexp.MustCompile(`^(?:mkdir logs && )?make ((?:[a-z-]+|\$\{\{ matrix\.target \}\}))(?: STEPS="\$\{\{ matrix\.steps \}\}")? 2>&1 \| tee logs/output\.txt\n?$`)

// targetsOf returns the make targets that a job runs, and descriptions of the rules that the job breaks.
func targetsOf(j job) (targets, problems []string) {
	uploads := false
	if j.TimeoutMinutes == nil {
		problems = append(problems, "the job has no timeout")
	}
	for _, step := range j.Steps {
		if pinned := regexp.MustCompile(`^[a-z-]+/[a-z-]+@[0-9a-f]{40}$`); step.Uses != "" && !pinned.MatchString(step.Uses) {
			problems = append(problems, step.Uses+" is not pinned by a commit")
		}
		uploads = uploads ||
			strings.HasPrefix(step.Uses, "actions/upload-artifact@") && strings.Contains(step.If, "failure()")
		if step.Run == "" {
			continue
		}
		match := makes.FindStringSubmatch(step.Run)
		switch {
		case match == nil || step.Shell != "bash": // without shell, bash ignores the exit status of make
			problems = append(problems, "a step is no call of make with its output in logs: "+step.Run)
		case strings.HasPrefix(match[1], "$"):
			for _, values := range j.Strategy.Matrix.Include {
				target, _ := values["target"].(string)
				targets = append(targets, target)
			}
		default:
			targets = append(targets, match[1])
		}
	}
	if !uploads {
		problems = append(problems, "the job uploads no logs when it fails")
	}
	return targets, problems
}

func TestWorkflows(t *testing.T) {
	recipes := recipes(read(t, makefile))
	made := map[string]bool{}
	limits := map[string]float64{}
	for name, w := range readWorkflows(t) {
		if !maps.Equal(w.Permissions, map[string]string{"contents": "read"}) || len(w.Concurrency) == 0 {
			t.Errorf("%s: permissions %v, concurrency %v", name, w.Permissions, w.Concurrency)
		}
		for title, j := range w.Jobs {
			targets, problems := targetsOf(j)
			for _, problem := range problems {
				t.Errorf("%s, job %s: %s", name, title, problem)
			}
			for _, values := range j.Strategy.Matrix.Include {
				target, _ := values["target"].(string)
				limits[target], _ = values["minutes"].(float64)
			}
			for _, target := range targets {
				made[target] = true
				if _, ok := recipes[target]; !ok {
					t.Errorf("%s, job %s: the Makefile has no target %q", name, title, target)
				}
			}
		}
	}
	described := read(t, contributing)
	for target, recipe := range recipes {
		if !long(target, recipe) || unscheduled[target] != "" {
			continue
		}
		if !made[target] {
			t.Errorf("no workflow makes %s", target)
		}
		match := regexp.MustCompile("(?m)^\\| `make " + target +
			"` \\| [^|]+ \\| (\\d+) (minutes|hour) \\|$").FindStringSubmatch(described)
		if match == nil {
			t.Errorf("%s has no line about %s", contributing, target)
			continue
		}
		estimate, _ := strconv.ParseFloat(match[1], 64)
		if match[2] == "hour" {
			estimate *= 60
		}
		if limits[target] < 2*estimate {
			t.Errorf("%s: estimated are %.0f minutes, and the job is cancelled after %.0f; want twice the estimate",
				target, estimate, limits[target])
		}
	}
	for target := range unscheduled {
		if _, ok := recipes[target]; !ok {
			t.Errorf("unscheduled: the Makefile has no target %s", target)
		}
	}
}

// TestContinuousIntegrationHasAllSteps compares the steps of ci.yml with those that .ci/run runs by default.
func TestContinuousIntegrationHasAllSteps(t *testing.T) {
	match := regexp.MustCompile(`(?m)^\[ \$# -gt 0 \] \|\| set -- (.*)$`).FindStringSubmatch(read(t, continuous))
	if match == nil {
		t.Fatalf("%s has no default steps", continuous)
	}
	want := strings.Fields(match[1])
	var got []string
	for _, values := range readWorkflows(t)["ci.yml"].Jobs["run"].Strategy.Matrix.Include {
		steps, _ := values["steps"].(string)
		got = append(got, strings.Fields(steps)...)
	}
	if !slices.Equal(want, got) {
		t.Errorf("ci.yml runs the steps %v, %s %v", got, continuous, want)
	}
}

func TestTargetsOfFindsProblems(t *testing.T) {
	checkout := jobStep{Uses: "actions/checkout@3d3c42e5aac5ba805825da76410c181273ba90b1"}
	upload := jobStep{Uses: "actions/upload-artifact@bbbca2ddaa5d8feaa63e36b76fdaad77386f024f", If: "failure()"}
	run := jobStep{Run: "make fuzz 2>&1 | tee logs/output.txt", Shell: "bash"}
	if targets, problems := targetsOf(
		job{TimeoutMinutes: 1, Steps: []jobStep{checkout, run, upload}},
	); len(problems) != 0 || !slices.Equal(targets, []string{"fuzz"}) {
		t.Errorf("targets %v, problems %v", targets, problems)
	}
	for name, wrong := range map[string]job{
		"no timeout":    {Steps: []jobStep{checkout, run, upload}},
		"a tag":         {TimeoutMinutes: 1, Steps: []jobStep{{Uses: "actions/checkout@v4"}, run, upload}},
		"no upload":     {TimeoutMinutes: 1, Steps: []jobStep{checkout, run}},
		"a command":     {TimeoutMinutes: 1, Steps: []jobStep{checkout, {Run: "go test ./...", Shell: "bash"}, upload}},
		"no pipefail":   {TimeoutMinutes: 1, Steps: []jobStep{checkout, {Run: run.Run}, upload}},
		"upload always": {TimeoutMinutes: 1, Steps: []jobStep{checkout, run, {Uses: upload.Uses}}},
	} {
		if _, problems := targetsOf(wrong); len(problems) != 1 {
			t.Errorf("%s: problems %v", name, problems)
		}
	}
}
