// Package aggregation runs k8s.io/sample-apiserver as an extension API server of kube-apiserver and of our API server,
// and compares what kubectl and client-go see.
package aggregation

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"quorate.dev/test/upstream"
)

// stepTimeout is the timeout of each step.
const stepTimeout = time.Minute

// host is an API server that serves the sample through aggregation.
type host struct {
	name, kubectl, kubeconfig string
	admin                     *rest.Config
}

// step is one command of kubectl.
type step struct {
	arguments string // repeat the command until its output contains this text
	input     string
	until     string // repeats the command until its output contains the text
}

// flunder is an object of the sample.
const flunder = `{"apiVersion":"wardle.example.com/v1alpha1","kind":"Flunder","metadata":{"name":"NAME","namespace":"NS","labels":{"a":"b"}},` +
	`"spec":{"reference":"other"}}`

func named(name string) string { return strings.ReplaceAll(flunder, "NAME", name) }

var steps = []step{
	{arguments: "create namespace NS"},
	{arguments: "get apiservice v1alpha1.wardle.example.com -o jsonpath={.status.conditions[0].reason}", until: "Passed"},
	{arguments: "api-resources --api-group=wardle.example.com", until: "flunders"},
	{arguments: "explain flunders.spec.reference", until: "another flunder"},
	{arguments: "create -f -", input: named("first"), until: "first"},
	{arguments: "apply --server-side -f -", input: named("second")},
	{arguments: "apply -f -", input: named("third")},
	{arguments: "get flunders -n NS"},
	{arguments: "get flunders -n NS -l a=b -o name"},
	{arguments: "get flunders -n NS --watch-only --request-timeout=1s"},
	{arguments: "get flunder first -n NS -o jsonpath={.spec}"},
	{arguments: `patch flunder first -n NS --type=merge -p {"metadata":{"labels":{"a":"c"}}}`},
	{arguments: "label flunder second -n NS x=y"},
	{arguments: "get flunders -n NS --show-labels"},
	{arguments: "delete flunder first -n NS"},
	{arguments: "get flunder first -n NS"},
	{arguments: "auth can-i create flunders.wardle.example.com"},
	{arguments: "get flunders -n NS --as=mallory"},
	{arguments: "delete namespace NS"},
	{arguments: "get flunders -n NS"},
	{arguments: "get --raw /apis/wardle.example.com/v1alpha1/namespaces/NS/flunders?limit=1", until: `"items":[]`},
}

func TestSampleAPIServer(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	address := upstream.GlobalAddress(t)
	if address == "" {
		t.Skip("this machine has only loopback addresses, which are invalid in EndpointSlices")
	}
	pki, err := upstream.NewPKI(filepath.Join(t.TempDir(), "pki"))
	if err != nil {
		t.Fatal(err)
	}
	etcd, err := upstream.StartEtcd(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	etcd.StopAfter(t)
	flags, err := pki.WriteFrontProxy()
	if err != nil {
		t.Fatal(err)
	}
	names := []string{"kube-apiserver", "quorate"}
	outputs := make([][]string, len(names))
	t.Run("hosts", func(t *testing.T) {
		for i, name := range names {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				h := startHost(t, name, pki, etcd, flags)
				h.addSample(t, pki, etcd, address)
				for _, s := range steps {
					outputs[i] = append(outputs[i], s.arguments+"\n"+h.run(t, s))
				}
				h.watch(t)
			})
		}
	})
	if different := cmp.Diff(outputs[0], outputs[1]); different != "" {
		t.Errorf("kubectl's output (-kube-apiserver +quorate):\n%s", different)
	}
}

