package reconcile

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/desired"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/status"
)

// certificates are the contents of a cluster's Secrets.
type certificates struct {
	authorities map[string]pki.Authority // by trust domain
	leaves      map[string]pki.Pair      // by suffix of the Secret
}

// hash returns the fingerprint of the certificates that pods mount.
func (c certificates) hash() string {
	var all [][]byte
	domains := []string{desired.ClientDomain, desired.FrontProxyDomain, desired.PeerDomain, desired.EtcdClientDomain}
	for _, domain := range domains {
		all = append(all, c.authorities[domain].Certificate)
	}
	for _, name := range []string{"serving", "front-proxy-client", "etcd-peer", "etcd-server", "etcd-client"} {
		all = append(all, c.leaves[name].Certificate)
	}
	return pki.Fingerprint(all...)
}

// ensureCertificates creates missing authorities and issues missing or outdated leaves. If the spec is invalid it only
// reads the existing ones.
func (r *Reconciler) ensureCertificates(ctx context.Context, p *pass) error {
	p.certificates = certificates{authorities: map[string]pki.Authority{}, leaves: map[string]pki.Pair{}}
	for _, domain := range desired.Domains(p.cluster) {
		if err := r.ensureAuthority(ctx, p, domain); err != nil {
			return err
		}
	}
	if err := r.ensureServiceAccountKey(ctx, p); err != nil {
		return err
	}
	var errs []error
	for _, certificate := range desired.Certificates(p.cluster, addresses(p.service)) {
		errs = append(errs, r.ensureLeaf(ctx, p, certificate))
	}
	return errors.Join(errs...)
}

// ensureAuthority creates a missing authority. It never replaces one, because clients that trust it would lose access.
func (r *Reconciler) ensureAuthority(ctx context.Context, p *pass, domain string) error {
	secret := &corev1.Secret{}
	found, err := r.find(ctx, p.cluster, desired.SecretName(p.cluster, domain), secret)
	if err != nil || !found && p.input.Invalid != nil {
		return err
	}
	var authority pki.Authority
	if found {
		authority, err = pki.ParseAuthority(pairOf(secret))
	} else {
		authority, err = pki.NewAuthority(p.cluster.Namespace+"/"+p.cluster.Name+" "+domain, p.input.Now)
	}
	if err != nil {
		return fmt.Errorf("authority %s: %w", domain, err)
	}
	if !found {
		if err := r.create(ctx, p.cluster, desired.AuthoritySecret(p.cluster, domain, authority.Pair)); err != nil {
			return err
		}
	}
	p.certificates.authorities[domain] = authority
	p.input.Certificates = append(p.input.Certificates, status.Expiry{
		Secret: desired.SecretName(p.cluster, domain), At: authority.Expiry(),
	})
	return nil
}

// ensureServiceAccountKey creates a missing service-account key, except while a backup is restored: its key is then
// restored too, and no member starts before.
func (r *Reconciler) ensureServiceAccountKey(ctx context.Context, p *pass) error {
	if p.cluster.Restoring() {
		return nil
	}
	found, err := r.find(ctx, p.cluster, desired.SecretName(p.cluster, desired.ServiceAccountSecret), &corev1.Secret{})
	if err != nil || found || p.input.Invalid != nil {
		return err
	}
	pair, err := pki.NewServiceAccountKey()
	if err != nil {
		return err
	}
	return r.create(ctx, p.cluster, desired.ServiceAccountKeys(p.cluster, pair))
}

func (r *Reconciler) ensureLeaf(ctx context.Context, p *pass, certificate desired.Certificate) error {
	name := desired.SecretName(p.cluster, certificate.Secret)
	secret := &corev1.Secret{}
	found, err := r.find(ctx, p.cluster, name, secret)
	if err != nil || !found && p.input.Invalid != nil {
		return err
	}
	authority := p.certificates.authorities[certificate.Domain]
	pair, reason := pairOf(secret), "missing"
	switch {
	case found && p.input.Invalid != nil:
		reason = ""
	case found:
		reason = authority.Evaluate(pair, certificate.Leaf, p.input.Now)
	}
	if reason != "" {
		if pair, err = authority.Issue(certificate.Leaf, p.input.Now); err != nil {
			return err
		}
		issued := desired.LeafSecret(p.cluster, certificate.Secret, pair, authority.Certificate)
		if err := r.ensureSecret(ctx, p.cluster, issued); err != nil {
			return err
		}
	}
	if found && reason != "" {
		r.event(p.cluster, event{
			related: reference("Secret", secret), reason: "CertificateIssued", action: "Issue",
			message: fmt.Sprintf("Issued certificate in Secret %s: %s", name, reason),
		})
	}
	p.certificates.leaves[certificate.Secret] = pair
	_, expiry, err := pki.RenewalOf(pair)
	p.input.Certificates = append(p.input.Certificates, status.Expiry{Secret: name, At: expiry})
	return err
}

func (r *Reconciler) ensureKubeconfig(ctx context.Context, p *pass) error {
	authority, admin := p.certificates.authorities[desired.ServingDomain], p.certificates.leaves[desired.AdminSecret]
	secret, err := desired.Kubeconfig(p.cluster, p.input.Endpoint, authority.Certificate, admin)
	if err != nil {
		return err
	}
	return r.ensureSecret(ctx, p.cluster, secret)
}

func pairOf(secret *corev1.Secret) pki.Pair {
	return pki.Pair{Certificate: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}
}
