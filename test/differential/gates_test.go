package differential

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

// TestOpenAPIEnums compares the complete OpenAPI documents without enumerations.
func TestOpenAPIEnums(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	pair := startPairOf(t, "--feature-gates=OpenAPIEnums=false", "--runtime-config=resource.k8s.io/v1beta2=true")
	paths := names(fetch(t, pair.Upstream, "/openapi/v3")["paths"]).([]string)
	for _, path := range append([]string{"v2"}, paths...) {
		if path != "v2" {
			path = "v3/" + path
		}
		t.Run(path, func(t *testing.T) {
			theirs, ours := fetch(t, pair.Upstream, "/openapi/"+path), fetch(t, pair.Ours, "/openapi/"+path)
			if diff := cmp.Diff(theirs, ours); diff != "" {
				t.Errorf("(- kube-apiserver, + ours)\n%.5000s", diff)
			}
			if path == "v3/api/v1" && bytes.Contains(fmt.Append(nil, theirs), []byte("Possible enum values")) {
				t.Error("kube-apiserver publishes enumerations")
			}
		})
	}
}

// recording are the flags with which servers record their storage versions.
var recording = []string{
	"--feature-gates=StorageVersionAPI=true,APIServerIdentity=true",
	"--runtime-config=internal.apiserver.k8s.io/v1alpha1=true",
}

// TestStorageVersions compares the storage versions that both servers record, and what depends on the feature gate.
func TestStorageVersions(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	pair := startPairOf(t, recording...)
	t.Run("records", func(t *testing.T) {
		theirs, ours := storageVersions(t, pair.Upstream), storageVersions(t, pair.Ours)
		if len(theirs) < 50 {
			t.Fatalf("kube-apiserver has recorded only %d storage versions", len(theirs))
		}
		if diff := cmp.Diff(theirs, ours); diff != "" {
			t.Errorf("(- kube-apiserver, + ours)\n%s", diff)
		}
	})
	t.Run("health", func(t *testing.T) {
		const check = "built-in-resources-storage-version-updater"
		theirs, ours := hooks(t, pair.Upstream.admin, pair.Upstream.Origin), hooks(t, pair.Ours.admin, pair.Ours.Origin)
		if diff := cmp.Diff(theirs, ours); diff != "" || !strings.Contains(theirs, check) {
			t.Errorf("(- kube-apiserver, + ours)\n%s", diff)
		}
	})
	t.Run("role", func(t *testing.T) {
		const path = "/apis/rbac.authorization.k8s.io/v1/clusterroles/system:controller:storage-version-garbage-collector"
		if diff := cmp.Diff(fetch(t, pair.Upstream, path)["rules"], fetch(t, pair.Ours, path)["rules"]); diff != "" {
			t.Errorf("(- kube-apiserver, + ours)\n%s", diff)
		}
	})
}

// everyAlpha enables all alpha features, and the beta feature on which some of them depend.
var everyAlpha = []string{
	"--feature-gates=AllAlpha=true,GenericWorkload=true", "--runtime-config=api/alpha=true,api/beta=true",
}

// TestAllAlpha starts both servers with all alpha features, and compares the storage versions and the health checks.
func TestAllAlpha(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	pair := startPairOf(t, everyAlpha...)
	if diff := cmp.Diff(storageVersions(t, pair.Upstream), storageVersions(t, pair.Ours)); diff != "" {
		t.Errorf("storage versions: (- kube-apiserver, + ours)\n%s", diff)
	}
	theirs, ours := hooks(t, pair.Upstream.admin, pair.Upstream.Origin), hooks(t, pair.Ours.admin, pair.Ours.Origin)
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("health: (- kube-apiserver, + ours)\n%s", diff)
	}
	if diff := cmp.Diff(features(t, pair.Upstream), features(t, pair.Ours)); diff != "" {
		t.Errorf("features: (- kube-apiserver, + ours)\n%s", diff)
	}
	compareStatus(t, pair)
	compareAlphaKinds(t, pair)
}

// compareAlphaKinds compares the life cycle of every resource whose feature gate is alpha.
func compareAlphaKinds(t *testing.T, pair *Pair) {
	intended, err := loadIntended("testdata/intended.txt")
	if err != nil {
		t.Fatal(err)
	}
	scripts := lifeCycles(t, pair, 3, func(r Resource) bool {
		return r.Group == "lifecycle.k8s.io" || r.Version == "v1alpha3"
	})
	for _, script := range scripts {
		t.Run(script.Name, func(t *testing.T) { compare(t, pair, script, intended) })
	}
}

