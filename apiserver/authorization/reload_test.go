package authorization

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	authorizationv1 "k8s.io/api/authorization/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	testclock "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/authorization/rbac"
	"quorate.dev/apiserver/config"
	"quorate.dev/test/docs/guide"
)

// webhookServer allows everything until deny is set. It counts the requests.
type webhookServer struct {
	*httptest.Server
	deny  atomic.Bool
	calls atomic.Int32
}

func startWebhook(t *testing.T) (server *webhookServer, kubeconfig string) {
	t.Helper()
	w := &webhookServer{}
	w.Server = httptest.NewTLSServer(http.HandlerFunc(func(response http.ResponseWriter, r *http.Request) {
		w.calls.Add(1)
		var review authorizationv1.SubjectAccessReview
		_ = json.NewDecoder(r.Body).Decode(&review)
		review.Status = authorizationv1.SubjectAccessReviewStatus{Allowed: !w.deny.Load(), Denied: w.deny.Load()}
		_ = json.NewEncoder(response).Encode(review)
	}))
	t.Cleanup(w.Close)
	kubeconfig = filepath.Join(t.TempDir(), "kubeconfig")
	write(t, kubeconfig, fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{"name":"c",
"cluster":{"server":%q,"insecure-skip-tls-verify":true}}],"contexts":[{"name":"c","context":{"cluster":"c"}}]}`, w.URL))
	return w, kubeconfig
}

func write(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

// fileOf returns an AuthorizationConfiguration with a webhook and further authorizers.
func fileOf(kubeconfig string, further ...string) string {
	webhook := fmt.Sprintf(`{"type":"Webhook","name":"hook","webhook":{"timeout":"20s","authorizedTTL":"5m","unauthorizedTTL":"5m",
"failurePolicy":"Deny","subjectAccessReviewVersion":"v1","connectionInfo":{"type":"KubeConfigFile","kubeConfigFile":%q}}}`, kubeconfig)
	return `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration","authorizers":[` +
		strings.Join(append([]string{webhook}, further...), ",") + `]}`
}

const rbacEntry = `{"type":"RBAC","name":"rbac"}`

// reloadFixture is an authorizer of a file.
type reloadFixture struct {
	*Authorizer
	file     string
	registry *prometheus.Registry
}

