package serviceaccount

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	claims "k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/kubernetes/pkg/apis/admissionregistration"
	"k8s.io/kubernetes/pkg/apis/authentication"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/request"
	"quorate.dev/apiserver/resource"
)

const (
	// longestForWebhook is the longest lifetime of a token that is bound to a webhook configuration, in seconds.
	longestForWebhook = 10 * 60
	// everyGroup attests that a token is valid in reviews of all API groups.
	everyGroup = "*"
	// webhookPort is the port of a webhook's Service unless the configuration has another one.
	webhookPort = 443
)

// These are the kinds of webhook configurations that tokens can be bound to, in this version only.
var (
	validatingKind = admissionregistrationv1.SchemeGroupVersion.WithKind("ValidatingWebhookConfiguration")
	mutatingKind   = admissionregistrationv1.SchemeGroupVersion.WithKind("MutatingWebhookConfiguration")
)

// hook has the parts of one webhook that determine which tokens it accepts.
type hook struct {
	client admissionregistration.WebhookClientConfig
	rules  []admissionregistration.RuleWithOperations
}

// bindWebhooks returns the webhook configuration to which body binds the token, or an error if the service account must
// not have such a token. bindWebhooks shortens the lifetime in body to longestForWebhook.
// Checks and their order mirror upstream's TokenREST.Create. The errors do not disclose whether the configuration
// exists.
func (t *Tokens) bindWebhooks(
	ctx context.Context, from source, account *core.ServiceAccount, body *authentication.TokenRequest,
	kind schema.GroupVersionKind, now time.Time,
) (binding, error) {
	if !utilfeature.DefaultFeatureGate.Enabled(features.APIServerWebhookAuthenticationToken) {
		return binding{}, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s (feature gate %s is "+
			"disabled)", kind, features.APIServerWebhookAuthenticationToken))
	}
	ours := t.config.Audiences()
	if slices.ContainsFunc(body.Spec.Audiences, func(one string) bool { return slices.Contains(ours, one) }) {
		return binding{}, apierrors.NewBadRequest("api server audiences are invalid for webhook token requests")
	}
	// The validation of the request guarantees that there is one group and one audience.
	group := body.Spec.Attestations[authentication.AttestationAdmissionReviewAPIGroups][0]
	audience := body.Spec.Audiences[0]
	body.Spec.ExpirationSeconds = min(body.Spec.ExpirationSeconds, longestForWebhook)
	if err := authorizeAttestation(ctx, from.decide, account, group); err != nil {
		return binding{}, err
	}
	bound, hooks, err := webhooksOf(ctx, from.objects, kind, body.Spec.BoundObjectRef.Name)
	denied := err != nil || (bound.webhooks.DeletionTimestamp != nil && now.After(bound.webhooks.DeletionTimestamp.Time))
	if !denied && group != everyGroup {
		denied = !slices.ContainsFunc(hooks, func(h hook) bool { return h.reviews(group) && h.expects(audience) })
	}
	if denied {
		return binding{}, apierrors.NewForbidden(schema.GroupResource{Resource: "serviceaccounts/token"}, account.Name,
			errors.New("token request denied"))
	}
	return bound, nil
}

// authorizeAttestation checks that the account may attest that it sends reviews of an API group.
func authorizeAttestation(
	ctx context.Context, decide authorizer.UnconditionalAuthorizer, account *core.ServiceAccount, group string,
) error {
	attributes := &authorizer.AttributesRecord{
		User: (&claims.ServiceAccountInfo{
			Name: account.Name, Namespace: account.Namespace, UID: string(account.UID),
		}).UserInfo(),
		Verb: "attest", APIVersion: "*", APIGroup: authentication.GroupName,
		Resource: authentication.AttestationAdmissionReviewAPIGroups, Name: group, ResourceRequest: true,
	}
	decision, reason, err := decide.Authorize(ctx, attributes)
	switch {
	case decision == authorizer.DecisionAllow:
		return nil
	case err != nil && reason != "":
		reason = fmt.Sprintf("%v: %s", err, reason)
	case err != nil:
		reason = err.Error()
	}
	return request.Forbidden(attributes, reason)
}

// webhooksOf reads a webhook configuration and its webhooks.
func webhooksOf(
	ctx context.Context, objects resource.Client, kind schema.GroupVersionKind, name string,
) (bound binding, hooks []hook, err error) {
	if kind == validatingKind {
		found, err := get[*admissionregistration.ValidatingWebhookConfiguration](ctx, objects, validatingWebhooks, "", name)
		if err != nil {
			return binding{}, nil, err
		}
		for _, one := range found.Webhooks {
			hooks = append(hooks, hook{one.ClientConfig, one.Rules})
		}
		return binding{webhooks: &found.ObjectMeta, kind: kind}, hooks, nil
	}
	found, err := get[*admissionregistration.MutatingWebhookConfiguration](ctx, objects, mutatingWebhooks, "", name)
	if err != nil {
		return binding{}, nil, err
	}
	for _, one := range found.Webhooks {
		hooks = append(hooks, hook{one.ClientConfig, one.Rules})
	}
	return binding{webhooks: &found.ObjectMeta, kind: kind}, hooks, nil
}

// reviews reports whether a rule of the webhook matches an API group.
func (h hook) reviews(group string) bool {
	return slices.ContainsFunc(h.rules, func(rule admissionregistration.RuleWithOperations) bool {
		return slices.Contains(rule.APIGroups, "*") || slices.Contains(rule.APIGroups, group)
	})
}

// expects reports whether the webhook expects tokens with an audience: its URL, or the URL of its Service.
func (h hook) expects(audience string) bool {
	if h.client.URL != nil && audience == *h.client.URL {
		return true
	}
	service := h.client.Service
	if service == nil {
		return false
	}
	port, path := service.Port, "/"
	if port == 0 {
		port = webhookPort
	}
	if service.Path != nil {
		path += strings.TrimPrefix(*service.Path, "/")
	}
	return audience == fmt.Sprintf("https://%s.%s.svc:%d%s", service.Name, service.Namespace, port, path)
}

// configurations returns the webhook configuration of the binding in the types of serviceaccount.Claims.
func (b binding) configurations() (
	validating *admissionregistrationv1.ValidatingWebhookConfiguration,
	mutating *admissionregistrationv1.MutatingWebhookConfiguration,
) {
	if b.webhooks == nil {
		return nil, nil
	}
	metadata := metav1.ObjectMeta{Name: b.webhooks.Name, UID: b.webhooks.UID}
	if b.kind == validatingKind {
		return &admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: metadata}, nil
	}
	return nil, &admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: metadata}
}
