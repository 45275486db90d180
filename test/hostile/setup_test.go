// Package hostile runs an API server whose extension API server, webhooks and issuer of tokens are hostile: their
// responses are endless, slow, huge, compressed bombs, redirects or not responses at all.
package hostile

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionregistration "k8s.io/api/admissionregistration/v1"
	core "k8s.io/api/core/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	apiregistration "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	aggregatorclient "k8s.io/kube-aggregator/pkg/client/clientset_generated/clientset"
	"k8s.io/utils/ptr"

	"quorate.dev/test/upstream"
)

// patience bounds the wait for a condition on a slow machine.
const patience = 2 * time.Minute

// environment is an API server, and the hostile server that has all other roles.
type environment struct {
	*upstream.APIServer
	directory string
	pki       *upstream.PKI
	admin     *kubernetes.Clientset
	hostile   *httptest.Server
	behaviour atomic.Pointer[http.HandlerFunc] // nil: well-behaved
	calls     atomic.Int64                     // of the present behaviour
	elsewhere *httptest.Server
	followed  atomic.Int64 // requests with credentials or bodies
}

// ServeHTTP serves all roles.
func (e *environment) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.URL.Path == "/issuer/.well-known/openid-configuration" {
		_ = json.NewEncoder(w).Encode(map[string]string{
			"issuer": e.hostile.URL + "/issuer", "jwks_uri": e.hostile.URL + "/issuer/keys",
		})
		return
	}
	_, _ = io.Copy(io.Discard, r.Body) // net/http notices the end of a client only after its body
	if serve := e.behaviour.Load(); serve != nil {
		e.calls.Add(1)
		(*serve)(w, r)
		return
	}
	if strings.HasPrefix(r.URL.Path, "/apis/hostile.example.com/v1") {
		text(http.StatusOK, "application/json",
			`{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"hostile.example.com/v1","resources":[]}`)(w, r)
		return
	}
	text(http.StatusOK, "application/json", "{}")(w, r)
}

// start starts the servers.
func start(t *testing.T) *environment {
	t.Helper()
	upstream.NeedsProcesses(t)
	e := &environment{directory: t.TempDir()}
	e.elsewhere = httptest.NewTLSServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		// Public documents of an issuer may be elsewhere.
		if r.Method != http.MethodGet || len(r.Header["Authorization"]) > 0 ||
			r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
			e.followed.Add(1)
		}
	}))
	t.Cleanup(e.elsewhere.Close)
	e.hostile = httptest.NewTLSServer(e)
	t.Cleanup(func() {
		e.hostile.CloseClientConnections()
		e.hostile.Close()
	})
	var err error
	if e.pki, err = upstream.NewPKI(t.TempDir()); err != nil {
		t.Fatal(err)
	}
	options := upstream.Options{Directory: e.directory, PKI: e.pki, Arguments: e.flags(t)}
	launch := upstream.StartQuorate
	if os.Getenv("QUORATE_HOSTILE_UPSTREAM") != "" { // how kube-apiserver does, for comparison
		etcd, err := upstream.StartEtcd(t.Context(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		etcd.StopAfter(t)
		options.Etcd, launch = etcd.Endpoint, upstream.StartKubernetes
	}
	if e.APIServer, err = launch(t.Context(), options); err != nil {
		t.Fatal(err)
	}
	e.StopAfter(t)
	if e.admin, err = kubernetes.NewForConfig(rest.CopyConfig(e.Admin)); err != nil {
		t.Fatal(err)
	}
	e.createWebhooks(t)
	e.createDefinition(t)
	e.createAPIService(t)
	return e
}

func (e *environment) authority() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: e.hostile.Certificate().Raw})
}

