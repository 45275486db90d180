package controlplane

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

// checkedPolicies are specs of policies with what the type checker finds.
var checkedPolicies = map[string]string{
	"sound":      `{"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":["apps"],"apiVersions":["v1"],"resources":["deployments"]}]},"validations":[{"expression":"object.spec.replicas <= 3"}]}`,
	"field":      `{"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":["apps","batch"],"apiVersions":["v1"],"resources":["deployments","jobs"]}]},"validations":[{"expression":"object.spec.replicas <= 3","messageExpression":"string(object.spec.nonsense)"},{"expression":"object.metadata.foo == 'x'"}]}`,
	"type":       `{"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["pods","services","configmaps"]}]},"variables":[{"name":"v","expression":"object.metadata.name.nothing"}],"validations":[{"expression":"variables.v == 'a'"},{"expression":"object.spec.containers[0].name > 1"},{"expression":"authorizer.group('').resource('pods').check('get').allowed()"}]}`,
	"parameters": `{"paramKind":{"apiVersion":"v1","kind":"ConfigMap"},"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["secrets"]}]},"validations":[{"expression":"params.nothing == 'a' && params.data.x == 3"},{"expression":"namespaceObject.metadata.name == oldObject.nothing"}]}`,
	"custom":     `{"paramKind":{"apiVersion":"check.example.com/v1","kind":"Checked"},"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":["check.example.com"],"apiVersions":["v1"],"resources":["checked"]}]},"validations":[{"expression":"object.spec.color == params.spec.size"},{"expression":"object.spec.nothing == 'a'"}]}`,
	"wildcard":   `{"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":["*"],"apiVersions":["*"],"resources":["*"]}]},"validations":[{"expression":"object.nothing == 'a'"}]}`,
	"unserved":   `{"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":["none.example.com"],"apiVersions":["v1"],"resources":["none"]}]},"validations":[{"expression":"object.nothing == 'a'"}]}`,
	"quantities": `{"matchConstraints":{"resourceRules":[{"operations":["CREATE"],"apiGroups":[""],"apiVersions":["v1"],"resources":["pods","persistentvolumeclaims"]}]},"validations":[{"expression":"object.spec.containers.all(c, quantity(c.resources.limits['cpu']).isLessThan(quantity(c.resources.requests.cpu)))"},{"expression":"object.spec.containers[0].ports[0].hostPort == 'a' || object.metadata.creationTimestamp > 1"},{"expression":"object.spec.containers[0].livenessProbe.httpGet.port == true"}]}`,
}

const checkedKind = `{"metadata":{"name":"checked.check.example.com"},"spec":{"group":"check.example.com","scope":"Namespaced","names":{"plural":"checked","kind":"Checked"},"versions":[{"name":"v1","served":true,"storage":true,"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"color":{"type":"string"},"size":{"type":"integer"}}}}}}}]}}`

// typeName is the name of a type in the checker's texts, which has the nanoseconds of its creation.
var typeName = regexp.MustCompile(`([A-Z][A-Za-z]+)[0-9]+`)

// TestTypeChecking compares the status of ValidatingAdmissionPolicies that kube-controller-manager writes with that of
// this server's controller.
func TestTypeChecking(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	var theirs, ours map[string]string
	t.Run("on", func(t *testing.T) {
		t.Run("kube-apiserver", func(t *testing.T) {
			t.Parallel()
			theirs = checkPolicies(t, "kube-apiserver")
		})
		t.Run("quorate", func(t *testing.T) {
			t.Parallel()
			ours = checkPolicies(t, "quorate", "--controllers=validatingadmissionpolicy-status")
		})
	})
	for _, name := range slices.Sorted(maps.Keys(checkedPolicies)) {
		if difference := cmp.Diff(theirs[name], ours[name]); difference != "" || ours[name] == "" {
			t.Errorf("%s (- kube-controller-manager, + ours)\n%s", name, difference)
		}
	}
}

// checkPolicies creates the policies on a server, waits for the controller that checks the types of their expressions,
// and returns the warnings that the controller has written to the status of each policy. kube-apiserver has no such
// controller: there, the test runs kube-controller-manager, which has it.
func checkPolicies(t *testing.T, name string, arguments ...string) map[string]string {
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	server, err := servers[name](t, upstream.Options{Directory: directory, PKI: pki, Arguments: arguments})
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	createCheckedKind(t, server.Admin)
	if len(arguments) == 0 {
		manager, err := upstream.Client{
			Directory: directory, PKI: pki, Server: server.Admin, Arguments: []string{
				"--controllers=validatingadmissionpolicy-status-controller",
			},
		}.StartControllerManager(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		manager.StopAfter(t)
	}
	client, err := kubernetes.NewForConfig(server.Admin)
	if err != nil {
		t.Fatal(err)
	}
	statuses := map[string]string{}
	for name, spec := range checkedPolicies {
		policy := &admissionregistrationv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if err := json.Unmarshal([]byte(spec), &policy.Spec); err != nil {
			t.Fatal(err)
		}
		if _, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(
			t.Context(), policy, metav1.CreateOptions{},
		); err != nil {
			t.Fatal(err)
		}
		statuses[name] = awaitChecked(t, client, name)
	}
	return statuses
}

// createCheckedKind returns when the custom kind is in OpenAPI.
func createCheckedKind(t *testing.T, config *rest.Config) {
	t.Helper()
	client, err := clientset.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	definition := &apiextensionsv1.CustomResourceDefinition{}
	if err := json.Unmarshal([]byte(checkedKind), definition); err != nil {
		t.Fatal(err)
	}
	if _, err := client.ApiextensionsV1().CustomResourceDefinitions().Create(
		t.Context(), definition, metav1.CreateOptions{},
	); err != nil {
		t.Fatal(err)
	}
	published := func(context.Context) (bool, error) {
		paths, err := client.Discovery().OpenAPIV3().Paths()
		return err == nil && paths["apis/check.example.com/v1"] != nil, nil
	}
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, published); err != nil {
		t.Fatalf("the custom kind is not in OpenAPI: %v", err)
	}
}

// awaitChecked returns the status of a policy and its managed fields, when the controller has written them.
func awaitChecked(t *testing.T, client kubernetes.Interface, name string) (text string) {
	t.Helper()
	checked := func(ctx context.Context) (bool, error) {
		policy, err := client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(ctx, name, metav1.GetOptions{})
		if err != nil || policy.Status.ObservedGeneration != policy.Generation {
			return false, err
		}
		status, err := json.MarshalIndent(policy.Status, "", " ")
		text = typeName.ReplaceAllString(string(status), "$1")
		for _, entry := range policy.ManagedFields {
			if entry.Subresource != "" {
				text += fmt.Sprintf("\n%s %s %s %s", entry.Manager, entry.Operation, entry.Subresource, entry.FieldsV1.Raw)
			}
		}
		return true, err
	}
	if err := wait.PollUntilContextTimeout(t.Context(), 50*time.Millisecond, time.Minute, true, checked); err != nil {
		t.Fatalf("the policy %s is not checked: %v", name, err)
	}
	return text
}
