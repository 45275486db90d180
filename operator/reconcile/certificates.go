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

// certificates of one cluster, as they are in its Secrets.
type certificates struct {
	authorities map[string]pki.Authority // by domain
	leaves      map[string]pki.Pair      // by Secret, without the cluster's name
}

// hash of the certificates that pods mount.
func (c certificates) hash() string {
	var all [][]byte
	for _, domain := range []string{desired.ClientDomain, desired.FrontProxyDomain, desired.PeerDomain, desired.EtcdClientDomain} {
		all = append(all, c.authorities[domain].Certificate)
	}
	for _, name := range []string{"serving", "front-proxy-client", "etcd-peer", "etcd-server", "etcd-client"} {
		all = append(all, c.leaves[name].Certificate)
	}
	return pki.Fingerprint(all...)
}

// ensureCertificates makes authorities where there are none, and leaves where there are none or none that can stay. For a
// spec that is wrong it reads what there is.
func (r *Reconciler) ensureCertificates(ctx context.Context, p *pass) error {
	p.pki = certificates{authorities: map[string]pki.Authority{}, leaves: map[string]pki.Pair{}}
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

// ensureAuthority never replaces an authority: everybody who trusts it would be cut off.
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
	p.pki.authorities[domain] = authority
	p.input.Certificates = append(p.input.Certificates, status.Expiry{Secret: desired.SecretName(p.cluster, domain), At: authority.Expiry()})
	return nil
}

func (r *Reconciler) ensureServiceAccountKey(ctx context.Context, p *pass) error {
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

func (r *Reconciler) ensureLeaf(ctx context.Context, p *pass, wanted desired.Certificate) error {
	name := desired.SecretName(p.cluster, wanted.Secret)
	secret := &corev1.Secret{}
	found, err := r.find(ctx, p.cluster, name, secret)
	if err != nil || !found && p.input.Invalid != nil {
		return err
	}
	authority := p.pki.authorities[wanted.Domain]
	pair, reason := pairOf(secret), "it does not exist"
	switch {
	case found && p.input.Invalid != nil:
		reason = ""
	case found:
		reason = authority.Judge(pair, wanted.Leaf, p.input.Now)
	}
	if reason != "" {
		if pair, err = authority.Issue(wanted.Leaf, p.input.Now); err != nil {
			return err
		}
		if err := r.ensureSecret(ctx, p.cluster, desired.LeafSecret(p.cluster, wanted.Secret, pair, authority.Certificate)); err != nil {
			return err
		}
	}
	if found && reason != "" {
		r.event(p.cluster, reference("Secret", secret), corev1.EventTypeNormal, "CertificateIssued", "Issue", "%s: %s", name, reason)
	}
	p.pki.leaves[wanted.Secret] = pair
	_, expiry, err := pki.RenewalOf(pair)
	p.input.Certificates = append(p.input.Certificates, status.Expiry{Secret: name, At: expiry})
	return err
}

func (r *Reconciler) ensureKubeconfig(ctx context.Context, p *pass) error {
	secret, err := desired.Kubeconfig(p.cluster, p.input.Endpoint, p.pki.authorities[desired.ServingDomain].Certificate, p.pki.leaves[desired.AdminSecret])
	if err != nil {
		return err
	}
	return r.ensureSecret(ctx, p.cluster, secret)
}

func pairOf(secret *corev1.Secret) pki.Pair {
	return pki.Pair{Certificate: secret.Data[corev1.TLSCertKey], Key: secret.Data[corev1.TLSPrivateKeyKey]}
}