func (e *environment) write(t *testing.T, name, content string) string {
	t.Helper()
	file := filepath.Join(e.directory, name)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// kubeconfig writes the kubeconfig of a webhook.
func (e *environment) kubeconfig(t *testing.T, role string) string {
	t.Helper()
	authority := e.write(t, "authority.crt", string(e.authority()))
	return e.write(t, role+".kubeconfig", fmt.Sprintf(`{"apiVersion":"v1","kind":"Config","current-context":"a",
"clusters":[{"name":"a","cluster":{"server":%q,"certificate-authority":%q}}],"users":[{"name":"a","user":{}}],
"contexts":[{"name":"a","context":{"cluster":"a","user":"a"}}]}`, e.hostile.URL+"/"+role, authority))
}

func (e *environment) flags(t *testing.T) []string {
	t.Helper()
	policy := e.write(t, "policy.yaml", `{"apiVersion":"audit.k8s.io/v1","kind":"Policy","rules":[{"level":"Metadata"}]}`)
	images := e.write(t, "images.yaml",
		fmt.Sprintf(`{"imagePolicy":{"kubeConfigFile":%q,"allowTTL":1,"denyTTL":1,"retryBackoff":500,"defaultAllow":false}}`,
			e.kubeconfig(t, "images")))
	admission := e.write(t, "admission.yaml",
		fmt.Sprintf(`{"apiVersion":"apiserver.config.k8s.io/v1","kind":"AdmissionConfiguration",
"plugins":[{"name":"ImagePolicyWebhook","path":%q}]}`, images))
	return []string{
		"--authentication-token-webhook-config-file=" + e.kubeconfig(t, "authentication"),
		"--authentication-token-webhook-cache-ttl=0s", "--authentication-token-webhook-version=v1",
		"--authorization-mode=Node,RBAC,Webhook", "--authorization-webhook-config-file=" + e.kubeconfig(t, "authorization"),
		"--authorization-webhook-version=v1", "--authorization-webhook-cache-unauthorized-ttl=0s",
		"--audit-policy-file=" + policy, "--audit-webhook-config-file=" + e.kubeconfig(t, "audit"),
		"--audit-webhook-batch-max-wait=100ms", "--audit-webhook-initial-backoff=100ms",
		"--enable-admission-plugins=ImagePolicyWebhook", "--admission-control-config-file=" + admission,
		"--oidc-issuer-url=" + e.hostile.URL + "/issuer", "--oidc-client-id=hostile",
		"--oidc-ca-file=" + filepath.Join(e.directory, "authority.crt"), "--shutdown-delay-duration=0s",
	}
}

// createWebhooks creates admission webhooks for ConfigMaps of the namespaces validating and mutating.
func (e *environment) createWebhooks(t *testing.T) {
	t.Helper()
	rules := []admissionregistration.RuleWithOperations{{
		Operations: []admissionregistration.OperationType{admissionregistration.Create},
		Rule: admissionregistration.Rule{
			APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"configmaps"},
		},
	}}
	selector := func(namespace string) *meta.LabelSelector {
		return &meta.LabelSelector{MatchLabels: map[string]string{core.LabelMetadataName: namespace}}
	}
	client := func(role string) admissionregistration.WebhookClientConfig {
		return admissionregistration.WebhookClientConfig{URL: ptr.To(e.hostile.URL + "/" + role), CABundle: e.authority()}
	}
	for _, namespace := range []string{"validating", "mutating"} {
		_, err := e.admin.CoreV1().Namespaces().Create(t.Context(),
			&core.Namespace{ObjectMeta: meta.ObjectMeta{Name: namespace}}, meta.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	_, err :=
		e.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(),
			&admissionregistration.ValidatingWebhookConfiguration{
				ObjectMeta: meta.ObjectMeta{Name: "hostile"},
				Webhooks: []admissionregistration.ValidatingWebhook{{
					Name: "validating.example.com", ClientConfig: client("validating"), Rules: rules,
					NamespaceSelector: selector("validating"), SideEffects: ptr.To(admissionregistration.SideEffectClassNone),
					AdmissionReviewVersions: []string{"v1"},
				}},
			}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	_, err =
		e.admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(),
			&admissionregistration.MutatingWebhookConfiguration{
				ObjectMeta: meta.ObjectMeta{Name: "hostile"},
				Webhooks: []admissionregistration.MutatingWebhook{{
					Name: "mutating.example.com", ClientConfig: client("mutating"), Rules: rules,
					NamespaceSelector: selector("mutating"), SideEffects: ptr.To(admissionregistration.SideEffectClassNone),
					AdmissionReviewVersions: []string{"v1"},
				}},
			}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// createDefinition creates a custom resource that is stored as v1, and converted to v2 by the hostile server.
func (e *environment) createDefinition(t *testing.T) {
	t.Helper()
	schema := &apiextensions.CustomResourceValidation{OpenAPIV3Schema: &apiextensions.JSONSchemaProps{
		Type: "object", XPreserveUnknownFields: ptr.To(true),
	}}
	client, err := apiextensionsclient.NewForConfig(e.Admin)
	if err != nil {
		t.Fatal(err)
	}
	_, err =
		client.ApiextensionsV1().CustomResourceDefinitions().Create(t.Context(), &apiextensions.CustomResourceDefinition{
			ObjectMeta: meta.ObjectMeta{Name: "widgets.example.com"},
			Spec: apiextensions.CustomResourceDefinitionSpec{
				Group: "example.com", Scope: apiextensions.ClusterScoped,
				Names: apiextensions.CustomResourceDefinitionNames{
					Plural: "widgets", Kind: "Widget", Singular: "widget", ListKind: "WidgetList",
				},
				Versions: []apiextensions.CustomResourceDefinitionVersion{
					{Name: "v1", Served: true, Storage: true, Schema: schema}, {Name: "v2", Served: true, Schema: schema},
				},
				Conversion: &apiextensions.CustomResourceConversion{
					Strategy: apiextensions.WebhookConverter,
					Webhook: &apiextensions.WebhookConversion{
						ConversionReviewVersions: []string{"v1"},
						ClientConfig: &apiextensions.WebhookClientConfig{
							URL: ptr.To(e.hostile.URL + "/conversion"), CABundle: e.authority(),
						},
					},
				},
			},
		}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.await(t, "an object of the custom resource", func(ctx context.Context) bool {
		return e.admin.RESTClient().Post().AbsPath("/apis/example.com/v1/widgets").
			Body([]byte(`{"apiVersion":"example.com/v1","kind":"Widget","metadata":{"name":"a"}}`)).Do(ctx).Error() == nil
	})
}

// createAPIService registers the hostile server as an extension API server.
func (e *environment) createAPIService(t *testing.T) {
	t.Helper()
	address, err := url.Parse(e.hostile.URL)
	if err != nil {
		t.Fatal(err)
	}
	port, err := strconv.Atoi(address.Port())
	if err != nil {
		t.Fatal(err)
	}
	_, err = e.admin.CoreV1().Services("default").Create(t.Context(), &core.Service{
		ObjectMeta: meta.ObjectMeta{Name: "hostile"},
		Spec:       core.ServiceSpec{Type: core.ServiceTypeExternalName, ExternalName: "localhost"},
	}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := aggregatorclient.NewForConfig(e.Admin)
	if err != nil {
		t.Fatal(err)
	}
	_, err = client.ApiregistrationV1().APIServices().Create(t.Context(), &apiregistration.APIService{
		ObjectMeta: meta.ObjectMeta{Name: "v1.hostile.example.com"},
		Spec: apiregistration.APIServiceSpec{
			Group: "hostile.example.com", Version: "v1", GroupPriorityMinimum: 1000, VersionPriority: 10,
			InsecureSkipTLSVerify: true,
			Service: &apiregistration.ServiceReference{
				Namespace: "default", Name: "hostile", Port: ptr.To(int32(port)),
			},
		},
	}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	e.await(t, "the APIService", func(ctx context.Context) bool {
		return e.admin.RESTClient().Get().AbsPath("/apis/hostile.example.com/v1").Do(ctx).Error() == nil
	})
}

// await waits for a condition.
func (e *environment) await(t *testing.T, what string, done func(context.Context) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true,
		func(ctx context.Context) (bool, error) { return done(ctx), nil })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}
