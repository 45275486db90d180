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
	return lists(c.Annotations[ReplaceSecretsAnnotation], name)
}

// ReplaceMembersAnnotation lists the names of members of an ApiServerCluster that have acknowledged writes which the
// other members lack, separated by commas, such as demo-1. The operator replaces them, so that the cluster continues
// without these writes. Their PersistentVolumeClaims are kept, and do not belong to the cluster any more. The operator
// removes the annotation afterwards.
const ReplaceMembersAnnotation = "quorate.dev/replace-members"

// MayReplaceMember reports whether the annotation lists a member.
func (c *ApiServerCluster) MayReplaceMember(name string) bool {
	return lists(c.Annotations[ReplaceMembersAnnotation], name)
}

// lists reports whether a list with commas has a name.
func lists(list, name string) bool {
	return slices.ContainsFunc(strings.Split(list, ","), func(item string) bool { return strings.TrimSpace(item) == name })
}
