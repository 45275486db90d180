package desired

import (
	"bytes"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/pki"
)

// KubeconfigSecretName returns the name of the Secret of an ApiServerKubeconfig.
func KubeconfigSecretName(kubeconfig *v1alpha1.ApiServerKubeconfig) string {
	return kubeconfig.Name + "-kubeconfig"
}

// KubeconfigCurrent reports whether a published Secret trusts the present authorities and has a certificate of the
// present signer, with the intermediates of the present stage of a rotation.
func KubeconfigCurrent(published *corev1.Secret, trusted []byte, clients pki.Bundle) bool {
	pair := PairOf(published)
	if _, differs := clients.Rechain(pair); differs {
		return false
	}
	return bytes.Equal(published.Data[AuthorityKey], trusted) && clients.Signed(pair)
}

// KubeconfigSecret returns the desired Secret of an ApiServerKubeconfig. It keeps the certificate in the current
// Secret, which may be empty, while the certificate is valid and matches the spec. Otherwise it issues a certificate,
// and reason is the cause.
func KubeconfigSecret(
	kubeconfig *v1alpha1.ApiServerKubeconfig, cluster *v1alpha1.ApiServerCluster, clients pki.Bundle, trusted []byte,
	current *corev1.Secret, now time.Time,
) (wanted *corev1.Secret, reason string, err error) {
	spec := &kubeconfig.Spec
	leaf := pki.Leaf{
		CommonName: spec.User, Organizations: spec.Groups, Client: true, Lifetime: kubeconfig.ValidityPeriod(),
	}
	pair := PairOf(current)
	if len(pair.Certificate) == 0 {
		reason = "missing"
	} else {
		reason = clients.Evaluate(pair, leaf, now)
	}
	if reason == "" {
		pair, _ = clients.Rechain(pair)
	} else if pair, err = clients.Issue(leaf, now); err != nil {
		return nil, "", err
	}
	server := spec.Server
	if server == "" {
		server = cluster.Status.Endpoint
	}
	text, err := Kubeconfig(Access{
		Cluster: cluster.Name, User: spec.User, Server: server, TLSServerName: spec.TLSServerName, Trusted: trusted,
		Credentials: pair,
	})
	return &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{
			Name: KubeconfigSecretName(kubeconfig), Namespace: kubeconfig.Namespace,
			Labels: map[string]string{ManagedByLabel: ManagedBy, ClusterLabel: cluster.Name, NameLabel: "quorate"},
		},
		Type: corev1.SecretTypeTLS,
		Data: map[string][]byte{
			KubeconfigKey: text, AuthorityKey: trusted, corev1.TLSCertKey: pair.Certificate, corev1.TLSPrivateKeyKey: pair.Key,
		},
	}, reason, err
}

// PairOf returns the certificate and key in a kubernetes.io/tls Secret.
func PairOf(secret *corev1.Secret) pki.Pair {
	return pki.Pair{Certificate: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}
}
