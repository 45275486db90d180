package extension

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/yaml"

	"quorate.dev/extension/move"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/test/upstream"
)

const apiServices = `# The extension server of reports
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1.reports.example.com}
spec: {group: reports.example.com, version: v1, versionPriority: 15, service: {namespace: default, name: reports}}
---
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v2.reports.example.com}
spec: {group: reports.example.com, version: v2, versionPriority: 16, service: {namespace: default, name: reports}}
`

func write(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// TestReadAPIServices reads the file of --api-services.
func TestReadAPIServices(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, content string
		versions      []string
		err           string
	}{
		{"two versions", apiServices, []string{"v1", "v2"}, ""},
		{"nothing", "", nil, ""},
		{
			"another kind", "{apiVersion: v1, kind: Service, metadata: {name: reports}}", nil,
			"Service reports is not an APIService",
		},
		{
			"another group", strings.ReplaceAll(apiServices, "group: reports", "group: invoices"), nil,
			"is not an APIService of reports.example.com",
		},
		{"served by the host", strings.ReplaceAll(apiServices, "service:", "other:"), nil, "with a Service"},
		{"no YAML", "{", nil, "decode"},
	} {
		specs, err := readAPIServices(write(t, "apiservices.yaml", test.content), "reports.example.com")
		if (err == nil) != (test.err == "") || err != nil && !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: got the error %v, want %q", test.name, err, test.err)
			continue
		}
		if len(specs) != len(test.versions) {
			t.Errorf("%s: got %v", test.name, specs)
		}
		for _, version := range test.versions {
			if specs[version]["version"] != version {
				t.Errorf("%s: version %s has the spec %v", test.name, version, specs[version])
			}
		}
	}
	if _, err := readAPIServices(
		filepath.Join(t.TempDir(), "missing"), "reports.example.com",
	); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a missing file: %v", err)
	}
}

// TestPlanIsPrinted prints the plan of --dry-run.
func TestPlanIsPrinted(t *testing.T) {
	t.Parallel()
	plan := &move.Plan{
		Steps: []string{"Copy all objects", "Block writes"}, Lost: []string{"metadata.resourceVersion"},
		Kinds: []move.Kind{{
			Definition: "reports.example.com", Versions: []string{"v1", "v2"}, Objects: 12, Finalizers: 3, Deleting: 1,
		}},
	}
	const want = `DEFINITION            VERSIONS   OBJECTS   WITH FINALIZERS   BEING DELETED
reports.example.com   v1,v2      12        3                 1

Steps:
  Copy all objects
  Block writes

Not kept:
  metadata.resourceVersion
`
	var printed strings.Builder
	if err := printPlan(&printed, plan); err != nil || printed.String() != want {
		t.Errorf("got the error %v and\n%s\nwant\n%s", err, printed.String(), want)
	}
	plan.Problems = []string{"the host is full"}
	if err := printPlan(&printed, plan); err == nil || err.Error() != "the host is full" {
		t.Errorf("got the error %v", err)
	}
}

// fixture is a host with the ApiServerCluster default/reports in mode Extension. The kubeconfig of this cluster
// connects to the host itself, because the test moves no objects and needs no second server.
type fixture struct {
	*testing.T
	admin      *rest.Config
	kubeconfig string
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	upstream.NeedsProcesses(t)
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := upstream.StartQuorate(t.Context(), upstream.Options{Directory: directory, PKI: pki})
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	f := &fixture{T: t, admin: server.Admin, kubeconfig: filepath.Join(directory, "host.kubeconfig")}
	if err := upstream.WriteKubeconfig(f.kubeconfig, server.Admin); err != nil {
		t.Fatal(err)
	}
	f.create(schema.GroupVersionResource{
		Group: "apiextensions.k8s.io", Version: "v1", Resource: "customresourcedefinitions",
	},
		f.read("../config/crd/quorate.dev_apiserverclusters.yaml"))
	clusters := v1alpha1.GroupVersion.WithResource("apiserverclusters")
	f.create(clusters,
		`{apiVersion: quorate.dev/v1alpha1, kind: ApiServerCluster, metadata: {name: reports, namespace: default},
		spec: {mode: Extension, extension: {groups: [{name: reports.example.com, versions: [v1]}]}}}`)
	f.create(clusters,
		`{apiVersion: quorate.dev/v1alpha1, kind: ApiServerCluster, metadata: {name: tenant, namespace: default}, spec: {}}`)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "reports-admin-kubeconfig"},
		Data:       map[string][]byte{desired.KubeconfigKey: []byte(f.read(f.kubeconfig))},
	}
	if _, err := kubernetes.NewForConfigOrDie(f.admin).CoreV1().Secrets("default").Create(
		t.Context(), secret, metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *fixture) read(file string) string {
	f.Helper()
	content, err := os.ReadFile(file)
	if err != nil {
		f.Fatal(err)
	}
	return string(content)
}