// storageVersions returns the StorageVersions of a server by name. Values that differ between servers are replaced;
// kube-apiserver lists the served versions in random order.
func storageVersions(t *testing.T, server *Server) map[string]any {
	t.Helper()
	all := map[string]any{}
	list := fetch(t, server, "/apis/internal.apiserver.k8s.io/v1alpha1/storageversions")
	for _, item := range list["items"].([]any) {
		object := item.(map[string]any)
		metadata := object["metadata"].(map[string]any)
		for _, field := range []string{"uid", "resourceVersion", "creationTimestamp"} {
			if metadata[field] == "" {
				t.Errorf("%s has no %s", metadata["name"], field)
			}
			delete(metadata, field)
		}
		for _, entry := range elements(metadata["managedFields"]) {
			delete(entry.(map[string]any), "time")
		}
		status := object["status"].(map[string]any)
		for _, entry := range elements(status["storageVersions"]) {
			record := entry.(map[string]any)
			if !strings.HasPrefix(record["apiServerID"].(string), "apiserver-") {
				t.Errorf("%s: the ID of the server is %s", metadata["name"], record["apiServerID"])
			}
			record["apiServerID"] = "self"
			slices.SortFunc(elements(record["servedVersions"]), func(a, b any) int {
				return strings.Compare(a.(string), b.(string))
			})
		}
		for _, condition := range elements(status["conditions"]) {
			delete(condition.(map[string]any), "lastTransitionTime")
		}
		all[metadata["name"].(string)] = object
	}
	return all
}

// elements returns the elements of a list, which may be absent.
func elements(list any) []any {
	all, _ := list.([]any)
	return all
}

// hooks returns the lines of /readyz about start-up hooks.
func hooks(t *testing.T, client *http.Client, origin string) string {
	t.Helper()
	_, body := send(t, client, http.MethodGet, origin+"/readyz?verbose", "")
	lines := slices.DeleteFunc(strings.Split(body, "\n"), func(line string) bool {
		return !strings.Contains(line, "poststarthook/")
	})
	return strings.Join(lines, "\n")
}

// send returns the status code and the body of a response.
func send(t *testing.T, client *http.Client, method, address, body string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, address, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/json")
	if method == http.MethodPatch {
		request.Header.Set("Content-Type", "application/merge-patch+json")
	}
	response, err := client.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	content, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(content)
}

// refusing is a webhook configuration because of which storage versions cannot be recorded: nothing listens at its URL.
const refusing = `{"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
	"metadata": {"name": "refusing"}, "webhooks": [{"name": "a.example.com", "sideEffects": "None",
	"admissionReviewVersions": ["v1"], "clientConfig": {"url": "https://127.0.0.1:1/", "caBundle": ""}, "rules": [{
		"apiGroups": ["internal.apiserver.k8s.io"], "apiVersions": ["*"], "operations": ["UPDATE"],
		"resources": ["storageversions/status"]}]}]}`

// waiting are requests to servers that have not recorded their storage versions, as "method path [body]".
var waiting = []string{
	`POST /api/v1/namespaces/default/configmaps {"metadata":{"name":"a"}}`,
	`PUT /api/v1/namespaces/default/configmaps/a {"metadata":{"name":"a"}}`,
	`PATCH /api/v1/namespaces/default/configmaps/a {}`,
	`DELETE /api/v1/namespaces/default/configmaps/a`,
	`DELETE /api/v1/namespaces/default/configmaps`,
	`GET /api/v1/namespaces/default/configmaps/a`,
	`GET /api/v1/namespaces/default/configmaps`,
	`GET /api/v1/namespaces/default/configmaps?watch=1&timeoutSeconds=1`,
	`POST /api/v1/namespaces/default/configmaps no JSON`,
	`POST /api/v1/namespaces {"metadata":{"name":"a"}}`,
	`POST /api/v1/namespaces/default/events {"metadata":{"name":"a"}}`,
	`POST /apis/events.k8s.io/v1/namespaces/default/events {"metadata":{"name":"a"}}`,
	`POST /api/v1/namespaces/default/pods/a/eviction {"metadata":{"name":"a"}}`,
	`POST /api/v1/namespaces/default/serviceaccounts/default/token {}`,
	`POST /api/v1/nodes {"metadata":{"name":"a"}}`,
	`POST /apis/coordination.k8s.io/v1/namespaces/kube-system/leases?dryRun=All {"metadata":{"name":"a"}}`,
	`POST /apis/coordination.k8s.io/v1/namespaces/default/leases {"metadata":{"name":"a"}}`,
	`POST /apis/authorization.k8s.io/v1/selfsubjectaccessreviews {"spec":{"nonResourceAttributes":{"path":"/"}}}`,
	`POST /apis/authentication.k8s.io/v1/tokenreviews {"spec":{"token":"x"}}`,
	`POST /apis/internal.apiserver.k8s.io/v1alpha1/storageversions?dryRun=All {"metadata":{"name":"a.b"},"spec":{}}`,
	`POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions {}`,
	`PATCH /apis/apiregistration.k8s.io/v1/apiservices/v1. {}`,
	`POST /apis/apps/v1/namespaces/default/unknown {}`,
	`POST /apis/example.com/v1/namespaces/default/unknown {}`,
	`POST /version {}`,
}

