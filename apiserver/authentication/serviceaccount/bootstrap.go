package serviceaccount

import (
	"k8s.io/apiserver/pkg/authentication/authenticator"
	listers "k8s.io/client-go/listers/core/v1"
	"k8s.io/kubernetes/plugin/pkg/auth/authenticator/token/bootstrap"
)

// Bootstrap returns who tells whose the tokens are by which new nodes join. The Secrets they are kept in, those of
// kube-system, are read from the cache at every question.
func Bootstrap(secrets listers.SecretNamespaceLister) authenticator.Token {
	return bootstrap.NewTokenAuthenticator(secrets)
}
