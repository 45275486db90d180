package certificates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/desired"
	"quorate.dev/operator/pki"
)

// userCertificate is a serving certificate from a Secret of the user.
type userCertificate struct {
	pair    pki.Pair
	trusted []byte // PEM certificates that verify the certificate; empty: clients already trust its issuer
	secret  string
}

// difference returns why the certificate in use has to be replaced by this one, or "".
func (u *userCertificate) difference(used pki.Pair) string {
	if bytes.Equal(u.pair.Certificate, used.Certificate) && bytes.Equal(u.pair.Key, used.Key) {
		return ""
	}
	return "copied from Secret " + u.secret
}

// published returns the PEM certificates with which kubeconfigs verify the API servers: the user's and the operator's,
// so that kubeconfigs stay valid if the operator has to replace the user's certificate, for example because it expires.
// It returns nil if the user has provided none, because clients then use the authorities of their system.
func (u *userCertificate) published(operator []byte) []byte {
	if len(u.trusted) == 0 {
		return nil
	}
	return slices.Concat(u.trusted, operator)
}

// readServingCertificate returns the user's serving certificate. If that cannot be used, it returns the user's
// certificate that is in use while it is valid, else nil, so that the operator issues one. The Secret that the user
// provides is copied into a Secret of the cluster: pods mount only validated certificates, and a change restarts no
// pod.
func (i *issuer) readServingCertificate(ctx context.Context, current *corev1.Secret) (*userCertificate, error) {
	ref := i.cluster.Spec.Certificates.Serving.SecretRef
	if ref == nil {
		return nil, nil
	}
	source := &corev1.Secret{}
	err := i.Reader.Get(ctx, client.ObjectKey{Namespace: i.cluster.Namespace, Name: ref.Name}, source)
	candidate := &userCertificate{
		pair: desired.PairOf(source), trusted: source.Data[desired.AuthorityKey], secret: ref.Name,
	}
	switch {
	case apierrors.IsNotFound(err):
		err = fmt.Errorf("secret %s does not exist", ref.Name)
	case err != nil:
		return nil, fmt.Errorf("read Secret %s: %w", ref.Name, err)
	default:
		if err = pki.CheckServing(candidate.pair, candidate.trusted, endpointHost(i.Endpoint), i.Now); err == nil {
			return candidate, nil
		}
		err = fmt.Errorf("secret %s: %w", ref.Name, err)
	}
	i.result.UserCertificateErr = errors.Join(i.result.UserCertificateErr, err)
	return i.usedCertificate(current, ref.Name), nil
}

// usedCertificate returns the certificate in use if the user has provided it and it has not expired, or nil. A Secret
// of the user that was deleted or contains an unusable certificate must not interrupt clients that trust the former
// certificate.
func (i *issuer) usedCertificate(current *corev1.Secret, name string) *userCertificate {
	used := &userCertificate{pair: desired.PairOf(current), secret: name}
	signer := i.result.Credentials.Bundles[desired.ServingDomain]
	if signer.Issued(used.pair) || pki.CheckServing(used.pair, nil, "", i.Now) != nil {
		return nil
	}
	used.trusted = pki.Without(current.Data[desired.AuthorityKey], signer.Trusted())
	return used
}

// endpointHost returns the host in the URL for clients.
func endpointHost(endpoint string) string {
	parsed, err := url.Parse(endpoint)
	if err != nil {
		return ""
	}
	return parsed.Hostname()
}

// readUserAuthority reads the authority of a trust domain that the user has provided, if there is one. An authority
// that cannot be used is reported in the status, and the authority in use is kept.
func (i *issuer) readUserAuthority(ctx context.Context, domain string) error {
	name := desired.UserAuthoritySecret(i.cluster, domain)
	if name == "" {
		return nil
	}
	source := &corev1.Secret{}
	err := i.Reader.Get(ctx, client.ObjectKey{Namespace: i.cluster.Namespace, Name: name}, source)
	switch {
	case apierrors.IsNotFound(err):
		err = fmt.Errorf("secret %s does not exist", name)
	case err != nil:
		return fmt.Errorf("read Secret %s: %w", name, err)
	default:
		var authority pki.Authority
		if authority, err = pki.ParseUserAuthority(desired.PairOf(source), i.Now); err == nil {
			i.result.Credentials.UserAuthorities[domain] = authority
			return nil
		}
		err = fmt.Errorf("secret %s: %w", name, err)
	}
	i.result.UserCertificateErr = errors.Join(i.result.UserCertificateErr, err)
	return nil
}
