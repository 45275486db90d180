package host

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	dto "github.com/prometheus/client_model/go"
	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/component-base/metrics/legacyregistry"

	"quorate.dev/apiserver/authentication"
	"quorate.dev/apiserver/config"
)

// kubeconfig writes a file for a server.
func kubeconfig(t *testing.T, server string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "kubeconfig")
	content := `{apiVersion: v1, kind: Config, clusters: [{name: c, cluster: {server: "` + server + `"}}],
contexts: [{name: x, context: {cluster: c}}], current-context: x}`
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// connect returns a host whose API is served by a function of the path, which returns the body.
func connect(t *testing.T, serve func(path string, body []byte) (int, runtime.Object)) *Cluster {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		status, object := serve(r.URL.Path, body)
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(object)
	}))
	t.Cleanup(server.Close)
	cluster, err := Connect(Options{Config: config.Extension{Kubeconfig: kubeconfig(t, server.URL)}, UserAgent: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return cluster
}

func TestConfigurationErrors(t *testing.T) {
	good := kubeconfig(t, "http://127.0.0.1:1")
	missing := filepath.Join(t.TempDir(), "missing")
	for want, c := range map[string]config.Extension{
		"--kubeconfig: no usable configuration of the host: " + "stat":                               {Kubeconfig: missing},
		"--kubeconfig: no usable configuration of the host: unable to load in-cluster configuration": {},
		"--authentication-kubeconfig: no usable configuration": {
			Kubeconfig: good, AuthenticationKubeconfig: missing,
		},
		"--authorization-kubeconfig: no usable configuration": {Kubeconfig: good, AuthorizationKubeconfig: missing},
	} {
		if _, err := Connect(Options{Config: c}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestLookupErrors(t *testing.T) {
	unreachable, err := Connect(Options{Config: config.Extension{Kubeconfig: kubeconfig(t, "http://127.0.0.1:1")}})
	if err != nil {
		t.Fatal(err)
	}
	refusal := func(code int, reason metav1.StatusReason) *Cluster {
		return connect(t, func(string, []byte) (int, runtime.Object) {
			return code, &metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: int32(code),
				Reason: reason, Message: string(reason),
			}
		})
	}
	for name, test := range map[string]struct {
		cluster *Cluster
		want    string // part of the error; empty: none
	}{
		"unreachable": {unreachable, "connection refused"},
		"forbidden": {
			refusal(403, metav1.StatusReasonForbidden), "to the Role extension-apiserver-authentication-reader grants it",
		},
		"unknown user":  {refusal(401, metav1.StatusReasonUnauthorized), "Unauthorized"},
		"not published": {refusal(404, metav1.StatusReasonNotFound), ""},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.cluster.Lookup(authentication.NewEmptyAuthority(), nil, logr.Discard()).Once(t.Context())
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// published returns the ConfigMap with values.
func published(data map[string]string) *corev1.ConfigMap {
	return &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: configMapName, Namespace: metav1.NamespaceSystem}, Data: data,
	}
}

func TestLookupFollowsTheConfigMap(t *testing.T) {
	client := fake.NewClientset(published(map[string]string{"requestheader-username-headers": `["X-Remote-User"]`}))
	cluster := &Cluster{authentication: client}
	lookup := cluster.Lookup(nil, authentication.NewEmptyAuthority(), logr.Discard())
	if lookup.FrontProxy() != nil {
		t.Error("there is a front proxy before the lookup")
	}
	if err := lookup.Once(t.Context()); err != nil {
		t.Fatal(err)
	}
	first := lookup.FrontProxy()
	if first == nil || first.UsernameHeaders[0] != "X-Remote-User" || len(first.AllowedNames) > 0 {
		t.Fatalf("looked up %+v", first)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- lookup.Run(ctx) }()
	update := func(data map[string]string) {
		t.Helper()
		_, err := client.CoreV1().ConfigMaps(metav1.NamespaceSystem).Update(t.Context(),
			published(data), metav1.UpdateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	await := func(name string) {
		t.Helper()
		err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(
			context.Context,
		) (bool, error) {
			names := lookup.FrontProxy().AllowedNames
			return len(names) == 1 && names[0] == name, nil
		})
		if err != nil {
			t.Fatalf("the names are %v", lookup.FrontProxy().AllowedNames)
		}
	}
	update(map[string]string{
		"requestheader-username-headers": `["X-Remote-User"]`, "requestheader-allowed-names": `["a"]`,
	})
	await("a")
	// Invalid values leave the previous ones in use.
	update(map[string]string{"requestheader-username-headers": `["X-User"]`, "requestheader-allowed-names": `not JSON`})
	update(map[string]string{
		"requestheader-username-headers": `["X-Remote-User"]`, "requestheader-allowed-names": `["b"]`,
		"requestheader-client-ca-file": "not PEM",
	})
	await("b")
	stop()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

func TestUnchangedNamesKeepTheFrontProxy(t *testing.T) {
	lookup := (&Cluster{}).Lookup(nil, authentication.NewEmptyAuthority(), logr.Discard())
	data := map[string]string{"requestheader-username-headers": `["X-Remote-User"]`}
	lookup.update(published(data))
	first := lookup.FrontProxy()
	lookup.update(published(data))
	if lookup.FrontProxy() != first {
		t.Error("connections are verified again although nothing changed")
	}
}

func TestTokens(t *testing.T) {
	var reviews atomic.Int32
	cluster := connect(t, func(_ string, body []byte) (int, runtime.Object) {
		reviews.Add(1)
		review := &authenticationv1.TokenReview{}
		if err := runtime.DecodeInto(scheme.Codecs.UniversalDeserializer(), body, review); err != nil {
			t.Error(err)
		}
		if review.Spec.Token == "good" {
			review.Status = authenticationv1.TokenReviewStatus{
				Authenticated: true, User: authenticationv1.UserInfo{Username: "alice"},
			}
		}
		review.TypeMeta = metav1.TypeMeta{Kind: "TokenReview", APIVersion: "authentication.k8s.io/v1"}
		return http.StatusCreated, review
	})
	tokens, err := cluster.Tokens(time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		response, ok, err := tokens.AuthenticateToken(t.Context(), "good")
		if err != nil || !ok || response.User.GetName() != "alice" {
			t.Fatalf("got %+v, %t, %v", response, ok, err)
		}
		if _, ok, err := tokens.AuthenticateToken(t.Context(), "bad"); ok || err != nil {
			t.Fatalf("a bad token: %t, %v", ok, err)
		}
	}
	if got := reviews.Load(); got != 2 {
		t.Errorf("%d TokenReviews for two tokens", got)
	}
	families, err := legacyregistry.DefaultGatherer.Gather()
	if err != nil || !slices.ContainsFunc(families, func(f *dto.MetricFamily) bool {
		return f.GetName() == "apiserver_delegated_authn_request_total"
	}) {
		t.Errorf("the metrics of the process lack TokenReviews: %v", err)
	}
}

func TestAuthorizer(t *testing.T) {
	var reviews atomic.Int32
	cluster := connect(t, func(_ string, body []byte) (int, runtime.Object) {
		reviews.Add(1)
		review := &authorizationv1.SubjectAccessReview{}
		if err := runtime.DecodeInto(scheme.Codecs.UniversalDeserializer(), body, review); err != nil {
			t.Error(err)
		}
		if review.Spec.User == "broken" {
			return http.StatusForbidden, &metav1.Status{
				TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Code: 403,
				Reason: metav1.StatusReasonForbidden,
			}
		}
		review.Status.Allowed = review.Spec.User == "alice"
		review.TypeMeta = metav1.TypeMeta{Kind: "SubjectAccessReview", APIVersion: "authorization.k8s.io/v1"}
		return http.StatusCreated, review
	})
	a, err := cluster.Authorizer(Authorization{
		AlwaysAllowPaths: []string{"/healthz", "/open/*"}, AuthorizedTTL: time.Hour, UnauthorizedTTL: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	attributes := func(name, group string, groups ...string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{
			User: &user.DefaultInfo{Name: name, Groups: groups}, Verb: "get", APIGroup: group,
			Resource: "widgets", ResourceRequest: true,
		}
	}
	path := func(path string) authorizer.AttributesRecord {
		return authorizer.AttributesRecord{User: &user.DefaultInfo{Name: "bob"}, Verb: "get", Path: path}
	}
	for name, test := range map[string]struct {
		attributes authorizer.AttributesRecord
		want       authorizer.Decision
		fails      bool
		reviews    int32 // by two equal requests
	}{
		"allowed by the host": {attributes("alice", "demo.example.com"), authorizer.DecisionAllow, false, 1},
		"not allowed":         {attributes("bob", "demo.example.com"), authorizer.DecisionNoOpinion, false, 1},
		"a review that fails": {attributes("broken", "demo.example.com"), authorizer.DecisionNoOpinion, true, 2},
		"a privileged group": {
			attributes("carol", "demo.example.com", "system:masters"), authorizer.DecisionAllow, false, 0,
		},
		"definitions": {attributes("alice", "apiextensions.k8s.io"), authorizer.DecisionDeny, false, 0},
		"an administrator": {
			attributes("carol", "apiextensions.k8s.io", "system:masters"), authorizer.DecisionAllow, false, 0,
		},
		"health":         {path("/healthz"), authorizer.DecisionAllow, false, 0},
		"an open prefix": {path("/open/a/b"), authorizer.DecisionAllow, false, 0},
		"another path":   {path("/metrics"), authorizer.DecisionNoOpinion, false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			before := reviews.Load()
			for range 2 {
				decision, _, err := a.Authorize(t.Context(), test.attributes)
				if decision != test.want || (err != nil) != test.fails {
					t.Errorf("got %v, %v", decision, err)
				}
			}
			if got := reviews.Load() - before; got != test.reviews {
				t.Errorf("%d SubjectAccessReviews, want %d", got, test.reviews)
			}
		})
	}
}

// labelled is a dynamic client with a name.
type labelled struct {
	dynamic.NamespaceableResourceInterface
	name string
}

func (l labelled) Resource(schema.GroupVersionResource) dynamic.NamespaceableResourceInterface {
	return l
}

func TestByGroup(t *testing.T) {
	client := ByGroup([]string{"demo.example.com"}, labelled{name: "local"}, labelled{name: "host"})
	for group, want := range map[string]string{"demo.example.com": "local", "": "host", "apiextensions.k8s.io": "host"} {
		if got := client.Resource(schema.GroupVersionResource{Group: group}).(labelled).name; got != want {
			t.Errorf("%q is read from %s", group, got)
		}
	}
}
