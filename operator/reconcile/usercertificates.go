package reconcile

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

// userCertificate is a serving certificate from the user's Secret.
type userCertificate struct {
	pair    pki.Pair
	trusted []byte // PEM; empty: clients already trust its issuer
	secret  string
}

// difference returns why the certificate in use is replaced, or "".
func (u *userCertificate) difference(used pki.Pair) string {
	if bytes.Equal(u.pair.Certificate, used.Certificate) && bytes.Equal(u.pair.Key, used.Key) {
		return ""
	}
	return "copied from Secret " + u.secret
}

// published returns the certificates in kubeconfigs that verify the API servers: the user's and the operator's, so
// that kubeconfigs stay valid if the operator has to replace the user's certificate. It is empty if the user has
// provided none: clients then use their system's.
func (u *userCertificate) published(operator []byte) []byte {
	if len(u.trusted) == 0 {
		return nil
	}
	return slices.Concat(u.trusted, operator)
}

// readServingCertificate returns the user's serving certificate. If it cannot be used, readServingCertificate returns the
// user's previous one while that is valid, or else nil, and the operator issues one. The user's Secret is copied, so that
// pods mount only validated certificates, and a change restarts no pod.
func (r *Reconciler) readServingCertificate(ctx context.Context, p *pass, current *corev1.Secret) (*userCertificate, error) {
	ref := p.cluster.Spec.Certificates.Serving.SecretRef
	if ref == nil {
		return nil, nil
	}
	source := &corev1.Secret{}
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: p.cluster.Namespace, Name: ref.Name}, source)
	candidate := &userCertificate{pair: desired.PairOf(source), trusted: source.Data[desired.AuthorityKey], secret: ref.Name}
	switch {
	case apierrors.IsNotFound(err):
		err = fmt.Errorf("secret %s does not exist", ref.Name)
	case err != nil:
		return nil, fmt.Errorf("reading Secret %s: %w", ref.Name, err)
	default:
		if err = pki.CheckServing(candidate.pair, candidate.trusted, endpointHost(p), p.input.Now); err == nil {
			return candidate, nil
		}
		err = fmt.Errorf("secret %s: %w", ref.Name, err)
	}
	p.input.UserCertificateErr = errors.Join(p.input.UserCertificateErr, err)
	return p.usedCertificate(current, ref.Name), nil
}

// usedCertificate returns the certificate in use if it is the user's and has not expired, or nil.
func (p *pass) usedCertificate(current *corev1.Secret, name string) *userCertificate {
	used := &userCertificate{pair: desired.PairOf(current), secret: name}
	signer := p.certificates.bundles[desired.ServingDomain]
	if signer.Issued(used.pair) || pki.CheckServing(used.pair, nil, "", p.input.Now) != nil {
		return nil
	}
	used.trusted = pki.Without(current.Data[desired.AuthorityKey], signer.Trusted())
	return used
}

// endpointHost returns the host that clients connect to.
func endpointHost(p *pass) string {
	parsed, err := url.Parse(p.input.Endpoint)
	if err != nil {
		return ""
	}
	return parsed.Hostname()
}

// readUserAuthority reads the user's authority of a trust domain, if there is one. An unusable authority is reported,
// and the one in use is kept.
func (r *Reconciler) readUserAuthority(ctx context.Context, p *pass, domain string) error {
	name := desired.UserAuthoritySecret(p.cluster, domain)
	if name == "" {
		return nil
	}
	source := &corev1.Secret{}
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: p.cluster.Namespace, Name: name}, source)
	switch {
	case apierrors.IsNotFound(err):
		err = fmt.Errorf("secret %s does not exist", name)
	case err != nil:
		return fmt.Errorf("reading Secret %s: %w", name, err)
	default:
		var authority pki.Authority
		if authority, err = pki.ParseUserAuthority(desired.PairOf(source), p.input.Now); err == nil {
			p.certificates.userAuthorities[domain] = authority
			return nil
		}
		err = fmt.Errorf("secret %s: %w", name, err)
	}
	p.input.UserCertificateErr = errors.Join(p.input.UserCertificateErr, err)
	return nil
}
