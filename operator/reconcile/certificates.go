package reconcile

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/rotation"
	"quorate.dev/operator/status"
)

// certificates are the contents of a cluster's Secrets.
type certificates struct {
	bundles         map[string]pki.Bundle    // by trust domain
	userAuthorities map[string]pki.Authority // the valid authorities from the user's Secrets, by trust domain
	leaves          map[string]pki.Pair      // by suffix of the Secret
	keys            pki.Keys
	keyCreated      time.Time
	trusted         []byte // certificates that verify the serving certificate, for clients; empty: a public issuer's
	name            string // host that the serving certificate is valid for
}

// hash returns the fingerprint of the certificates and keys that pods mount.
func (c certificates) hash() string {
	var all [][]byte
	domains := []string{desired.ClientDomain, desired.FrontProxyDomain, desired.PeerDomain, desired.EtcdClientDomain}
	for _, domain := range domains {
		all = append(all, c.bundles[domain].Trusted())
	}
	for _, name := range []string{"serving", "front-proxy-client", "etcd-peer", "etcd-server", "etcd-client", desired.KubeletClientSecret} {
		all = append(all, c.leaves[name].Certificate)
	}
	return pki.Fingerprint(append(all, c.keys.Verifying())...)
}

// ensureCertificates creates missing authorities, brings them to the stage of the rotation, and issues missing or
// outdated leaves. If the cluster may not be changed it only reads the existing ones.
func (r *Reconciler) ensureCertificates(ctx context.Context, p *pass) error {
	p.certificates = certificates{bundles: map[string]pki.Bundle{}, leaves: map[string]pki.Pair{}, userAuthorities: map[string]pki.Authority{}}
	if err := r.readAuthorities(ctx, p); err != nil {
		return err
	}
	if err := r.checkServiceAccountKey(ctx, p); err != nil {
		return err
	}
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
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return r.forgetReplacements(ctx, p)
}

// readAuthorities reads the authorities of all trust domains, and the user's own.
func (r *Reconciler) readAuthorities(ctx context.Context, p *pass) error {
	for _, domain := range desired.Domains(p.cluster) {
		current := &corev1.Secret{}
		found, err := r.find(ctx, p.cluster, desired.SecretName(p.cluster, domain), current)
		if err != nil {
			return err
		}
		if found {
			bundle, err := pki.ParseBundle(current.Data)
			if err != nil {
				return fmt.Errorf("secret %s is invalid: %w; restore it, or delete it to replace the authority in stages",
					current.Name, err)
			}
			p.certificates.bundles[domain] = bundle
		}
		p.secrets[domain] = current
		if err := r.readUserAuthority(ctx, p, domain); err != nil {
			return err
		}
		if err := r.protectAuthority(ctx, p, domain); err != nil {
			return err
		}
	}
	return nil
}

// ensureAuthority creates a missing authority. It replaces one only in the stages of a rotation, because clients that
// trust it would lose access.
func (r *Reconciler) ensureAuthority(ctx context.Context, p *pass, domain string) error {
	bundle, found := p.certificates.bundles[domain]
	if !found && !p.mayChange() {
		return nil
	}
	var err error
	authority, provided := p.certificates.userAuthorities[domain]
	switch {
	case found && p.mayChange():
		bundle, err = advance(bundle, p, domain)
	case !found && provided:
		bundle.Signer = authority
	case !found:
		bundle.Signer, err = pki.NewAuthority(authorityName(p.cluster, domain), p.cluster.AuthorityLifetime(), p.input.Now)
	}
	if err != nil {
		return fmt.Errorf("authority %s: %w", domain, err)
	}
	if p.mayChange() {
		wanted := desired.AuthoritySecret(p.cluster, domain, bundle)
		exists := p.secrets[domain].ResourceVersion != ""
		if err := r.writeSecret(ctx, p.cluster, exists, p.secrets[domain], wanted); err != nil {
			return err
		}
	}
	p.certificates.bundles[domain] = bundle
	p.expires(status.Expiry{
		Secret: desired.SecretName(p.cluster, domain), At: bundle.Signer.Expiry(), Renewal: bundle.Signer.Renewal(),
		Created: bundle.Signer.Created(),
	})
	return nil
}

func authorityName(cluster *v1alpha1.ApiServerCluster, domain string) string {
	return cluster.Namespace + "/" + cluster.Name + " " + domain
}

