package upstream

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"quorate.dev/apiserver/config"
)

// TestFormerMinorsPrecede checks that a move to the next minor version of Kubernetes also changes FormerMinors.
func TestFormerMinorsPrecede(t *testing.T) {
	present, err := strconv.Atoi(config.KubernetesMinor)
	if err != nil {
		t.Fatal(err)
	}
	for i, release := range FormerMinors() {
		if prefix := "v1." + strconv.Itoa(present-1-i) + "."; !strings.HasPrefix(release, prefix) {
			t.Errorf("release %d is %s, want %sN", i, release, prefix)
		}
	}
}

// TestProgramsOfReleases checks which prebuilt program a release selects.
func TestProgramsOfReleases(t *testing.T) {
	directory := t.TempDir()
	t.Setenv(Prebuilt, directory)
	for _, name := range []string{"kube-apiserver", "kube-apiserver-v1.36.3"} {
		if err := os.WriteFile(filepath.Join(directory, name), nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	for release, want := range map[string]string{"": "kube-apiserver", "v1.36.3": "kube-apiserver-v1.36.3"} {
		got, err := BinaryOf(t.Context(), "kube-apiserver", release)
		if err != nil || got != filepath.Join(directory, want) {
			t.Errorf("release %q: %s, %v", release, got, err)
		}
	}
}

// TestModuleIsWrittenOnce checks that createModule keeps an existing module, because the go.sum of the module has the
// checksums of all dependencies of earlier builds. It also checks that createModule writes no module for a version that
// does not exist.
func TestModuleIsWrittenOnce(t *testing.T) {
	directory := t.TempDir()
	file := filepath.Join(directory, "go.mod")
	if err := os.WriteFile(file, []byte("module kept\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := createModule(t.Context(), directory, "v1.36.3"); err != nil {
		t.Error(err)
	}
	if text, err := os.ReadFile(file); err != nil || string(text) != "module kept\n" {
		t.Errorf("the module is %q, %v", text, err)
	}
	if err := createModule(t.Context(), t.TempDir(), "1.36"); err == nil {
		t.Error("a version without a patch was accepted")
	}
}