// TestStorageVersionPrecondition compares the responses of servers whose storage versions cannot be recorded.
func TestStorageVersionPrecondition(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	theirs, ours := waitingResponses(t, upstream.StartKubernetes), waitingResponses(t, upstream.StartQuorate)
	if diff := cmp.Diff(theirs, ours); diff != "" {
		t.Errorf("(- kube-apiserver, + ours)\n%s", diff)
	}
	refused := 0
	for _, request := range slices.Sorted(maps.Keys(theirs)) {
		if strings.HasPrefix(theirs[request], "503 ") {
			refused++
		}
	}
	if refused < 10 {
		t.Errorf("kube-apiserver refuses only %d requests", refused)
	}
}

// waitingResponses starts a server whose storage versions cannot be recorded, and returns its responses.
func waitingResponses(
	t *testing.T, start func(context.Context, upstream.Options) (*upstream.APIServer, error),
) map[string]string {
	t.Helper()
	_, options := upstream.NewOptions(t)
	options.Arguments = recording
	server, err := start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	const webhooks = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
	if code, body := send(t, clientOf(t, server.Admin), "POST", server.Admin.Host+webhooks, refusing); code != 201 {
		t.Fatalf("%d %s", code, body)
	}
	if err := server.Stop(); err != nil {
		t.Fatal(err)
	}
	options.Answers = "/livez/ping"
	if server, err = start(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Stop() })
	return whileWaiting(t, clientOf(t, server.Admin), server.Admin.Host)
}

func clientOf(t *testing.T, config *rest.Config) *http.Client {
	t.Helper()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// lastError is the last part of the message of a refused request.
var lastError = regexp.MustCompile(`last seen error: .*","reason"`)

// whileWaiting returns the responses to the requests in waiting, when the server has tried to record the storage
// version of ConfigMaps. The last error is compared for ConfigMaps only: kube-apiserver tries one resource after the
// other.
func whileWaiting(t *testing.T, client *http.Client, origin string) map[string]string {
	t.Helper()
	all := map[string]string{}
	refused := func(context.Context) (bool, error) {
		_, all["last error"] = send(t, client, "DELETE", origin+"/api/v1/namespaces/default/configmaps/a", "")
		return strings.Contains(all["last error"], "failed calling webhook"), nil
	}
	// Without the error of the webhook, the comparison shows the last response.
	_ = wait.PollUntilContextTimeout(t.Context(), untilInterval, time.Minute, true, refused)
	for _, request := range waiting {
		method, rest, _ := strings.Cut(request, " ")
		path, body, _ := strings.Cut(rest, " ")
		code, answer := send(t, client, method, origin+path, body)
		all[request] = fmt.Sprint(code)
		if code == http.StatusServiceUnavailable {
			all[request] += " " + lastError.ReplaceAllString(answer, `last seen error","reason"`)
			if !json.Valid([]byte(answer)) {
				t.Errorf("%s: the body is not JSON: %s", request, answer)
			}
		}
	}
	for line := range strings.Lines(hooks(t, client, origin)) {
		if strings.Contains(line, "storage-version-updater") {
			all["hook"] = line
		}
	}
	_, metrics := send(t, client, "GET", origin+"/metrics", "")
	for line := range strings.Lines(metrics) {
		if strings.HasPrefix(line, "apiserver_request_total{") && strings.Contains(line, `code="503"`) {
			all["metrics"] += line
		}
	}
	return all
}

// withoutBetas disables all features that are beta, except the ones that scripts need, which TestNonDefaultOptions
// disables, and one that has no effect here but changes the tokens of pages in kube-apiserver.
const withoutBetas = "--feature-gates=AllBeta=false,WatchList=true,ConstrainedImpersonation=true,APIServerIdentity=true," +
	"ListFromCacheSnapshot=true"

// TestDifferentialWithoutBetas compares both servers without features that are beta, most of which are enabled by
// default, in all hand-written scripts.
func TestDifferentialWithoutBetas(t *testing.T) {
	upstream.NeedsProcesses(t)
	if os.Getenv(wholeVariable) == "" {
		t.Skip("runs all scripts; set " + wholeVariable + "=1 (make differential)")
	}
	pair := startPairOf(t, withoutBetas)
	if diff := cmp.Diff(features(t, pair.Upstream), features(t, pair.Ours)); diff != "" {
		t.Errorf("features: (- kube-apiserver, + ours)\n%s", diff)
	}
	intended, err := loadIntended("testdata/intended.txt")
	if err != nil {
		t.Fatal(err)
	}
	scripts, err := LoadScripts("testdata")
	if err != nil {
		t.Fatal(err)
	}
	var all result
	for _, one := range compareScripts(t, pair, scripts, intended) {
		all = all.plus(one)
	}
	t.Logf("%d of %d cases are equal, %d differ as intended", all.equal, all.cases, all.intended)
}