// advance returns a bundle in the stage of the cluster's rotation.
func advance(bundle pki.Bundle, p *pass, domain string) (pki.Bundle, error) {
	switch stage, _ := stageOf(authoritiesOf(p.cluster)); stage {
	case rotation.TrustBoth:
		if bundle.Next != nil || len(bundle.Previous) > 0 || due(p, domain) == "" {
			return bundle, nil
		}
		next, err := successor(p, domain)
		if err != nil {
			return bundle, err
		}
		return bundle.Add(next, p.input.Now)
	case rotation.Reissue:
		return bundle.Promote(), nil
	case rotation.DropOld:
		return bundle.Promote().Drop(), nil
	}
	return bundle, nil
}

// successor returns the next authority of a trust domain. Authorities that the operator creates have unique names,
// which show in TLS handshakes whether an API server trusts them.
func successor(p *pass, domain string) (pki.Authority, error) {
	if authority, ok := p.certificates.userAuthorities[domain]; ok {
		return authority, nil
	}
	name := fmt.Sprintf("%s@%d", authorityName(p.cluster, domain), p.input.Now.Unix())
	return pki.NewAuthority(name, p.cluster.AuthorityLifetime(), p.input.Now)
}

// due returns why the signer of a trust domain has to be replaced, or "". The operator's authorities are replaced
// together. The user's authority is replaced only by another one of the user.
func due(p *pass, domain string) string {
	if authority, ok := p.certificates.userAuthorities[domain]; ok {
		if bundle := p.certificates.bundles[domain]; !bundle.Signer.Equal(authority) {
			return "Secret " + desired.UserAuthoritySecret(p.cluster, domain) + " has another authority"
		}
		return ""
	}
	if desired.UserAuthoritySecret(p.cluster, domain) != "" {
		return "" // it cannot be used
	}
	request := p.cluster.Spec.Certificates.Authorities.RotateBefore
	for _, other := range desired.Domains(p.cluster) {
		bundle, found := p.certificates.bundles[other]
		if !found || desired.UserAuthoritySecret(p.cluster, other) != "" {
			continue
		}
		if reason := rotation.Due(bundle.Signer.Created(), bundle.Signer.Renewal(), timeOf(request), p.input.Now); reason != "" {
			return reason
		}
	}
	return ""
}

// checkServiceAccountKey records the loss of the service-account keys: with new ones, the tokens of all pods and users of
// the cluster would be invalid.
func (r *Reconciler) checkServiceAccountKey(ctx context.Context, p *pass) error {
	name, current := desired.SecretName(p.cluster, desired.ServiceAccountSecret), &corev1.Secret{}
	found, err := r.find(ctx, p.cluster, name, current)
	p.secrets[desired.ServiceAccountSecret] = current // read once: a cache may change in between
	if err != nil || p.cluster.IsExtension() || p.cluster.MayReplaceSecret(name) {
		return err
	}
	const consequence = "all service-account tokens are signed with its keys"
	if found {
		if err := pki.ParseKeys(current.Data).Check(); err != nil {
			p.recordLost(name, "cannot be used ("+err.Error()+")", consequence)
		}
		return nil
	}
	if p.mounts(name) || p.cluster.Bootstrapped() && !p.cluster.Restoring() {
		p.recordLost(name, "is missing", consequence)
	}
	return nil
}

// ensureServiceAccountKey creates a missing service-account key and brings the keys to the stage of their rotation. It
// does not create a key while a backup is restored: the key of the backup is restored then, and no member starts
// before.
func (r *Reconciler) ensureServiceAccountKey(ctx context.Context, p *pass) error {
	if p.cluster.IsExtension() {
		return nil // clients use tokens of the host
	}
	current := p.secrets[desired.ServiceAccountSecret]
	found := current.ResourceVersion != ""
	if !found && (!p.mayChange() || p.cluster.Restoring()) {
		return nil
	}
	var err error
	keys, created := pki.ParseKeys(current.Data), p.input.Now
	if found && keys.Check() == nil {
		created = desired.KeyCreated(current)
	} else if keys = (pki.Keys{}); p.mayChange() {
		if keys.Signer, err = pki.NewServiceAccountKey(); err != nil {
			return err
		}
	}
	p.certificates.keys, p.certificates.keyCreated = keys, created
	if found && !p.mayChange() {
		return nil
	}
	switch stage, _ := stageOf(keysOf(p.cluster)); {
	case stage == rotation.TrustBoth && keys.Next == nil && len(keys.Previous) == 0 && found:
		next, err := pki.NewServiceAccountKey()
		if err != nil {
			return err
		}
		keys, created = keys.Add(next), p.input.Now
	case stage == rotation.Reissue:
		keys = keys.Promote()
	case stage == rotation.DropOld:
		keys = keys.Promote().Drop()
	}
	p.certificates.keys, p.certificates.keyCreated = keys, created
	return r.writeSecret(ctx, p.cluster, found, current, desired.ServiceAccountKeys(p.cluster, keys, created))
}

