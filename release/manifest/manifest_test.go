package manifest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"quorate.dev/apiserver/config"
)

// TestTagNamesKubernetes checks that a tag has the version of Kubernetes that API servers report.
func TestTagNamesKubernetes(t *testing.T) {
	want := "0.3.0-k8s" + config.KubernetesMajor + "." + config.KubernetesMinor + "." + config.KubernetesPatch
	if got, err := Tag("../..", "0.3.0"); err != nil || got != want {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}

// TestVersionsInFiles checks files that repeat the version of Kubernetes, and are not generated.
func TestVersionsInFiles(t *testing.T) {
	version, err := Kubernetes("../..")
	if err != nil {
		t.Fatal(err)
	}
	for file, want := range map[string]string{
		"Dockerfile":                  "\nLABEL dev.quorate.kubernetes.version=" + version + "\n",
		"config/samples/workers.yaml": "/kube-scheduler:v" + version + "\n",
	} {
		content, err := os.ReadFile(filepath.Join("../..", file))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(content), want) {
			t.Errorf("%s lacks %q", file, want)
		}
	}
}

// TestKubernetesIsRequired checks that a go.mod without Kubernetes, or a missing one, is an error.
func TestKubernetesIsRequired(t *testing.T) {
	root := t.TempDir()
	if got, err := Kubernetes(root); err == nil {
		t.Errorf("without a go.mod: %q", got)
	}
	for text, want := range map[string]string{
		"module a\n\nrequire k8s.io/api v0.1.0\n": "", "require (\n\tk8s.io/kubernetes v1.2.3-rc.1\n)\n": "1.2.3-rc.1",
	} {
		if err := os.WriteFile(filepath.Join(root, "go.mod"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := Kubernetes(root); got != want || (err == nil) != (want != "") {
			t.Errorf("%q: got %q, %v", text, got, err)
		}
	}
}
