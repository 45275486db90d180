package metrics

import (
	"fmt"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	dto "github.com/prometheus/client_model/go"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

// TestFamilies starts kube-apiserver and this server with the same flags, puts the same load on both, and compares the
// families of /metrics: their names, types, help and labels. Values differ.
func TestFamilies(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	_, shared := upstream.NewOptions(t)
	hooks := newWebhook(t)
	want := loaded(t, upstream.StartKubernetes, hooks, upstream.Options{
		PKI: shared.PKI, Directory: filepath.Join(shared.Directory, "kubernetes"), Etcd: shared.Etcd,
	})
	got := loaded(t, upstream.StartQuorate, hooks, upstream.Options{
		PKI: shared.PKI, Directory: filepath.Join(shared.Directory, "quorate"), Etcd: shared.Etcd,
		Arguments: []string{"--etcd-prefix=/quorate"},
	})
	for endpoint := range want.checks {
		if !slices.Equal(got.checks[endpoint], want.checks[endpoint]) {
			t.Errorf("/%s has the checks\n%s\nwant\n%s", endpoint,
				strings.Join(got.checks[endpoint], "\n"), strings.Join(want.checks[endpoint], "\n"))
		}
	}
	compareAll(t, want.families, got.families)
	compareReference(t, want.families, got.families)
}

// compareAll compares the families of kube-apiserver with ours, except those in notExported.
func compareAll(t *testing.T, want, got map[string]*dto.MetricFamily) {
	t.Helper()
	unused := maps.Clone(notExported)
	for _, name := range slices.Sorted(maps.Keys(want)) {
		reason := ""
		for prefix, given := range notExported {
			if strings.HasPrefix(name, prefix) {
				reason = given
				delete(unused, prefix)
			}
		}
		switch {
		case got[name] == nil && occasional[name] != "":
		case got[name] == nil && reason == "":
			t.Errorf("%s is missing; kube-apiserver has labels %v: %s", name, labels(want[name]), want[name].GetHelp())
		case got[name] != nil && reason != "":
			t.Errorf("%s is exported but in the list of exceptions: %s", name, reason)
		case got[name] != nil:
			compareFamilies(t, want[name], got[name])
		}
	}
	for prefix := range unused {
		t.Logf("kube-apiserver exported no family of the exception %s", prefix)
	}
	for name := range got {
		if want[name] == nil {
			t.Logf("only this server has %s", name)
		}
	}
}

// observed is what a server exports.
type observed struct {
	families map[string]*dto.MetricFamily
	checks   map[string][]string // the names of health checks by endpoint
}

// loaded starts a server, puts load on it and returns what it exports.
func loaded(t *testing.T, launch upstream.Launch, hooks *webhook, options upstream.Options) observed {
	t.Helper()
	if err := os.MkdirAll(options.Directory, 0o755); err != nil {
		t.Fatal(err)
	}
	options.Arguments = append(options.Arguments, writeFiles(t, options.Directory)...)
	server, err := launch(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	server.StopAfter(t)
	load(t, server.Admin, hooks)
	return observed{scrape(t, server.Admin), checks(t, server.Admin)}
}

// checks returns the names of the health checks, in their order.
func checks(t *testing.T, config *rest.Config) map[string][]string {
	t.Helper()
	names := map[string][]string{}
	for _, endpoint := range []string{"livez", "readyz", "healthz"} {
		for line := range strings.Lines(string(get(t, config, "/"+endpoint+"?verbose"))) {
			name, passed := strings.CutSuffix(strings.TrimPrefix(line, "[+]"), " ok\n")
			if passed && !slices.Contains(notChecked, name) {
				names[endpoint] = append(names[endpoint], name)
			}
		}
	}
	return names
}

// writeFiles writes the files that servers are configured with and returns their flags.
func writeFiles(t *testing.T, directory string) (flags []string) {
	t.Helper()
	for flag, content := range map[string]string{
		"audit-policy-file": `{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"Metadata"}]}`,
	} {
		path := filepath.Join(directory, flag)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		flags = append(flags, "--"+flag+"="+path)
	}
	return append(flags, "--audit-log-path="+filepath.Join(directory, "audit.log"), writePolicies(t, directory))
}

// writePolicies writes a policy of admission to a file, and returns the flag with which a server reads the file.
func writePolicies(t *testing.T, directory string) string {
	t.Helper()
	manifests := filepath.Join(directory, "manifests")
	if err := os.Mkdir(manifests, 0o755); err != nil {
		t.Fatal(err)
	}
	configuration := filepath.Join(directory, "admission.yaml")
	for path, content := range map[string]string{
		filepath.Join(manifests, "policy.yaml"): policyManifest,
		configuration: `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AdmissionConfiguration","plugins":[
			{"name":"ValidatingAdmissionPolicy","configuration":{"apiVersion":"apiserver.config.k8s.io/v1",
			"kind":"ValidatingAdmissionPolicyConfiguration","staticManifestsDir":"` + manifests + `"}}]}`,
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return "--admission-control-config-file=" + configuration
}

const policyManifest = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: manifest.static.k8s.io}
spec:
  matchConstraints:
    resourceRules: [{apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [limitranges]}]
  validations: [{expression: "object.metadata.name != 'forbidden'"}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: manifest.static.k8s.io}
spec: {policyName: manifest.static.k8s.io, validationActions: [Deny]}
`

// load uses what kube-apiserver measures.
func load(t *testing.T, config *rest.Config, hooks *webhook) {
	t.Helper()
	use(t, config)
	hooks.install(t, config)
	issueCertificates(t, config)
	useSecurePods(t, config)
	awaitGraph(t, config)
	useToken(t, config)
	useReads(t, config)
	useWrites(t, config)
	useRejected(t, config)
}

// useToken creates a service account's token and sends requests with it.
func useToken(t *testing.T, config *rest.Config) {
	t.Helper()
	const accounts = "/api/v1/namespaces/default/serviceaccounts"
	do(t, config, http.MethodPost, accounts, `{"metadata":{"name":"robot"}}`)
	var review struct{ Status struct{ Token string } }
	decode(t, do(t, config, http.MethodPost, accounts+"/robot/token", `{"spec":{}}`), &review)
	robot := rest.AnonymousClientConfig(config)
	robot.BearerToken = review.Status.Token
	for range 2 {
		get(t, robot, "/api")
	}
	robot.BearerToken = "nonsense"
	send(t, robot, http.MethodGet, "/api", "")
}

// useReads lists, in pages, by field and without a watch cache (events), watches and reads tables.
func useReads(t *testing.T, config *rest.Config) {
	t.Helper()
	for _, path := range []string{
		"/api/v1/namespaces?limit=2", "/api/v1/pods?fieldSelector=spec.nodeName=n", "/api/v1/namespaces?resourceVersion=0",
		"/api/v1/events",
		"/api/v1/pods?watch=1&timeoutSeconds=1&resourceVersion=0", "/openapi/v2", "/openapi/v3", "/apis", "/version",
		"/apis/apps/v1/deployments", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", "/livez",
		"/healthz", "/metrics",
	} {
		get(t, config, path)
	}
}

// useWrites writes objects in each way.
func useWrites(t *testing.T, config *rest.Config) {
	t.Helper()
	const maps = "/api/v1/namespaces/default/configmaps"
	do(t, config, http.MethodPost, maps+"?fieldValidation=Strict", `{"metadata":{"name":"m"}}`)
	send(t, config, http.MethodPost, maps+"?fieldValidation=Strict", `{"metadata":{"name":"n"},"none":1}`)
	do(t, config, http.MethodPut, maps+"/m", `{"metadata":{"name":"m"},"data":{"a":"b"}}`)
	do(t, config, http.MethodPatch, maps+"/m", `{"data":{"a":"c"}}`)
	do(t, config, http.MethodDelete, maps+"/m", "")
	do(t, config, http.MethodDelete, maps, "")
	do(t, config, http.MethodPost, "/api/v1/namespaces/default/services",
		`{"metadata":{"name":"s"},"spec":{"type":"NodePort","ports":[{"port":80}]}}`)
	do(t, config, http.MethodPost, "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews",
		`{"spec":{"resourceAttributes":{"verb":"get","resource":"pods"}}}`)
	do(t, config, http.MethodPost, "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
}

const definition = `{"metadata":{"name":"things.example.com"},"spec":{"group":"example.com","scope":"Cluster",
	"names":{"plural":"things","kind":"Thing"},"versions":[{"name":"v1","served":true,"storage":true,
	"schema":{"openAPIV3Schema":{"type":"object","properties":{"spec":{"type":"object","properties":{"a":{"type":"integer"}},
	"x-kubernetes-validations":[{"rule":"self.a > 0"}]}}}}}]}}`

// useRejected sends requests that are rejected at different stages.
func useRejected(t *testing.T, config *rest.Config) {
	t.Helper()
	send(t, rest.AnonymousClientConfig(config), http.MethodGet, "/api/v1/secrets", "")
	send(t, config, http.MethodGet, "/apis/none.example.com/v1/things", "")
	impersonating := rest.CopyConfig(config)
	impersonating.Impersonate.UserName = "jane"
	send(t, impersonating, http.MethodGet, "/api/v1/secrets", "")
}

// compareFamilies compares type, help and the names of labels.
func compareFamilies(t *testing.T, want, got *dto.MetricFamily) {
	t.Helper()
	if want.GetType() != got.GetType() {
		t.Errorf("%s is a %s, want %s", want.GetName(), got.GetType(), want.GetType())
	}
	if want.GetHelp() != got.GetHelp() && otherHelp[want.GetName()] == "" {
		t.Errorf("help of %s:\n%s\nwant\n%s", want.GetName(), got.GetHelp(), want.GetHelp())
	}
	if !slices.Equal(labels(want), labels(got)) {
		t.Errorf("%s has labels %v, want %v", want.GetName(), labels(got), labels(want))
	}
	if !slices.Equal(bounds(want), bounds(got)) {
		t.Errorf("%s has buckets %v, want %v", want.GetName(), bounds(got), bounds(want))
	}
}

// labels returns the names of the labels of a family, sorted.
func labels(family *dto.MetricFamily) []string {
	names := map[string]bool{}
	for _, metric := range family.GetMetric() {
		for _, label := range metric.GetLabel() {
			names[label.GetName()] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// bounds returns the upper bounds of the buckets of a histogram.
func bounds(family *dto.MetricFamily) []string {
	var bounds []string
	for _, bucket := range family.GetMetric()[0].GetHistogram().GetBucket() {
		bounds = append(bounds, fmt.Sprint(bucket.GetUpperBound()))
	}
	return bounds
}
