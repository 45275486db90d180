package serviceaccount

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/apiserver/pkg/audit"
	claims "k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/token/jwt"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/features"
	utilfeature "k8s.io/apiserver/pkg/util/feature"
	"k8s.io/apiserver/pkg/warning"
	"k8s.io/kubernetes/pkg/apis/authentication"
	"k8s.io/kubernetes/pkg/apis/authentication/validation"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/kubernetes/pkg/serviceaccount"

	"quorate.dev/apiserver/resource"
)

var requestKind = schema.GroupKind{Group: authentication.GroupName, Kind: "TokenRequest"}

// source provides the data for requests to serviceaccounts/token. objects reads the service accounts and the objects
// that tokens are bound to, and decide authorizes tokens for webhooks.
type source struct {
	objects resource.Client
	decide  authorizer.UnconditionalAuthorizer
}

// Request returns a function that returns the handler of serviceaccounts/token, which reads the objects that tokens are
// bound to, or nil if this server cannot issue tokens.
func (t *Tokens) Request(decide authorizer.UnconditionalAuthorizer) func(objects resource.Client) resource.Action {
	return func(objects resource.Client) resource.Action {
		if t.generator() == nil {
			return nil
		}
		return func(ctx context.Context, call resource.Call) (runtime.Object, error) {
			return t.issue(ctx, source{objects, decide}, call)
		}
	}
}

func (t *Tokens) issue(ctx context.Context, from source, call resource.Call) (runtime.Object, error) {
	request, ok := call.Body.(*authentication.TokenRequest)
	if !ok {
		return nil, apierrors.NewBadRequest(fmt.Sprintf("not a TokenRequest: %T", call.Body))
	}
	if err := checkPlace(request, call); err != nil {
		return nil, err
	}
	object, err := from.objects.Get(ctx,
		resource.Key{GroupResource: serviceAccounts, Namespace: call.Namespace, Name: call.Name},
		resource.ReadOptions{})
	if err != nil {
		return nil, err
	}
	account := object.(*core.ServiceAccount)
	now := t.clock.Now()
	if err := t.complete(ctx, request, account, now); err != nil {
		return nil, err
	}
	if err := call.Validate(ctx); err != nil {
		return nil, err
	}
	bound, err := t.bind(ctx, from, account, request, now)
	if err != nil {
		return nil, err
	}
	t.shorten(ctx, request)
	return t.answer(ctx, request, account, bound, now)
}

// checkPlace returns an error if the name or namespace in the body differs from the path.
func checkPlace(request *authentication.TokenRequest, call resource.Call) error {
	metadata := field.NewPath("metadata")
	var errs field.ErrorList
	switch {
	case request.Name != "" && request.Name != call.Name:
		errs = append(errs,
			field.Invalid(metadata.Child("name"), request.Name, "must match the service account name if specified"))
	case request.Namespace != "" && request.Namespace != call.Namespace:
		errs = append(errs,
			field.Invalid(metadata.Child("namespace"), request.Namespace,
				"must match the service account namespace if specified"))
	default:
		return nil
	}
	return apierrors.NewInvalid(requestKind, call.Name, errs)
}

// complete sets the defaults of a request and validates it.
func (t *Tokens) complete(
	ctx context.Context, request *authentication.TokenRequest, account *core.ServiceAccount, now time.Time,
) error {
	if request.UID != "" && request.UID != account.UID {
		issue := fmt.Sprintf("the UID in the token request (%s) does not match the UID of the service account (%s)",
			request.UID, account.UID)
		if utilfeature.DefaultFeatureGate.Enabled(features.TokenRequestServiceAccountUIDValidation) {
			return apierrors.NewConflict(schema.GroupResource{Group: requestKind.Group, Resource: requestKind.Kind},
				account.Name, errors.New(issue))
		}
		audit.AddAuditAnnotation(ctx, "authentication.k8s.io/token-request-uid-mismatch", issue)
		warning.AddWarning(ctx, "", issue+" but TokenRequestServiceAccountUIDValidation is not enabled. "+
			"In the future, this will return a conflict error")
	}
	if len(request.Spec.Audiences) == 0 {
		request.Spec.Audiences = t.config.Audiences()
	}
	request.Name, request.Namespace = account.Name, account.Namespace
	if request.UID == "" {
		request.UID = account.UID
	}
	request.CreationTimestamp = metav1.NewTime(now)
	request.Status = authentication.TokenRequestStatus{}
	if errs := validation.ValidateTokenRequest(request); len(errs) > 0 {
		return apierrors.NewInvalid(requestKind, "", errs)
	}
	return nil
}

// shorten limits the requested lifetime to --service-account-max-token-expiration.
func (t *Tokens) shorten(ctx context.Context, request *authentication.TokenRequest) {
	longest := int64(t.config.ServiceAccountMaxLifetime / time.Second)
	if longest > 0 && request.Spec.ExpirationSeconds > longest {
		warning.AddWarning(ctx, "",
			fmt.Sprintf("requested expiration of %d seconds shortened to %d seconds", request.Spec.ExpirationSeconds, longest))
		request.Spec.ExpirationSeconds = longest
	}
}

// binding has the objects that a token is bound to: a pod and its node, a Secret, a node, or a webhook configuration.
type binding struct {
	// webhooks is the metadata of a webhook configuration, kind its kind.
	webhooks *metav1.ObjectMeta
	kind     schema.GroupVersionKind

	pod    *core.Pod
	secret *core.Secret
	node   *core.Node
}

