package release

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	networkingv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/pod-security-admission/api"
	"k8s.io/pod-security-admission/policy"

	"quorate.dev/release/manifest"
)

// installs returns the objects of each way to install. The Deployment of the bundle is the one that OLM creates from
// the ClusterServiceVersion.
func installs(t *testing.T) map[string][]manifest.Object {
	t.Helper()
	all := map[string][]manifest.Object{}
	for name, file := range map[string]string{
		"manifests": "manifests/install.yaml", "namespaced": "manifests/install-namespaced.yaml",
	} {
		all[name] = readObjects(t, filepath.Join(root, file))
	}
	command := exec.CommandContext(t.Context(), "go", "tool", "-modfile=tools/helm/go.mod", "helm", "template",
		"quorate", "charts/quorate")
	command.Dir = root
	output, err := command.Output()
	if err != nil {
		t.Fatal(err)
	}
	rendered := filepath.Join(t.TempDir(), "chart.yaml")
	if err := os.WriteFile(rendered, output, 0o600); err != nil {
		t.Fatal(err)
	}
	all["chart"] = readObjects(t, rendered)
	files, err := filepath.Glob(root + "/bundle/manifests/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		all["bundle"] = append(all["bundle"], readObjects(t, file)...)
	}
	all["bundle"] = append(all["bundle"], bundleDeployment(t, all["bundle"]))
	return all
}

func readObjects(t *testing.T, file string) []manifest.Object {
	t.Helper()
	objects, err := manifest.Read(file)
	if err != nil {
		t.Fatal(err)
	}
	return objects
}

func bundleDeployment(t *testing.T, objects []manifest.Object) manifest.Object {
	t.Helper()
	versions := manifest.OfKind(objects, "ClusterServiceVersion")
	deployments, _, err := unstructured.NestedSlice(versions[0].Object, "spec", "install", "spec", "deployments")
	if err != nil || len(deployments) != 1 {
		t.Fatalf("%d deployments: %v", len(deployments), err)
	}
	deployment := deployments[0].(map[string]any)
	return &unstructured.Unstructured{Object: map[string]any{
		"kind": "Deployment", "metadata": map[string]any{"name": deployment["name"]}, "spec": deployment["spec"],
	}}
}

// find returns the object of a kind whose name is quorate-operator with an optional suffix, converted to T.
func find[T any](t *testing.T, objects []manifest.Object, kind, suffix string) *T {
	t.Helper()
	object, err := manifest.Find(objects, kind, "quorate-operator"+suffix)
	if err != nil {
		t.Fatal(err)
	}
	typed := new(T)
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(object.Object, typed); err != nil {
		t.Fatal(err)
	}
	return typed
}

// TestOperatorOfInstalls checks in each way to install that two replicas with leader election run, with probes,
// requests, a disruption budget and a NetworkPolicy, that their pods are restricted, and that a Service serves the
// metrics.
func TestOperatorOfInstalls(t *testing.T) {
	for name, objects := range installs(t) {
		t.Run(name, func(t *testing.T) {
			deployment := find[appsv1.Deployment](t, objects, "Deployment", "")
			checkDeployment(t, deployment)
			pod := labels.Set(deployment.Spec.Template.Labels)
			budget := find[policyv1.PodDisruptionBudget](t, objects, "PodDisruptionBudget", "")
			if budget.Spec.MaxUnavailable.IntValue() != 1 ||
				!labels.SelectorFromSet(budget.Spec.Selector.MatchLabels).Matches(pod) {
				t.Errorf("disruption budget: %+v", budget.Spec)
			}
			network := find[networkingv1.NetworkPolicy](t, objects, "NetworkPolicy", "")
			if len(network.Spec.Ingress) != 1 || len(network.Spec.Ingress[0].Ports) != 1 ||
				network.Spec.Ingress[0].Ports[0].Port.IntValue() != 8443 &&
					network.Spec.Ingress[0].Ports[0].Port.String() != "metrics" ||
				!labels.SelectorFromSet(network.Spec.PodSelector.MatchLabels).Matches(pod) {
				t.Errorf("network policy: %+v", network.Spec)
			}
			if service, err := manifest.Find(objects, "Service", "quorate-operator-metrics"); err != nil {
				t.Error(err)
			} else if selector, _, _ := unstructured.NestedStringMap(service.Object, "spec",
				"selector"); !labels.SelectorFromSet(selector).Matches(pod) {
				t.Errorf("the Service selects %v", selector)
			}
			if namespaces := manifest.OfKind(objects, "Namespace"); len(namespaces) == 1 &&
				namespaces[0].GetLabels()[api.EnforceLevelLabel] != string(api.LevelRestricted) {
				t.Errorf("the namespace has the labels %v", namespaces[0].GetLabels())
			}
		})
	}
}

// checkDeployment checks the operator's Deployment. Its pods are checked by the evaluator of the API server's admission
// plugin.
func checkDeployment(t *testing.T, deployment *appsv1.Deployment) {
	t.Helper()
	pod := deployment.Spec.Template
	container := pod.Spec.Containers[0]
	if *deployment.Spec.Replicas != 2 || strings.Contains(strings.Join(container.Args, " "), "leader-elect") {
		t.Errorf("%d replicas with the arguments %q", *deployment.Spec.Replicas, container.Args)
	}
	if container.LivenessProbe == nil || container.ReadinessProbe == nil {
		t.Error("the container has no probes")
	}
	if container.Resources.Requests.Cpu().IsZero() || container.Resources.Requests.Memory().IsZero() ||
		container.Resources.Limits.Memory().IsZero() {
		t.Errorf("resources: %+v", container.Resources)
	}
	evaluator, err := policy.NewEvaluator(policy.DefaultChecks(), nil)
	if err != nil {
		t.Fatal(err)
	}
	restricted := api.LevelVersion{Level: api.LevelRestricted, Version: api.LatestVersion()}
	for _, result := range evaluator.EvaluatePod(restricted, &pod.ObjectMeta, &pod.Spec) {
		if !result.Allowed {
			t.Errorf("the pods are not restricted: %s: %s", result.ForbiddenReason, result.ForbiddenDetail)
		}
	}
	if security := container.SecurityContext; security.ReadOnlyRootFilesystem == nil || !*security.ReadOnlyRootFilesystem {
		t.Error("the root file system is writable")
	}
}
