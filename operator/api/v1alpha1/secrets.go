package v1alpha1

import (
	"slices"
	"strings"
)

// ReplaceSecretsAnnotation lists the names of lost Secrets of an ApiServerCluster that the operator replaces, separated
// by commas, such as demo-service-account. Credentials of the former ones become invalid. The operator removes the
// annotation afterwards.
const ReplaceSecretsAnnotation = "quorate.dev/replace-secrets"

// MayReplaceSecret reports whether the annotation lists a Secret.
func (c *ApiServerCluster) MayReplaceSecret(name string) bool {
	return slices.ContainsFunc(strings.Split(c.Annotations[ReplaceSecretsAnnotation], ","), func(one string) bool {
		return strings.TrimSpace(one) == name
	})
}
