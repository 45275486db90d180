package filters

import (
	"context"
	"slices"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apiserver/pkg/authentication/serviceaccount"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/apiserver/pkg/authorization/authorizer"

	"quorate.dev/apiserver/request"
)

// legacyImpersonation requires the verb "impersonate" for each user, group, extra value and UID in the headers. As in
// kube-apiserver, an error of the authorizer denies the impersonation whatever the decision.
type legacyImpersonation struct {
	authorizer authorizer.UnconditionalAuthorizer
}

func (l legacyImpersonation) invalid(wanted *user.DefaultInfo) error {
	return noUserName("requested %v without impersonating a user", wantedReferences(wanted))
}

func (l legacyImpersonation) impersonate(
	ctx context.Context, wanted *user.DefaultInfo, attributes authorizer.Attributes,
) (user.Info, string, error) {
	impersonated := *wanted
	if namespace, _, err := serviceaccount.SplitUsername(wanted.Name); err == nil && len(wanted.Groups) == 0 {
		impersonated.Groups = serviceaccount.MakeGroupNames(namespace)
	}
	for _, reference := range wantedReferences(wanted) {
		needed := legacyAttributes(reference)
		needed.User = attributes.GetUser()
		decision, reason, err := l.authorizer.Authorize(ctx, needed)
		if err != nil || decision != authorizer.DecisionAllow {
			return nil, "", request.Forbidden(needed, reason)
		}
	}
	impersonated.Groups = withDefaultGroup(impersonated.Name, impersonated.Groups)
	return &impersonated, "", nil
}

// wantedReferences returns the user, groups, extra values and UID in the headers, in kube-apiserver's order.
func wantedReferences(wanted *user.DefaultInfo) []corev1.ObjectReference {
	references := []corev1.ObjectReference{}
	if namespace, name, err := serviceaccount.SplitUsername(wanted.Name); err == nil {
		references = append(references, corev1.ObjectReference{Kind: "ServiceAccount", Namespace: namespace, Name: name})
	} else if wanted.Name != "" {
		references = append(references, corev1.ObjectReference{Kind: "User", Name: wanted.Name})
	}
	for _, group := range wanted.Groups {
		references = append(references, corev1.ObjectReference{Kind: "Group", Name: group})
	}
	version := authenticationv1.SchemeGroupVersion.String()
	for _, key := range sortedKeys(wanted.Extra) {
		for _, value := range wanted.Extra[key] {
			references = append(references, corev1.ObjectReference{
				Kind: "UserExtra", APIVersion: version, Name: value, FieldPath: key,
			})
		}
	}
	if wanted.UID != "" {
		references = append(references, corev1.ObjectReference{Kind: "UID", APIVersion: version, Name: wanted.UID})
	}
	return references
}

// legacyAttributes returns the attributes that must be allowed to impersonate a reference.
func legacyAttributes(reference corev1.ObjectReference) *authorizer.AttributesRecord {
	resources := map[string]string{
		"ServiceAccount": "serviceaccounts", "User": "users", "Group": "groups", "UserExtra": "userextras", "UID": "uids",
	}
	version := reference.GroupVersionKind().GroupVersion()
	return &authorizer.AttributesRecord{
		Verb: "impersonate", APIGroup: version.Group, APIVersion: version.Version, Resource: resources[reference.Kind],
		Subresource: reference.FieldPath, Namespace: reference.Namespace, Name: reference.Name, ResourceRequest: true,
	}
}

func sortedKeys(extra map[string][]string) []string {
	keys := make([]string, 0, len(extra))
	for key := range extra {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}