func newReloadFixture(t *testing.T, content string) *reloadFixture {
	t.Helper()
	f := &reloadFixture{file: filepath.Join(t.TempDir(), "authorization.yaml"), registry: prometheus.NewRegistry()}
	write(t, f.file, content)
	configuration, err := Load(config.Authorization{ConfigFile: f.file})
	if err != nil {
		t.Fatal(err)
	}
	f.Authorizer, err = New(Options{
		Configuration: configuration, RBAC: rbac.New(), Clock: testclock.NewFakeClock(time.Now()), Logger: logr.Discard(),
		Registerer: f.registry,
	})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func (f *reloadFixture) decide(t *testing.T) authorizer.Decision {
	t.Helper()
	decision, _, err := f.Authorize(t.Context(), authorizer.AttributesRecord{
		User: &user.DefaultInfo{Name: "alice"}, Verb: "get", Resource: "pods", ResourceRequest: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	return decision
}

// A reload drops the cached responses of webhooks, and without a change does nothing.
func TestReloadDropsCachedDecisions(t *testing.T) {
	server, kubeconfig := startWebhook(t)
	f := newReloadFixture(t, fileOf(kubeconfig, rbacEntry))
	for range 2 {
		if f.decide(t) != authorizer.DecisionAllow || server.calls.Load() != 1 {
			t.Errorf("%d calls, want one that allows", server.calls.Load())
		}
	}
	server.deny.Store(true)
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	if f.decide(t) != authorizer.DecisionAllow || server.calls.Load() != 1 {
		t.Error("a reload without a change dropped the cache")
	}
	write(t, f.file, fileOf(kubeconfig, `{"type":"AlwaysAllow","name":"alwaysallow"}`, rbacEntry))
	if err := f.Reload(); err != nil {
		t.Fatal(err)
	}
	if f.decide(t) != authorizer.DecisionDeny {
		t.Error("the cached decision was used after a reload")
	}
	want := `
# HELP apiserver_authorization_decisions_total [ALPHA] Total number of terminal decisions made by an authorizer split by authorizer type, name, and decision.
# TYPE apiserver_authorization_decisions_total counter
apiserver_authorization_decisions_total{decision="allowed",name="alwaysallow",type="AlwaysAllow"} 0
apiserver_authorization_decisions_total{decision="allowed",name="hook",type="Webhook"} 3
apiserver_authorization_decisions_total{decision="allowed",name="rbac",type="RBAC"} 0
apiserver_authorization_decisions_total{decision="denied",name="alwaysallow",type="AlwaysAllow"} 0
apiserver_authorization_decisions_total{decision="denied",name="hook",type="Webhook"} 1
apiserver_authorization_decisions_total{decision="denied",name="rbac",type="RBAC"} 0
`
	if err := testutil.GatherAndCompare(f.registry, strings.NewReader(want)); err != nil {
		t.Error(err)
	}
}

// A file with errors changes nothing. The modes other than Webhook are those of the start.
func TestBrokenFileKeepsTheModes(t *testing.T) {
	server, kubeconfig := startWebhook(t)
	f := newReloadFixture(t, fileOf(kubeconfig, rbacEntry))
	for want, content := range map[string]string{
		"couldn't get version/kind": "{",
		`unknown field "authorizer"`: strings.Replace(fileOf(kubeconfig, rbacEntry),
			"authorizers", "authorizer", 1),
		"missing required types: [RBAC]":               fileOf(kubeconfig),
		"expected name rbac for authorizer RBAC":       fileOf(kubeconfig, `{"type":"RBAC","name":"roles"}`),
		"Node is not allowed if it was not enabled at": fileOf(kubeconfig, rbacEntry, `{"type":"Node","name":"node"}`),
		"authorizers[0].failurePolicy: Unsupported value": strings.Replace(fileOf(kubeconfig, rbacEntry), "Deny",
			"Perhaps", 1),
		"authorizers: Required value": `{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AuthorizationConfiguration",` +
			`"authorizers":[]}`,
	} {
		write(t, f.file, content)
		if err := f.Reload(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
		if f.decide(t) != authorizer.DecisionAllow || server.calls.Load() != 1 {
			t.Errorf("%s: the modes were replaced", want)
		}
	}
	if err := os.Remove(f.file); err != nil {
		t.Fatal(err)
	}
	if err := f.Reload(); err == nil || f.decide(t) != authorizer.DecisionAllow {
		t.Errorf("a missing file: %v", err)
	}
}

// The failure policy decides when the webhook cannot be reached.
func TestUnreachableWebhook(t *testing.T) {
	server, kubeconfig := startWebhook(t)
	server.Close()
	for policy, want := range map[string]authorizer.Decision{
		"Deny": authorizer.DecisionDeny, "NoOpinion": authorizer.DecisionAllow,
	} {
		content := fileOf(kubeconfig, `{"type":"AlwaysAllow","name":"alwaysallow"}`)
		f := newReloadFixture(t, strings.Replace(content, "Deny", policy, 1))
		decision, _, _ := f.Authorize(t.Context(), authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "alice"}})
		if decision != want {
			t.Errorf("%s: %v, want %v", policy, decision, want)
		}
	}
}

func TestRules(t *testing.T) {
	_, kubeconfig := startWebhook(t)
	f := newReloadFixture(t, fileOf(kubeconfig, `{"type":"AlwaysAllow","name":"alwaysallow"}`))
	resources, paths, incomplete, err := f.RulesFor(t.Context(), &user.DefaultInfo{Name: "alice"}, "default")
	if len(resources) != 1 || len(paths) != 1 || !incomplete || err == nil {
		t.Errorf("%v, %v, %t, %v", resources, paths, incomplete, err)
	}
}

// TestDocumentedConfiguration checks the example of docs/authentication.md.
func TestDocumentedConfiguration(t *testing.T) {
	example, err := guide.YAML("../../docs/authentication.md", "kind: AuthorizationConfiguration")
	if err != nil {
		t.Fatal(err)
	}
	_, kubeconfig := startWebhook(t)
	example = strings.Replace(example, "/etc/kubernetes/policy-webhook.kubeconfig", kubeconfig, 1)
	example = strings.Replace(example, "- type: Node\n  name: node\n", "", 1)
	_ = newReloadFixture(t, example)
}