func (r *Reconciler) ensureLeaf(ctx context.Context, p *pass, certificate desired.Certificate) error {
	name := desired.SecretName(p.cluster, certificate.Secret)
	current := &corev1.Secret{}
	found, err := r.find(ctx, p.cluster, name, current)
	if err != nil || !found && !p.mayChange() {
		return err
	}
	bundle := p.certificates.bundles[certificate.Domain]
	pair, trusted := desired.PairOf(current), current.Data[desired.AuthorityKey]
	if p.mayChange() {
		var reason string
		if pair, trusted, reason, err = r.leaf(ctx, p, certificate, current, found); err != nil {
			return err
		}
		issued := desired.LeafSecret(p.cluster, certificate.Secret, pair, trusted)
		if err := r.writeSecret(ctx, p.cluster, found, current, issued); err != nil {
			return err
		}
		if found && reason != "" {
			r.event(p.cluster, event{
				related: reference("Secret", current), reason: v1alpha1.ReasonCertificateIssued, action: "Issue",
				message: fmt.Sprintf("Issued certificate in Secret %s: %s", name, reason),
			})
		}
	}
	p.certificates.leaves[certificate.Secret] = pair
	if certificate.Secret == desired.ServingSecret {
		p.certificates.trusted, p.certificates.name = trusted, p.cluster.Name+"."+p.cluster.Namespace+".svc"
		if !bundle.Issued(pair) {
			p.certificates.name = endpointHost(p)
		}
	}
	created, due, expiry, err := pki.Validity(pair)
	p.expires(status.Expiry{Secret: name, At: expiry, Renewal: due, Created: created})
	return err
}

// leaf returns the desired content of a leaf's Secret: the certificate and what verifies it. The reason is why the
// certificate was replaced, or "".
func (r *Reconciler) leaf(
	ctx context.Context, p *pass, certificate desired.Certificate, current *corev1.Secret, found bool,
) (pair pki.Pair, trusted []byte, reason string, err error) {
	bundle := p.certificates.bundles[certificate.Domain]
	pair, trusted, reason = desired.PairOf(current), bundle.Trusted(), "missing"
	if certificate.Secret == desired.ServingSecret {
		user, err := r.readServingCertificate(ctx, p, current)
		if err != nil {
			return pki.Pair{}, nil, "", err
		}
		if user != nil {
			return user.pair, user.published(trusted), user.difference(pair), nil
		}
	}
	if found {
		reason = bundle.Evaluate(pair, certificate.Leaf, p.input.Now)
	}
	if reason != "" {
		pair, err = bundle.Issue(certificate.Leaf, p.input.Now)
		return pair, trusted, reason, err
	}
	pair, _ = bundle.Rechain(pair)
	return pair, trusted, "", nil
}

// roots returns PEM certificates with which the operator verifies API servers. They include the serving certificate
// itself, because the operator's system may not trust its issuer.
func (c certificates) roots() []byte {
	return slices.Concat(c.trusted, c.leaves[desired.ServingSecret].Certificate)
}

func (r *Reconciler) ensureKubeconfig(ctx context.Context, p *pass) error {
	secret, err := desired.AdminKubeconfig(
		p.cluster, p.input.Endpoint, p.certificates.trusted, p.certificates.leaves[desired.AdminSecret])
	if err != nil {
		return err
	}
	return r.ensureSecret(ctx, p.cluster, secret)
}

// writeSecret creates or updates a Secret whose content was derived from current. It fails with a conflict if the Secret
// has changed since current was read.
func (r *Reconciler) writeSecret(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster, found bool, current, wanted *corev1.Secret,
) error {
	if !found {
		return r.create(ctx, cluster, wanted)
	}
	after := current.DeepCopy()
	after.Data = wanted.Data
	for name, value := range wanted.Annotations {
		metav1.SetMetaDataAnnotation(&after.ObjectMeta, name, value)
	}
	setLabels(after, wanted)
	return r.update(ctx, current, after)
}

// expires records the expiry of a certificate for the status, and when the cluster has to be reconciled for it.
func (p *pass) expires(e status.Expiry) {
	p.input.Certificates = append(p.input.Certificates, e)
	p.requeueAt(e.Renewal)
}

// requeueAt requests a reconciliation at a time, unless it is zero.
func (p *pass) requeueAt(at time.Time) {
	if !at.IsZero() && at.After(p.input.Now) && (p.next.IsZero() || at.Before(p.next)) {
		p.next = at
	}
}
