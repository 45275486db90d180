package patch

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizerfactory"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/admission/plugins"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/serviceresolver"
)

// webhookTarget is a kind with a webhook that mutates and one that validates. Both respond with the same body.
type webhookTarget struct {
	chain     *admission.Chain
	target    resource.Target
	responses atomic.Pointer[func(uid string) []byte]
}

// RoundTrip implements http.RoundTripper.
func (w *webhookTarget) RoundTrip(r *http.Request) (*http.Response, error) {
	var review struct{ Request struct{ UID string } }
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil {
		return nil, err
	}
	body := (*w.responses.Load())(review.Request.UID)
	return &http.Response{
		StatusCode: http.StatusOK, Header: http.Header{"Content-Type": {"application/json"}},
		Body: io.NopCloser(bytes.NewReader(body)), Request: r,
	}, nil
}

// newWebhookTarget sets up the plugins of webhooks as the server does.
func newWebhookTarget(t testing.TB) *webhookTarget {
	t.Helper()
	w := &webhookTarget{}
	self := admissionregistrationv1.WebhookClientConfig{
		Service: &admissionregistrationv1.ServiceReference{Namespace: "default", Name: "kubernetes", Port: new(int32)},
	}
	*self.Service.Port = 443
	all := []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{"*"},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{"*"}, APIVersions: []string{"*"}, Resources: []string{"*/*"},
		},
	}}
	fail, none, seconds := admissionregistrationv1.Fail, admissionregistrationv1.SideEffectClassNone, int32(10)
	client := fake.NewClientset(
		&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}},
		&admissionregistrationv1.MutatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "m"},
			Webhooks: []admissionregistrationv1.MutatingWebhook{{
				Name: "m.example.com", ClientConfig: self, Rules: all, FailurePolicy: &fail,
				SideEffects: &none, TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
				NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
			}},
		},
		&admissionregistrationv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "v"},
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: "v.example.com", ClientConfig: self, Rules: all, FailurePolicy: &fail,
				SideEffects: &none, TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
				NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
			}},
		},
	)
	catalogs := &resource.CatalogHolder{}
	catalogs.Publish(resource.NewCatalog(builtin.Definitions(builtin.Options{})...))
	factory := informers.NewSharedInformerFactory(client, 0)
	made, err := plugins.New(plugins.Options{
		Selection: plugins.Selection{Control: []string{plugins.MutatingAdmissionWebhook, plugins.ValidatingAdmissionWebhook}},
		Client:    client, Dynamic: dynamic.New(nil), Informers: factory, Parameters: factory,
		Services: webhook.NewDefaultServiceResolver(), Authorizer: authorizerfactory.NewAlwaysAllowAuthorizer(),
		Serves:         func(schema.GroupVersionResource) bool { return true },
		Authentication: serviceresolver.Clients{Local: w, MaxResponse: 1 << 20}.Wrap, Stopped: t.Context().Done(),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.chain = &admission.Chain{}
	for _, plugin := range made {
		w.chain.Plugins = append(w.chain.Plugins, admission.Upstream(plugin.Name, plugin.Upstream, catalogs))
	}
	factory.Start(t.Context().Done())
	factory.WaitForCacheSync(t.Context().Done())
	match, ok := catalogs.Current().Lookup("", "v1", "pods")
	if !ok {
		t.Fatal("pods are not served")
	}
	w.target = targetOf(match)
	w.awaitCalls(t)
	return w
}

// awaitCalls returns when the webhooks are in force.
func (w *webhookTarget) awaitCalls(t testing.TB) {
	t.Helper()
	refused := func(context.Context) (bool, error) {
		return w.admit(t, func(string) []byte { return []byte("no JSON") }) != nil, nil
	}
	if err := wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, refused); err != nil {
		t.Fatalf("the webhooks are not called: %v", err)
	}
}

// admit runs a create of a pod through the plugins. Objects that they admit can be stored.
func (w *webhookTarget) admit(t testing.TB, respond func(uid string) []byte) error {
	t.Helper()
	w.responses.Store(&respond)
	pod, _, _, err :=
		w.target.Version.Codec.Decode([]byte(`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"a","namespace":"default",
		"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i","env":[{"name":"A","value":"1"}]}]}}`), "application/json", resource.Ignore)
	if err != nil {
		t.Fatal(err)
	}
	attributes := &admission.Attributes{
		Operation: admission.Create, Definition: w.target.Definition, Version: w.target.Version, Kind: w.target.Version.Kind,
		Namespace: namespace, Name: name, Object: pod, Options: &metav1.CreateOptions{}, User: &user.DefaultInfo{Name: "u"},
	}
	if err := w.chain.Admit(t.Context(), attributes); err != nil {
		return err
	}
	if _, err := w.target.Version.Codec.Store(t.Context(), attributes.Object); err != nil {
		t.Errorf("an admitted object cannot be stored: %v", err)
	}
	return w.chain.Validate(t.Context(), attributes)
}

