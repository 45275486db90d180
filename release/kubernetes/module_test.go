package kubernetes

import (
	"strings"
	"testing"
)

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

// TestCreateRefusesVersions checks that Create names a version that it does not accept, and downloads nothing.
func TestCreateRefusesVersions(t *testing.T) {
	for _, version := range []string{"", "1.36.3", "v1.36", "v1.36.3 -x"} {
		source, err := Module{Directory: t.TempDir()}.Create(t.Context(), version)
		if err == nil || !strings.Contains(err.Error(), "is not a version such as") {
			t.Errorf("%q: source %q, error %v", version, source, err)
		}
	}
}

// TestRunReportsTheCause checks that the error of a failed command contains the last lines of its standard error.
func TestRunReportsTheCause(t *testing.T) {
	m := Module{Directory: t.TempDir()}
	if _, err := m.Run(t.Context(), "go", "mod", "graph"); err == nil || !strings.Contains(err.Error(), "go.mod") {
		t.Errorf("without a go.mod: %v", err)
	}
	if output, err := m.Run(t.Context(), "go", "env", "GOFLAGS"); err != nil || string(output) != "-mod=mod\n" {
		t.Errorf("go env GOFLAGS: %q, %v", output, err)
	}
	if got := lastLines("a\nb\nc\n", 2); got != "b\nc" {
		t.Errorf("the last two lines are %q", got)
	}
}
