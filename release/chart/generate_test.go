package main

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"quorate.dev/release/manifest"
)

// copyManifests copies the manifests and writes versions to a new directory, in which the test may change them.
func copyManifests(t *testing.T) string {
	t.Helper()
	directory := t.TempDir()
	if err := os.CopyFS(filepath.Join(directory, "manifests"), os.DirFS(filepath.Join(root, "manifests"))); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"VERSION": "1.2.3\n", "go.mod": "require (\n\tk8s.io/kubernetes v1.37.2\n)\n",
	} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

// TestConditionsNameObjects checks that the manifests have each object that is optional in the chart. After an object
// got another name, it would always be rendered.
func TestConditionsNameObjects(t *testing.T) {
	objects, err := manifest.Read(filepath.Join(root, "manifests", "install.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	kinds := map[string]bool{}
	for _, object := range objects {
		kinds[object.GetKind()] = true
		if object.GetKind() == "CustomResourceDefinition" && conditions["CustomResourceDefinition "+object.GetName()] == "" {
			t.Errorf("%s is rendered without crds.enabled", object.GetName())
		}
	}
	for _, key := range slices.Sorted(maps.Keys(conditions)) {
		kind, name, _ := strings.Cut(key, " ")
		if _, err := manifest.Find(objects, kind, name); err != nil {
			t.Error(err)
		}
	}
	for _, kind := range slices.Sorted(maps.Keys(substitutions)) {
		if !kinds[kind] && kind != "ServiceMonitor" {
			t.Errorf("the manifests have no %s to substitute values in", kind)
		}
	}
}

// TestVersion checks that the chart has the version in VERSION, or another one that a release passes, and that the
// version of the application also names Kubernetes.
func TestVersion(t *testing.T) {
	manifests := copyManifests(t)
	for version, want := range map[string]string{"": "1.2.3", "2.0.0-rc.1": "2.0.0-rc.1"} {
		chart := filepath.Join(t.TempDir(), "quorate")
		if err := run(manifests, chart, version); err != nil {
			t.Fatal(err)
		}
		text, err := os.ReadFile(filepath.Join(chart, "Chart.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), "\nversion: "+want+"\nappVersion: "+want+"-k8s1.37.2\n") {
			t.Errorf("got %s, want version %s", text, want)
		}
	}
}

// TestChangedManifests checks that a change of the manifests to which the chart does not fit is an error, and does not
// lead to a chart that ignores values.
func TestChangedManifests(t *testing.T) {
	for name, c := range map[string]struct {
		file, old, text string
		want            string
	}{
		"other number of replicas": {
			"install.yaml", "  replicas: 2\n", "  replicas: 3\n",
			`Deployment quorate-operator contains "  replicas: 2\n" 0 times`,
		},
		"second container with the image": {
			"install.yaml", "        image: quorate:latest\n",
			"        image: quorate:latest\n      - args: [second]\n        image: quorate:latest\n",
			`Deployment quorate-operator contains "        image: quorate:latest\n" 2 times`,
		},
		"delimiter of templates": {
			"extension.yaml", "kind: ClusterRole\n", "kind: ClusterRole\nx: '{{ .Values }}'\n",
			"quorate-extension contains the delimiter of templates",
		},
		"delimiter in the ServiceMonitor": {
			"monitoring.yaml", "kind: ServiceMonitor\n", "kind: ServiceMonitor\nx: '{{ .Values }}'\n",
			"quorate-operator contains the delimiter of templates",
		},
		"no YAML": {"install.yaml", "", "{\n---\n", "install.yaml: "},
	} {
		manifests := copyManifests(t)
		file := filepath.Join(manifests, "manifests", c.file)
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		changed := strings.Replace(string(text), c.old, c.text, 1)
		if changed == string(text) {
			t.Errorf("%s: %s has no %q", name, c.file, c.old)
		}
		if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
			t.Fatal(err)
		}
		chart := filepath.Join(manifests, "charts")
		if err := run(manifests, chart, ""); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
		if _, err := os.Stat(chart); !os.IsNotExist(err) {
			t.Errorf("%s: a chart was written: %v", name, err)
		}
	}
}

// TestMissingManifests checks that the error names the file, for example with another -root.
func TestMissingManifests(t *testing.T) {
	for _, file := range []string{
		"VERSION", "manifests/install.yaml", "manifests/extension.yaml", "manifests/monitoring.yaml",
	} {
		manifests := copyManifests(t)
		if err := os.Remove(filepath.Join(manifests, file)); err != nil {
			t.Fatal(err)
		}
		err := run(manifests, filepath.Join(manifests, "charts"), "")
		if err == nil || !strings.Contains(err.Error(), filepath.Base(file)) {
			t.Errorf("without %s: got %v", file, err)
		}
	}
}
