package endtoend

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// runbookSections are the headings of each runbook.
var runbookSections = []string{"Meaning", "Impact", "Diagnosis", "Remedy"}

// diagnosis returns the commands in the section Diagnosis of a runbook.
func diagnosis(t *testing.T, file string) (commands []string) {
	t.Helper()
	var headings []string
	for _, section := range strings.Split(string(must(os.ReadFile(file))(t)), "\n## ")[1:] {
		heading, body, _ := strings.Cut(section, "\n")
		headings = append(headings, heading)
		if heading != "Diagnosis" {
			continue
		}
		for line := range strings.Lines(strings.ReplaceAll(body, "\\\n", "")) {
			if command, ok := strings.CutPrefix(line, "    "); ok {
				commands = append(commands, strings.TrimSpace(command))
			}
		}
	}
	if !slices.Equal(headings, runbookSections) {
		t.Errorf("%s has the sections %q, want %q", file, headings, runbookSections)
	}
	if len(commands) == 0 {
		t.Errorf("%s has no command for the diagnosis", file)
	}
	return commands
}

// needsFault matches commands that have results only during a fault. Only the part of such a command before the pipe is
// executed.
var needsFault = regexp.MustCompile(`logs|code="5|rejected|quorate-metrics-reader`)

// runbookScript returns a script with the diagnosis commands of all runbooks, for the cluster demo. The operator of a
// sandbox is not a Deployment.
func runbookScript(t *testing.T, kubeconfig string) string {
	t.Helper()
	values := strings.NewReplacer("CLUSTER.kubeconfig", kubeconfig, "CLUSTER", "demo", "NAMESPACE", "default",
		"MEMBER", "demo-0", "POD", "demo-0", "CLAIM", "demo-0", "KIND NAME", "asc demo", "SECRET", "demo-serving",
		"BACKUP", "example", "SCHEDULE", "example")
	var script []string
	for _, file := range must(filepath.Glob("../../docs/runbooks/*.md"))(t) {
		for _, command := range diagnosis(t, file) {
			if strings.Contains(command, "-n quorate-system") {
				continue
			}
			if needsFault.MatchString(command) {
				command, _, _ = strings.Cut(command, " | ")
			}
			script = append(script, values.Replace(command)+" > /dev/null\n")
		}
	}
	slices.Sort(script) // many runbooks have the same commands
	return strings.Join(slices.Compact(script), "")
}

// testRunbooks executes the diagnosis commands of all runbooks.
func (s *sandbox) testRunbooks(t *testing.T, r *reader) {
	s.apply(s.management, fmt.Sprintf(schedule, "example", "0 0 1 1 *", "true", 60)+`---
apiVersion: quorate.dev/v1alpha1
kind: ApiServerBackup
metadata: {name: example, namespace: default}
spec: {clusterName: demo, destination: {volume: {claimName: none}}}
---
apiVersion: quorate.dev/v1alpha1
kind: ApiServerKubeconfig
metadata: {name: demo-metrics, namespace: default}
spec: {clusterRef: {name: demo}, user: prometheus, groups: [system:monitoring]}
`)
	r.execute(t, t.TempDir(), runbookScript(t, s.demo))
}