// startHost starts an API server with a namespace controller.
func startHost(t *testing.T, name string, pki *upstream.PKI, etcd *upstream.EtcdServer, flags []string) *host {
	t.Helper()
	directory := filepath.Join(t.TempDir(), name)
	options := upstream.Options{
		Directory: directory, PKI: pki, Arguments: append(slices.Clone(flags), "--enable-aggregator-routing"),
	}
	var server *upstream.APIServer
	var err error
	if name == "quorate" {
		options.Arguments = append(options.Arguments, "--controllers=namespace")
		server, err = upstream.StartQuorate(t.Context(), options)
	} else {
		options.Etcd = etcd.Endpoint
		server, err = upstream.StartKubernetes(t.Context(), options)
	}
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	if name != "quorate" {
		manager, err := upstream.Client{
			Directory: directory, PKI: pki, Server: server.Admin, Arguments: []string{"--controllers=namespace-controller"},
		}.StartControllerManager(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		manager.StopAfter(t)
	}
	kubectl, err := upstream.Binary(t.Context(), "kubectl")
	if err != nil {
		t.Fatal(err)
	}
	h := &host{name: name, kubectl: kubectl, admin: server.Admin, kubeconfig: filepath.Join(directory, "kubeconfig")}
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: h.admin.Host, CertificateAuthorityData: h.admin.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{ClientCertificateData: h.admin.CertData, ClientKeyData: h.admin.KeyData}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u"}
	config.CurrentContext = "x"
	if err := clientcmd.WriteToFile(*config, h.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return h
}

// registration contains the objects that the sample needs in its host: permissions, and a Service with its APIService.
const registration = `
{apiVersion: v1, kind: Namespace, metadata: {name: wardle}}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: wardle-auth-reader, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: extension-apiserver-authentication-reader}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:sample-apiserver"}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: wardle-auth-delegator}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: "system:auth-delegator"}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:sample-apiserver"}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: wardle}
rules:
- {apiGroups: [""], resources: [namespaces], verbs: [get, list, watch]}
- {apiGroups: [admissionregistration.k8s.io], resources: ["*"], verbs: [get, list, watch]}
- {apiGroups: [flowcontrol.apiserver.k8s.io], resources: [prioritylevelconfigurations, flowschemas], verbs: [get, list, watch]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: wardle}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: wardle}
subjects: [{apiGroup: rbac.authorization.k8s.io, kind: User, name: "system:sample-apiserver"}]
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: wardle}
spec: {ports: [{name: https, port: 443, targetPort: PORT}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: api, namespace: wardle, labels: {kubernetes.io/service-name: api}}
addressType: IPv4
endpoints: [{addresses: [ADDRESS]}]
ports: [{name: https, port: PORT}]
---
apiVersion: apiregistration.k8s.io/v1
kind: APIService
metadata: {name: v1alpha1.wardle.example.com}
spec:
  {group: wardle.example.com, version: v1alpha1, groupPriorityMinimum: 1000, versionPriority: 15, insecureSkipTLSVerify: true,
  service: {name: api, namespace: wardle}}
`

// addSample starts the sample and registers it with the host.
func (h *host) addSample(t *testing.T, pki *upstream.PKI, etcd *upstream.EtcdServer, address string) {
	t.Helper()
	permissions, rest, _ := strings.Cut(registration, "---\napiVersion: v1\nkind: Service\n")
	h.must(t, permissions)
	sample, err := upstream.Client{
		Directory: filepath.Join(t.TempDir(), "sample-of-"+h.name), PKI: pki, Server: h.admin,
	}.StartSampleAPIServer(t.Context(), etcd.Endpoint)
	if err != nil {
		t.Fatal(err)
	}
	sample.StopAfter(t)
	h.must(t, "apiVersion: v1\nkind: Service\n"+
		strings.NewReplacer("PORT", fmt.Sprint(sample.Port), "ADDRESS", address).Replace(rest))
}

// must applies objects.
func (h *host) must(t *testing.T, objects string) {
	t.Helper()
	if output := h.run(t, step{arguments: "apply -f -", input: objects}); !strings.HasPrefix(output, "exit code 0") {
		t.Fatalf("%s: %s", h.name, output)
	}
}

// changing matches output that differs from run to run.
var changing = regexp.MustCompile(`https://\S+:\d+|\d{4}-\d{2}-\d{2}T\S+Z|\d+(\.\d+)?m?s\b|resourceVersion":"\d+"`)

// run runs kubectl and returns its exit code and output.
func (h *host) run(t *testing.T, s step) string {
	t.Helper()
	var output string
	err := wait.PollUntilContextTimeout(t.Context(), 100*time.Millisecond, stepTimeout, true, func(
		ctx context.Context,
	) (bool, error) {
		replace := strings.NewReplacer("NS", "flunders").Replace
		ctx, cancel := context.WithTimeout(ctx, stepTimeout)
		defer cancel()
		command := exec.CommandContext(ctx, h.kubectl,
			append([]string{"--kubeconfig=" + h.kubeconfig}, strings.Fields(replace(s.arguments))...)...)
		var out, problems bytes.Buffer
		command.Stdin, command.Stdout, command.Stderr = strings.NewReader(replace(s.input)), &out, &problems
		command.Env = append(os.Environ(), "HOME="+t.TempDir())
		_ = command.Run() // the exit code is part of the output
		output = fmt.Sprintf("exit code %d\n%s%s", command.ProcessState.ExitCode(), out.String(), problems.String())
		return strings.Contains(output, s.until), nil
	})
	if err != nil {
		t.Fatalf("%s: kubectl %s: no output contains %q: %v\n%s", h.name, s.arguments, s.until, err, output)
	}
	return changing.ReplaceAllString(output, "CHANGING")
}

// watch follows objects of the sample with client-go while they change.
func (h *host) watch(t *testing.T) {
	t.Helper()
	client, err := dynamic.NewForConfig(h.admin)
	if err != nil {
		t.Fatal(err)
	}
	fischers := client.Resource(schema.GroupVersionResource{
		Group: "wardle.example.com", Version: "v1alpha1", Resource: "fischers",
	})
	ctx, cancel := context.WithTimeout(t.Context(), stepTimeout)
	defer cancel()
	events, err := fischers.Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatalf("%s: %v", h.name, err)
	}
	defer events.Stop()
	h.must(t, `{"apiVersion":"wardle.example.com/v1alpha1","kind":"Fischer","metadata":{"name":"watched"}}`)
	if err := fischers.Delete(ctx, "watched", metav1.DeleteOptions{}); err != nil {
		t.Fatalf("%s: %v", h.name, err)
	}
	var kinds []string
	for event := range events.ResultChan() {
		if kinds = append(kinds, string(event.Type)); event.Type == "DELETED" {
			break
		}
	}
	if got := strings.Join(kinds, " "); got != "ADDED DELETED" {
		t.Errorf("%s: got events %q, want ADDED and DELETED", h.name, got)
	}
}