// FuzzWebhookPatch: a JSON patch of a webhook gives an object that can be stored, or an error.
func FuzzWebhookPatch(f *testing.F) {
	for _, text := range []string{
		`[]`, `null`, `{}`, `[{"op":"test","path":""}]`, `[{"op":"add","path":"/metadata/annotations","value":{"a":"b"}}]`,
		`[{"op":"replace","path":"","value":null}]`, `[{"op":"remove","path":"/spec"}]`,
		`[{"op":"copy","from":"/spec","path":"/spec/x"}]`, `[{"op":"add","path":"/spec/containers/-","value":{"name":"d"}}]`,
		`[{"op":"add","path":"/spec/containers/9223372036854775807","value":{}}]`,
		`[{"op":"move","from":"/spec/containers/0","path":"/spec/containers/-1"}]`,
		`[{"op":"test","path":"/spec/containers/0"}]`, `[{"op":"replace","path":"/kind","value":"Secret"}]`,
		`[{"op":"add","path":"/spec/containers/0/env/0/value"}]`, `[{"op":"copy","from":"","path":"/metadata/x"}]`,
	} {
		f.Add([]byte(text))
	}
	w := newWebhookTarget(f)
	f.Fuzz(func(t *testing.T, patch []byte) {
		_ = w.admit(t, func(uid string) []byte {
			return fmt.Appendf(nil,
				`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":%q,"allowed":true,"patchType":"JSONPatch","patch":%q}}`,
				uid, base64.StdEncoding.EncodeToString(patch))
		})
	})
}

// FuzzAdmissionReview: any body that a webhook responds with gives an object that can be stored, or an error. "UID" in
// the body is replaced by the right one.
func FuzzAdmissionReview(f *testing.F) {
	for _, text := range []string{
		``, `null`, `[]`, `{`, `{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}`,
		`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"UID","allowed":true}}`,
		`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"UID","allowed":false,"status":{"code":-1,"reason":"x","details":{"causes":[{}]}}}}`,
		`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":"UID","allowed":true,"warnings":["a\u0000"],"auditAnnotations":{"":"x"}}}`,
		`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","response":{"uid":"UID","allowed":true,"patch":"!"}}`,
		`{"kind":"Pod","apiVersion":"v1"}`, `{"kind":"Status","apiVersion":"v1","status":"Failure","code":409}`,
	} {
		f.Add([]byte(text))
	}
	w := newWebhookTarget(f)
	f.Fuzz(func(t *testing.T, body []byte) {
		_ = w.admit(t, func(uid string) []byte { return bytes.ReplaceAll(body, []byte("UID"), []byte(uid)) })
	})
}

// TestPanicOfAPatchIsAnError: upstream's plugin panics, and kube-apiserver breaks the connection.
func TestPanicOfAPatchIsAnError(t *testing.T) {
	w := newWebhookTarget(t)
	err := w.admit(t, func(uid string) []byte {
		return fmt.Appendf(nil,
			`{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1","response":{"uid":%q,"allowed":true,"patchType":"JSONPatch","patch":%q}}`,
			uid, base64.StdEncoding.EncodeToString([]byte(`[{"op":"test","path":""}]`)))
	})
	if !apierrors.IsInternalError(err) || !strings.Contains(err.Error(), "MutatingAdmissionWebhook has panicked") {
		t.Errorf("got %v", err)
	}
}

// TestHugeWebhookResponse: what a webhook responds with is not read beyond the limit.
func TestHugeWebhookResponse(t *testing.T) {
	w := newWebhookTarget(t)
	huge := bytes.Repeat([]byte(" "), 64<<20)
	err := w.admit(t, func(string) []byte { return huge })
	if err == nil || !bytes.Contains([]byte(err.Error()), []byte("the response exceeds the limit of 1048576 bytes")) {
		t.Errorf("got %v", err)
	}
}