// bind reads the object in the request's boundObjectRef.
func (t *Tokens) bind(
	ctx context.Context, from source, account *core.ServiceAccount, request *authentication.TokenRequest, now time.Time,
) (binding, error) {
	reference, objects := request.Spec.BoundObjectRef, from.objects
	if reference == nil {
		return binding{}, nil
	}
	kind := schema.FromAPIVersionAndKind(reference.APIVersion, reference.Kind)
	var bound binding
	var uid types.UID
	var err error
	switch kind.GroupKind() {
	case schema.GroupKind{Kind: "Pod"}:
		bound, uid, err = bindPod(ctx, objects, account, reference.Name)
	case schema.GroupKind{Kind: "Node"}:
		if bound.node, err = get[*core.Node](ctx, objects, nodes, "", reference.Name); err == nil {
			uid = bound.node.UID
		}
	case schema.GroupKind{Kind: "Secret"}:
		if bound.secret, err = get[*core.Secret](ctx, objects, secrets, account.Namespace, reference.Name); err == nil {
			uid = bound.secret.UID
		}
	default:
		if kind != validatingKind && kind != mutatingKind {
			return bound, apierrors.NewBadRequest(fmt.Sprintf("cannot bind token to object of type %s", kind))
		}
		if bound, err = t.bindWebhooks(ctx, from, account, request, kind, now); err == nil {
			uid = bound.webhooks.UID
		}
	}
	if err == nil && reference.UID != "" && reference.UID != uid {
		err = apierrors.NewConflict(schema.GroupResource{Group: kind.Group, Resource: kind.Kind}, reference.Name,
			fmt.Errorf("the UID in the bound object reference (%s) does not match the UID in record. The object might have "+
				"been deleted and then recreated", reference.UID))
	}
	return bound, err
}

// bindPod reads a pod and its node, which the token also contains.
func bindPod(
	ctx context.Context, objects resource.Client, account *core.ServiceAccount, name string,
) (binding, types.UID, error) {
	pod, err := get[*core.Pod](ctx, objects, pods, account.Namespace, name)
	if err != nil {
		return binding{}, "", err
	}
	if pod.Spec.ServiceAccountName != account.Name {
		return binding{}, "", apierrors.NewBadRequest(fmt.Sprintf("cannot bind token for serviceaccount %q to pod running "+
			"with different serviceaccount name.", account.Name))
	}
	bound := binding{pod: pod}
	if pod.Spec.NodeName == "" {
		return bound, pod.UID, nil
	}
	bound.node, err = get[*core.Node](ctx, objects, nodes, "", pod.Spec.NodeName)
	if apierrors.IsNotFound(err) {
		bound.node, err = &core.Node{ObjectMeta: metav1.ObjectMeta{Name: pod.Spec.NodeName}}, nil
	}
	return bound, pod.UID, err
}

func get[T runtime.Object](
	ctx context.Context, objects resource.Client, gr schema.GroupResource, namespace, name string,
) (T, error) {
	object, err := objects.Get(ctx,
		resource.Key{GroupResource: gr, Namespace: namespace, Name: name}, resource.ReadOptions{})
	if err != nil {
		var none T
		return none, err
	}
	return object.(T), nil
}

// answer signs the token and returns the response. With --service-account-extend-token-expiration, a pod's token with
// the lifetime that kubelets request is valid for extendedLifetime, up to a year, so that programs that do not reload
// the token get warnings instead of errors.
func (t *Tokens) answer(
	ctx context.Context, request *authentication.TokenRequest, account *core.ServiceAccount, bound binding, now time.Time,
) (runtime.Object, error) {
	lifetime, warnAfter := request.Spec.ExpirationSeconds, int64(0)
	if t.config.ServiceAccountExtendExpiry && bound.pod != nil &&
		lifetime == serviceaccount.WarnOnlyBoundTokenExpirationSeconds && t.isForUs(request.Spec.Audiences) {
		lifetime, warnAfter = t.extendedLifetime, lifetime
	}
	validating, mutating := bound.configurations()
	public, private, err := serviceaccount.Claims(*account, bound.pod, bound.secret, bound.node, validating, mutating,
		lifetime, warnAfter, request.Spec.Audiences, request.Spec.Attestations)
	if err != nil {
		return nil, err
	}
	token, err := t.generator().GenerateToken(ctx, public, private)
	if err != nil {
		return nil, apierrors.NewInternalError(fmt.Errorf("failed to generate token: %w", err))
	}
	answer := request.DeepCopy()
	answer.Status = authentication.TokenRequestStatus{
		Token:               token,
		ExpirationTimestamp: metav1.NewTime(now.Add(time.Duration(request.Spec.ExpirationSeconds) * time.Second)),
	}
	if public.ID != "" {
		audit.AddAuditAnnotation(ctx, claims.IssuedCredentialIDAuditAnnotationKey, jwt.CredentialIDForJTI(public.ID))
	}
	return answer, nil
}

// isForUs reports whether all audiences of a token are audiences of this server.
func (t *Tokens) isForUs(audiences []string) bool {
	ours := t.config.Audiences()
	return !slices.ContainsFunc(audiences, func(audience string) bool { return !slices.Contains(ours, audience) })
}
