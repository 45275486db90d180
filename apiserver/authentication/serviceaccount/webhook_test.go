package serviceaccount_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	featuregatetesting "k8s.io/component-base/featuregate/testing"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/authentication"

	"quorate.dev/apiserver/authorization"
	"quorate.dev/apiserver/resource"
)

var webhooks = resource.Key{GroupResource: schema.GroupResource{
	Group: admissionregistration.GroupName, Resource: "validatingwebhookconfigurations",
}}

// newWebhooks returns a configuration with one webhook for Deployments, behind a Service.
func newWebhooks() *admissionregistration.ValidatingWebhookConfiguration {
	none, fail := admissionregistration.SideEffectClassNone, admissionregistration.Fail
	equivalent, all, seconds := admissionregistration.Equivalent, admissionregistration.AllScopes, int32(5)
	return &admissionregistration.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "checks"},
		Webhooks: []admissionregistration.ValidatingWebhook{{
			Name: "checks.example.com", SideEffects: &none, FailurePolicy: &fail, MatchPolicy: &equivalent,
			TimeoutSeconds: &seconds, AdmissionReviewVersions: []string{"v1"},
			NamespaceSelector: &metav1.LabelSelector{}, ObjectSelector: &metav1.LabelSelector{},
			ClientConfig: admissionregistration.WebhookClientConfig{
				Service: &admissionregistration.ServiceReference{Namespace: "checks", Name: "hook", Port: 443},
			},
			Rules: []admissionregistration.RuleWithOperations{{
				Operations: []admissionregistration.OperationType{"*"},
				Rule: admissionregistration.Rule{
					APIGroups: []string{"apps"}, APIVersions: []string{"*"}, Resources: []string{"deployments"}, Scope: &all,
				},
			}},
		}},
	}
}

// forWebhooks returns a request for a token that is bound to newWebhooks.
func forWebhooks(audience, group string) authentication.TokenRequestSpec {
	return authentication.TokenRequestSpec{
		ExpirationSeconds: 3600, Audiences: []string{audience},
		BoundObjectRef: &authentication.BoundObjectReference{
			APIVersion: "admissionregistration.k8s.io/v1", Kind: "ValidatingWebhookConfiguration", Name: "checks",
		},
		Attestations: map[string]authentication.AttestationValue{
			authentication.AttestationAdmissionReviewAPIGroups: {group},
		},
	}
}

func (s *tokenServer) refusal(t *testing.T, spec authentication.TokenRequestSpec) string {
	t.Helper()
	_, err := s.Call(t.Context(),
		resource.Key{GroupResource: serviceAccounts, Subresource: "token", Namespace: "default", Name: "default"},
		&authentication.TokenRequest{Spec: spec})
	if err == nil {
		t.Fatal("the token is issued")
	}
	return err.Error()
}

func TestTokenBoundToWebhooks(t *testing.T) {
	s := newTokenServer(t)
	if _, err := s.Create(t.Context(), webhooks, newWebhooks(), resource.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	const hook = "https://hook.checks.svc:443/"
	const disabled = "cannot bind token to object of type admissionregistration.k8s.io/v1, " +
		"Kind=ValidatingWebhookConfiguration (feature gate APIServerWebhookAuthenticationToken is disabled)"
	if got := s.refusal(t, forWebhooks(hook, "apps")); got != disabled {
		t.Errorf("with the gate disabled: %s, want %s", got, disabled)
	}
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
		features.APIServerWebhookAuthenticationToken, true)
	for _, spec := range []authentication.TokenRequestSpec{forWebhooks(hook, "apps"), forWebhooks("https://other", "*")} {
		answer := s.issue(t, spec)
		if answer.Spec.ExpirationSeconds != 600 {
			t.Errorf("the token is valid for %d seconds, want 600", answer.Spec.ExpirationSeconds)
		}
		if s.who(t, answer.Status.Token, spec.Audiences...) == nil {
			t.Error("the token is not accepted")
		}
	}
	unknown := forWebhooks(hook, "apps")
	unknown.BoundObjectRef.Name = "unknown"
	recreated := forWebhooks(hook, "apps")
	recreated.BoundObjectRef.UID = "another"
	for want, spec := range map[string]authentication.TokenRequestSpec{
		"token request denied":  forWebhooks(hook, "batch"),
		"request denied":        forWebhooks("https://other", "apps"),
		"denied":                unknown,
		"does not match":        recreated,
		"api server audiences ": forWebhooks(issuer, "apps"),
	} {
		if got := s.refusal(t, spec); !strings.Contains(got, want) {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

// TestAttestationIsAuthorized refuses a token for webhooks to an account that may not attest.
func TestAttestationIsAuthorized(t *testing.T) {
	featuregatetesting.SetFeatureGateDuringTest(t, utilfeature.DefaultFeatureGate,
		features.APIServerWebhookAuthenticationToken, true)
	s := newTokenServerOf(t, authorization.AlwaysDeny{})
	const want = `admissionreviewapigroups.authentication.k8s.io "apps" is forbidden: ` +
		`User "system:serviceaccount:default:default" cannot attest resource "admissionReviewAPIGroups" ` +
		`in API group "authentication.k8s.io" at the cluster scope: Everything is forbidden.`
	if got := s.refusal(t, forWebhooks("https://hook", "apps")); !strings.EqualFold(got, want) {
		t.Errorf("got %s, want %s", got, want)
	}
}
