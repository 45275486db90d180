package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"quorate.dev/release/manifest"
	"quorate.dev/test/upstream"
)

const root = "../.."

// newChart generates the chart.
func newChart(t *testing.T) string {
	t.Helper()
	directory := filepath.Join(t.TempDir(), "quorate")
	if err := run(root, directory, ""); err != nil {
		t.Fatal(err)
	}
	return directory
}

// helm runs Helm and returns its output and whether it succeeded.
func helm(t *testing.T, arguments ...string) (string, bool) {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go",
		append([]string{"tool", "-modfile=tools/helm/go.mod", "helm"}, arguments...)...)
	command.Dir = root
	output, err := command.CombinedOutput()
	return string(output), err == nil
}

// render returns the objects that the chart renders in the namespace quorate-system.
func render(t *testing.T, chart string, arguments ...string) map[string]manifest.Object {
	t.Helper()
	output, ok := helm(t, append([]string{"template", "quorate", chart, "--namespace=quorate-system"}, arguments...)...)
	if !ok {
		t.Fatal(output)
	}
	file := filepath.Join(t.TempDir(), "rendered.yaml")
	if err := os.WriteFile(file, []byte(output), 0o600); err != nil {
		t.Fatal(err)
	}
	return read(t, file)
}

func read(t *testing.T, file string) map[string]manifest.Object {
	t.Helper()
	objects, err := manifest.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	named := map[string]manifest.Object{}
	for _, object := range objects {
		named[object.GetKind()+" "+object.GetNamespace()+"/"+object.GetName()] = object
	}
	return named
}

func TestLint(t *testing.T) {
	if output, ok := helm(t, "lint", "--strict", newChart(t)); !ok {
		t.Error(output)
	}
}

// TestRenderedLikeManifests compares the chart with the manifests that it is generated from. The annotation that keeps
// CustomResourceDefinitions is the only difference.
func TestRenderedLikeManifests(t *testing.T) {
	rendered := render(t, newChart(t), "--set=image.tag=latest,extension.enabled=true,monitoring.enabled=true")
	want := read(t, root+"/manifests/install.yaml")
	delete(want, "Namespace /quorate-system")
	for _, file := range []string{"extension", "monitoring"} {
		for name, object := range read(t, root+"/manifests/"+file+".yaml") {
			want[name] = object
		}
	}
	for name, object := range want {
		got := rendered[name]
		if got == nil {
			t.Errorf("%s is missing", name)
			continue
		}
		if object.GetKind() == "CustomResourceDefinition" {
			annotations := object.GetAnnotations()
			annotations["helm.sh/resource-policy"] = "keep"
			object.SetAnnotations(annotations)
		}
		if !reflect.DeepEqual(got.Object, object.Object) {
			t.Errorf("%s differs:\n%v\nwant\n%v", name, got.Object, object.Object)
		}
	}
	if len(rendered) != len(want) {
		t.Errorf("%d objects, want %d", len(rendered), len(want))
	}
}

func TestValues(t *testing.T) {
	chart := newChart(t)
	rendered := render(t, chart,
		"--set=namespaces={a,b},crds.enabled=false,userRoles.enabled=false,networkPolicy.enabled=false,disruptionBudget.enabled=false,deletionProtection.enabled=false,extraArgs={--v=1},image.pullSecrets[0].name=registry,priorityClassName=high,"+
			"nodeSelector.disk=ssd,tolerations[0].key=control-plane,podAnnotations.team=a")
	for _, name := range []string{"Role a/quorate-operator", "RoleBinding b/quorate-operator"} {
		if rendered[name] == nil {
			t.Errorf("%s is missing", name)
		}
	}
	for name := range rendered {
		if strings.HasPrefix(name, "CustomResourceDefinition") || strings.Contains(name, "quorate-edit") ||
			strings.HasPrefix(name, "NetworkPolicy") || strings.HasPrefix(name, "ValidatingAdmissionPolicy") ||
			name == "ClusterRole /quorate-operator" {
			t.Errorf("%s is rendered", name)
		}
	}
	deployment, err := manifest.Encode(rendered["Deployment quorate-system/quorate-operator"])
	if err != nil {
		t.Fatal(err)
	}
	version, err := manifest.Version(root)
	if err != nil {
		t.Fatal(err)
	}
	tag, err := manifest.Tag(root, version)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"--namespaces=a,b", "--v=1", "priorityClassName: high", "disk: ssd", "key: control-plane", "team: a",
		"image: quorate:v" + tag,
	} {
		if !strings.Contains(string(deployment), want) {
			t.Errorf("the Deployment has no %q:\n%s", want, deployment)
		}
	}
	account, err := manifest.Encode(rendered["ServiceAccount quorate-system/quorate-operator"])
	if err != nil || !strings.Contains(string(account), "imagePullSecrets:\n- name: registry") {
		t.Errorf("%v\n%s", err, account)
	}
}

// TestMonitoring checks the labels by which Prometheus and Grafana select objects, and that none is rendered by
// default.
func TestMonitoring(t *testing.T) {
	chart := newChart(t)
	names := map[string]string{
		"ServiceMonitor quorate-system/quorate-operator": "release", "PrometheusRule quorate-system/quorate": "release",
		"ConfigMap quorate-system/quorate-dashboards": "dashboards",
		"ClusterRoleBinding /quorate-metrics-reader":  "app.kubernetes.io/name",
	}
	rendered := render(t, chart, "--set=monitoring.enabled=true,monitoring.labels.release=prometheus,"+
		"monitoring.serviceAccount.namespace=monitoring,monitoring.serviceAccount.name=prometheus",
		"--set-string=monitoring.dashboards.labels.dashboards=1")
	byDefault := render(t, chart)
	for name, label := range names {
		if rendered[name] == nil || rendered[name].GetLabels()[label] == "" {
			t.Errorf("%s with the label %s: %v", name, label, rendered[name])
		}
		if byDefault[name] != nil {
			t.Errorf("%s is rendered by default", name)
		}
	}
}

func TestInvalidValuesAreRefused(t *testing.T) {
	upstream.NeedsTime(t)
	chart := newChart(t)
	for _, values := range []string{
		"replica=3", "replicas=-1", "image.pullPolicy=Sometimes", "namespaces={Team_A}", "extraArgs={v=1}",
		"monitoring.serviceAccount.name=prometheus",
	} {
		if output, ok := helm(t, "template", "quorate", chart, "--set="+values); ok || !strings.Contains(output, "values") {
			t.Errorf("%s: %s", values, output)
		}
	}
}
