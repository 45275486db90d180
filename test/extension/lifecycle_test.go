package extension

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

func namespaces(s *fixture) {
	missing := s.objects.Resource(widgets).Namespace("no-such-namespace")
	if _, err := missing.Create(s.Context(), widget("a", 1), metav1.CreateOptions{}); !apierrors.IsNotFound(err) {
		s.Errorf("create in a namespace that does not exist: %v", err)
	}
	in := s.namespaced("ends")
	if _, err := in.Create(s.Context(), widget("a", 1), metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.finalizers("ends", `["demo.example.com/wait"]`) // keeps the namespace terminating
	if err := s.typed.CoreV1().Namespaces().Delete(s.Context(), "ends", metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
	s.await("the deletion of the content", func(ctx context.Context) error {
		list, err := in.List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("left are %v", list.Items)
		}
		return err
	})
	_, err := in.Create(s.Context(), widget("late", 1), metav1.CreateOptions{})
	if !apierrors.HasStatusCause(err, corev1.NamespaceTerminatingCause) {
		s.Errorf("create in a terminating namespace: %v", err)
	}
	s.finalizers("ends", "null")
	s.await("the end of the namespace", func(ctx context.Context) error {
		_, err := s.typed.CoreV1().Namespaces().Get(ctx, "ends", metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return nil
		}
		return fmt.Errorf("the namespace still exists: %w", err)
	})
}

// finalizers sets the finalizers of a namespace.
func (s *fixture) finalizers(namespace, list string) {
	s.Helper()
	patch := []byte(`{"metadata":{"finalizers":` + list + `}}`)
	namespaces := s.typed.CoreV1().Namespaces()
	if _, err := namespaces.Patch(s.Context(), namespace, types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		s.Fatal(err)
	}
}

// owners checks objects of both servers that own each other.
func owners(s *fixture) {
	in := s.namespaced("owners")
	configMaps := s.typed.CoreV1().ConfigMaps("owners")
	first := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}
	owner, err := configMaps.Create(s.Context(), first, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	yes := true
	middle := widget("middle", 1)
	middle.SetOwnerReferences([]metav1.OwnerReference{{
		APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID, BlockOwnerDeletion: &yes,
	}})
	s.blockingOwner(middle.DeepCopy())
	if middle, err = in.Create(s.Context(), middle, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	last := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "last", OwnerReferences: []metav1.OwnerReference{{
		APIVersion: "demo.example.com/v1", Kind: "Widget", Name: "middle", UID: middle.GetUID(),
	}}}}
	if _, err := configMaps.Create(s.Context(), last, metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	if err := configMaps.Delete(s.Context(), "owner", metav1.DeleteOptions{}); err != nil {
		s.Fatal(err)
	}
	s.await("garbage collection", func(ctx context.Context) error {
		if _, err := in.Get(ctx, "middle", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the widget still exists: %w", err)
		}
		if _, err := configMaps.Get(ctx, "last", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			return fmt.Errorf("the ConfigMap still exists: %w", err)
		}
		return nil
	})
}

// blockingOwner checks that OwnerReferencesPermissionEnforcement finds the owner's resource in the host's discovery,
// and sends the host a SubjectAccessReview for blocking its deletion.
func (s *fixture) blockingOwner(owned *unstructured.Unstructured) {
	s.Helper()
	create := rbacv1.PolicyRule{
		Verbs: []string{"create"}, APIGroups: []string{widgets.Group}, Resources: []string{"widgets"},
	}
	block := rbacv1.PolicyRule{
		Verbs: []string{"update"}, APIGroups: []string{""}, Resources: []string{"configmaps/finalizers"},
	}
	for name, test := range map[string]struct {
		rules []rbacv1.PolicyRule
		want  string // part of the error; empty: admitted
	}{
		"may-block":     {[]rbacv1.PolicyRule{create, block}, ""},
		"may-not-block": {[]rbacv1.PolicyRule{create}, "refers to a resource you can't set finalizers on"},
	} {
		user := rest.AnonymousClientConfig(s.host)
		user.BearerToken = s.account(name, test.rules...)
		in := dynamic.NewForConfigOrDie(user).Resource(widgets).Namespace("owners")
		_, err := in.Create(s.Context(), owned, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
			s.Errorf("%s: got %v, want %q", name, err, test.want)
		}
	}
}

// webhooks checks that webhooks of the host are called for the kinds of the extension server, but not for its
// definitions.
func webhooks(s *fixture) {
	var reviews atomic.Int32
	server := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		reviews.Add(1)
		body, _ := io.ReadAll(r.Body)
		var review admissionv1.AdmissionReview
		if err := json.Unmarshal(body, &review); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		answer := &admissionv1.AdmissionResponse{UID: review.Request.UID, Allowed: review.Request.Name != "denied"}
		if r.URL.Path == "/mutate" {
			patch := admissionv1.PatchTypeJSONPatch
			answer.PatchType, answer.Patch = &patch, []byte(`[{"op":"add","path":"/spec/color","value":"blue"}]`)
		}
		review.Response = answer
		_ = json.NewEncoder(w).Encode(review)
	}))
	s.Cleanup(server.Close)
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	config := func(path string) admissionregistrationv1.WebhookClientConfig {
		url := server.URL + path
		return admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: bundle}
	}
	none, fail := admissionregistrationv1.SideEffectClassNone, admissionregistrationv1.Fail
	rules := []admissionregistrationv1.RuleWithOperations{{
		Operations: []admissionregistrationv1.OperationType{"*"},
		Rule: admissionregistrationv1.Rule{
			APIGroups: []string{widgets.Group, "apiextensions.k8s.io"}, APIVersions: []string{"*"}, Resources: []string{"*"},
		},
	}}
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{"kubernetes.io/metadata.name": "webhooks"}}
	registration := s.typed.AdmissionregistrationV1()
	meta := metav1.ObjectMeta{Name: "widgets"}
	_, err :=
		registration.MutatingWebhookConfigurations().Create(s.Context(),
			&admissionregistrationv1.MutatingWebhookConfiguration{
				ObjectMeta: meta, Webhooks: []admissionregistrationv1.MutatingWebhook{{
					Name: "mutate.example.com", ClientConfig: config("/mutate"), Rules: rules, NamespaceSelector: selector,
					SideEffects: &none, FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"},
				}},
			}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	_, err =
		registration.ValidatingWebhookConfigurations().Create(s.Context(),
			&admissionregistrationv1.ValidatingWebhookConfiguration{
				ObjectMeta: meta, Webhooks: []admissionregistrationv1.ValidatingWebhook{{
					Name: "validate.example.com", ClientConfig: config("/validate"), Rules: rules, NamespaceSelector: selector,
					SideEffects: &none, FailurePolicy: &fail, AdmissionReviewVersions: []string{"v1"},
				}},
			}, metav1.CreateOptions{})
	if err != nil {
		s.Fatal(err)
	}
	in := s.namespaced("webhooks")
	s.await("the webhooks", func(ctx context.Context) error {
		created, err := in.Create(ctx, widget("allowed", 1), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err != nil {
			return err
		}
		if color := created.Object["spec"].(map[string]any)["color"]; color != "blue" {
			return fmt.Errorf("the color is %v", color)
		}
		_, err = in.Create(ctx, widget("denied", 1), metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "admission webhook") {
			_ = in.Delete(ctx, "denied", metav1.DeleteOptions{})
			return fmt.Errorf("a widget that the webhook denies: %w", err)
		}
		return nil
	})
	before := reviews.Load()
	s.apply(s.administrator(), s.document("kind: CustomResourceDefinition")+"# again\n")
	administrator := s.kubeconfig("administrator", s.administrator())
	s.run("--kubeconfig="+administrator, "annotate", "--overwrite", "crd/widgets.demo.example.com", "note=webhooks")
	if after := reviews.Load(); after != before {
		s.Errorf("the webhooks were called %d times for local administration", after-before)
	}
	for _, err := range []error{
		registration.MutatingWebhookConfigurations().Delete(s.Context(), "widgets", metav1.DeleteOptions{}),
		registration.ValidatingWebhookConfigurations().Delete(s.Context(), "widgets", metav1.DeleteOptions{}),
	} {
		if err != nil {
			s.Fatal(err)
		}
	}
}

// policyManifest has policies whose parameters are in the host and in the extension server, and a mutation.
const policyManifest = `
{apiVersion: v1, kind: Namespace, metadata: {name: policies, labels: {team: blue}}}
---
{apiVersion: v1, kind: ConfigMap, metadata: {name: limit, namespace: policies}, data: {max: "10"}}
---
{apiVersion: demo.example.com/v1, kind: Widget, metadata: {name: smallest, namespace: policies}, spec: {size: 5}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: from-host}
spec:
  paramKind: {apiVersion: v1, kind: ConfigMap}
  matchConstraints:
    resourceRules:
    - {apiGroups: [demo.example.com], apiVersions: ["*"], operations: [CREATE], resources: [widgets]}
  validations:
  - expression: "namespaceObject.metadata.labels['team'] != 'blue' || object.spec.size <= int(params.data.max)"
    message: larger than the ConfigMap allows
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: from-host}
spec:
  policyName: from-host
  validationActions: [Deny]
  paramRef: {name: limit, parameterNotFoundAction: Deny}
  matchResources: {namespaceSelector: {matchLabels: {team: blue}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: from-extension}
spec:
  paramKind: {apiVersion: demo.example.com/v1, kind: Widget}
  matchConstraints:
    resourceRules:
    - {apiGroups: [demo.example.com], apiVersions: ["*"], operations: [CREATE], resources: [widgets]}
  validations:
  - expression: "object.spec.size >= params.spec.size"
    message: smaller than the smallest widget
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: from-extension}
spec:
  policyName: from-extension
  validationActions: [Deny]
  paramRef: {name: smallest, parameterNotFoundAction: Deny}
  matchResources: {namespaceSelector: {matchLabels: {team: blue}}}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicy
metadata: {name: paint}
spec:
  reinvocationPolicy: Never
  matchConstraints:
    resourceRules:
    - {apiGroups: [demo.example.com], apiVersions: ["*"], operations: [CREATE], resources: [widgets]}
  mutations:
  - patchType: ApplyConfiguration
    applyConfiguration: {expression: "Object{spec: Object.spec{color: 'green'}}"}
---
apiVersion: admissionregistration.k8s.io/v1
kind: MutatingAdmissionPolicyBinding
metadata: {name: paint}
spec:
  policyName: paint
  matchResources: {namespaceSelector: {matchLabels: {team: blue}}}
`

func policies(s *fixture) {
	s.run("--kubeconfig="+s.hostFile, "apply", "-f", s.file("policies.yaml", []byte(policyManifest)))
	in := s.objects.Resource(widgets).Namespace("policies")
	dryRun := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	s.await("the policies", func(ctx context.Context) error {
		for size, want := range map[int64]string{
			11: "larger than the ConfigMap allows", 4: "smaller than the smallest widget",
		} {
			if _, err := in.Create(ctx, widget("a", size), dryRun); err == nil || !strings.Contains(err.Error(), want) {
				return fmt.Errorf("size %d: %w", size, err)
			}
		}
		created, err := in.Create(ctx, widget("a", 7), dryRun)
		if err != nil {
			return err
		}
		if color := created.Object["spec"].(map[string]any)["color"]; color != "green" {
			return fmt.Errorf("the color is %v", color)
		}
		return nil
	})
}

// rotatedAuthority checks that the extension server accepts a new front-proxy authority as soon as the host publishes
// it.
func rotatedAuthority(s *fixture) {
	next := must(upstream.NewAuthority("next-front-proxy"))(s)
	proxy := s.direct(0)
	var err error
	if proxy.CertData, proxy.KeyData, err = next.Client("front-proxy-client"); err != nil {
		s.Fatal(err)
	}
	path := "/apis/demo.example.com/v1/widgets"
	if got := s.code(proxy, path, impersonating); got != http.StatusUnauthorized && got != http.StatusForbidden {
		s.Fatalf("before: %d", got)
	}
	configMaps := s.typed.CoreV1().ConfigMaps(metav1.NamespaceSystem)
	s.await("the ConfigMap", func(ctx context.Context) error {
		published, err := configMaps.Get(ctx, "extension-apiserver-authentication", metav1.GetOptions{})
		if err != nil {
			return err
		}
		published.Data["requestheader-client-ca-file"] += string(next.PEM())
		_, err = configMaps.Update(ctx, published, metav1.UpdateOptions{})
		return err
	})
	s.await("the new authority", func(context.Context) error {
		if got := s.code(proxy, path, impersonating); got != http.StatusOK {
			return fmt.Errorf("status %d", got)
		}
		return nil
	})
	if _, err := s.objects.Resource(widgets).List(s.Context(), metav1.ListOptions{}); err != nil {
		s.Errorf("through the host, with the former certificate: %v", err)
	}
}

// deadReplica checks that the host's discovery and its objects stay available when a replica is killed or stops.
func deadReplica(s *fixture) {
	in := s.namespaced("replicas")
	if _, err := in.Create(s.Context(), widget("a", 1), metav1.CreateOptions{}); err != nil {
		s.Fatal(err)
	}
	s.replicas[0].Server().Kill()
	s.await("requests after a replica was killed", func(ctx context.Context) error {
		_, err := in.Get(ctx, "a", metav1.GetOptions{})
		return err
	})
	s.awaitAvailable()
	if err := s.replicas[0].Start(s.Context()); err != nil {
		s.Fatal(err)
	}
	if err := s.replicas[1].Server().Stop(); err != nil {
		s.Errorf("a graceful stop: %v", err)
	}
	s.await("requests after a replica has stopped", func(ctx context.Context) error {
		_, err := in.Get(ctx, "a", metav1.GetOptions{})
		return err
	})
	s.awaitAvailable()
	if _, err := s.typed.Discovery().ServerResourcesForGroupVersion("demo.example.com/v1"); err != nil {
		s.Errorf("discovery: %v", err)
	}
	reader := s.direct(0)
	reader.BearerToken = s.token("reader")
	if _, err := dynamic.NewForConfigOrDie(reader).Resource(widgets).List(s.Context(), metav1.ListOptions{}); err != nil {
		s.Errorf("the restarted replica: %v", err)
	}
	if err := s.replicas[1].Start(s.Context()); err != nil {
		s.Fatal(err)
	}
}
