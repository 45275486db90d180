// Package abac is the authorization mode ABAC: upstream's authorizer with the policy of --authorization-policy-file.
package abac

import (
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/kubernetes/pkg/auth/authorizer/abac"
)

// Policy is the policy in a file. As in kube-apiserver, the file is read only once.
type Policy interface {
	authorizer.UnconditionalAuthorizer
	authorizer.RuleResolver
}

// Load reads a policy file with one JSON object per line.
func Load(file string) (Policy, error) {
	policy, err := abac.NewFromFile(file)
	if err != nil {
		return nil, err
	}
	return policy, nil
}