// create creates an object, whose kind may not be served yet.
func (f *fixture) create(resource schema.GroupVersionResource, manifest string) {
	f.Helper()
	object := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(manifest), &object.Object); err != nil {
		f.Fatal(err)
	}
	client := dynamic.NewForConfigOrDie(f.admin).Resource(resource)
	at := dynamic.ResourceInterface(client)
	if object.GetNamespace() != "" {
		at = client.Namespace(object.GetNamespace())
	}
	err := wait.PollUntilContextTimeout(f.Context(), 20*time.Millisecond, time.Minute, true, func(
		ctx context.Context,
	) (bool, error) {
		_, err := at.Create(ctx, object, metav1.CreateOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		return err == nil, err
	})
	if err != nil {
		f.Fatalf("create %s %s: %v", object.GetKind(), object.GetName(), err)
	}
}

// TestMoveCommand runs the command with the flags of an operator. Nothing can be moved: the host has no definitions.
func TestMoveCommand(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	services := write(t, "apiservices.yaml", apiServices)
	const noDefinitions = "has no CustomResourceDefinitions of reports.example.com"
	for _, test := range []struct {
		name  string
		flags []string
		err   string
	}{
		{"no destination", []string{"--cluster=default/reports"}, `--to "" must be extension or host`},
		{"unknown destination", []string{"--to=cloud"}, `--to "cloud" must be extension or host`},
		{"no extension server", []string{"--to=host"}, "--extension-kubeconfig or --cluster is required"},
		{"incomplete name", []string{"--to=host", "--cluster=reports"}, "must be NAMESPACE/NAME"},
		{"missing cluster", []string{"--to=host", "--cluster=default/missing"}, "read ApiServerCluster default/missing"},
		{"cluster of nodes", []string{"--to=extension", "--cluster=default/tenant"}, "is not Extension"},
		{
			"cluster without kubeconfig", []string{"--to=host", "--cluster=default/tenant"},
			"read the kubeconfig of ApiServerCluster default/tenant",
		},
		{
			"missing file", []string{"--to=host", "--extension-kubeconfig=" + f.kubeconfig, "--api-services=missing"}, "missing",
		},
		{"plan", []string{"--to=extension", "--cluster=default/reports", "--dry-run"}, "the host " + noDefinitions},
		{"plan with files", []string{
			"--to=extension", "--extension-kubeconfig=" + f.kubeconfig, "--api-services=" + services, "--dry-run",
		}, "the host " + noDefinitions},
		{
			"plan back", []string{"--to=host", "--cluster=default/reports", "--dry-run"},
			"the extension server " + noDefinitions,
		},
		{"move", []string{"--to=extension", "--cluster=default/reports"}, "the host " + noDefinitions},
		{
			"abort", []string{"--abort", "--cluster=default/reports", "--extension-kubeconfig=" + f.kubeconfig},
			"no move is under way",
		},
	} {
		var out strings.Builder
		command := newCommand(&out)
		command.SetArgs(append([]string{"move", "reports.example.com", "--kubeconfig=" + f.kubeconfig}, test.flags...))
		err := command.ExecuteContext(t.Context())
		if err == nil || !strings.Contains(err.Error(), test.err) {
			t.Errorf("%s: got the error %v, want %q", test.name, err, test.err)
		}
		if planned := strings.HasPrefix(test.name, "plan"); planned != strings.Contains(out.String(), "Steps:") {
			t.Errorf("%s printed %s", test.name, out.String())
		}
	}
	if err := Run(t.Context(), []string{"move", "g", "--to=host", "--kubeconfig=missing"}); err == nil {
		t.Error("a missing kubeconfig is accepted")
	}
	f.registersByOperator()
}

// registersByOperator reads the versions that the operator registers, and the labels by which it does so.
func (f *fixture) registersByOperator() {
	f.Helper()
	options, err := (&flags{to: "extension", kubeconfig: f.kubeconfig, cluster: "default/reports"}).options(f.Context(),
		"reports.example.com")
	if err != nil {
		f.Fatal(err)
	}
	registration := options.Registration
	if len(registration.Versions) != 1 || registration.Versions[0] != "v1" ||
		registration.Labels[desired.ClusterLabel] != "reports" || options.Extension.Host != f.admin.Host {
		f.Errorf("got %+v for the server %s", registration, options.Extension.Host)
	}
}
