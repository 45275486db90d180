package serviceaccount

import (
	"k8s.io/apiserver/pkg/authentication/authenticator"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap"
)

// Bootstrap returns the authenticator of bootstrap tokens, with which new nodes join the cluster. For each token it
// reads a Secret in kube-system from the lister.
func Bootstrap(secrets listers.SecretNamespaceLister) authenticator.Token {
	return bootstrap.NewTokenAuthenticator(secrets)
}
