package reconcile

import (
	"context"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/rotation"
)

// recordLost records that a Secret in use is missing or unusable, and cannot be replaced without harm. Nothing changes until
// it is restored.
func (p *pass) recordLost(name, problem, consequence string) {
	p.input.Lost = fmt.Errorf("secret %s %s, and %s: restore it", name, problem, consequence)
	if !strings.HasSuffix(name, "-"+desired.EncryptionSecret) {
		p.input.Lost = fmt.Errorf("%w, or list it in the annotation %s to let the operator create a new one",
			p.input.Lost, v1alpha1.ReplaceSecretsAnnotation)
	}
}

// mounts reports whether a pod of the cluster mounts a Secret.
func (p *pass) mounts(secret string) bool {
	return slices.ContainsFunc(p.state.Pods, func(pod corev1.Pod) bool {
		return desired.Mounts(&pod, secret)
	})
}

// protectAuthority prevents the silent replacement of an authority whose Secret was deleted or edited. The Secrets of its
// leaves contain what clients and servers trust. If the signer is missing or not among those certificates, they stay
// trusted, and the new signer goes through the stages of a rotation. If no leaf is left either, the authority is lost.
func (r *Reconciler) protectAuthority(ctx context.Context, p *pass, domain string) error {
	bundle, found := p.certificates.bundles[domain]
	name := desired.SecretName(p.cluster, domain)
	trusted, err := r.trustedByLeaves(ctx, p, domain)
	switch {
	case err != nil || !p.mayChange():
		return err
	case found && (len(trusted) == 0 || bundle.Signer.Contains(trusted) || bundle.SignerLost() && bundle.Next.Contains(trusted)):
		return nil
	case len(trusted) == 0 && p.mounts(name) && !p.cluster.MayReplaceSecret(name):
		p.recordLost(name, "is missing", "replicas trust only its authority")
		return nil
	case len(trusted) == 0:
		return nil // a new cluster
	}
	if stage, _ := stageOf(authoritiesOf(p.cluster)); stage == rotation.Reissue || stage == rotation.DropOld {
		reason := "the key in Secret " + name + " was lost"
		if err := r.enter(ctx, p, authorityKind, rotation.Decision{Next: rotation.TrustBoth, Reason: reason}); err != nil {
			return err
		}
		return fmt.Errorf("%w: %s", errStale, reason)
	}
	next, err := replacement(p, domain, bundle, found)
	if err != nil {
		return err
	}
	if next.Contains(trusted) { // the user's Secret still has the key
		p.certificates.bundles[domain] = pki.Bundle{Signer: next}
		return nil
	}
	if p.certificates.bundles[domain], err = pki.Recover(trusted, next); err != nil {
		return fmt.Errorf("authority %s: %w", domain, err)
	}
	r.event(p.cluster, event{
		warning: true, reason: v1alpha1.ReasonAuthorityKeyLost, action: "Replace",
		message: "Secret " + name + " was deleted or contains another authority than the one in use; its certificate stays trusted " +
			"while the authority is replaced in stages",
	})
	return nil
}

// replacement returns the authority that replaces one whose key is lost: the one that its Secret contains now, the
// user's, or a new one.
func replacement(p *pass, domain string, bundle pki.Bundle, found bool) (pki.Authority, error) {
	if found {
		return bundle.Signer, nil
	}
	return successor(p, domain)
}

// trustedByLeaves returns the PEM certificates of an authority that the Secrets of its leaves contain, or nil.
func (r *Reconciler) trustedByLeaves(ctx context.Context, p *pass, domain string) ([]byte, error) {
	for _, certificate := range desired.Certificates(p.cluster, nil) {
		if certificate.Domain != domain {
			continue
		}
		leaf := &corev1.Secret{}
		found, err := r.find(ctx, p.cluster, desired.SecretName(p.cluster, certificate.Secret), leaf)
		if err != nil {
			return nil, err
		}
		if trusted := trustedBy(p, certificate, leaf); found && len(trusted) > 0 {
			return trusted, nil
		}
	}
	return nil, nil
}

// trustedBy returns the PEM certificates of the authority in the Secret of a leaf. It ignores edited Secrets, whose
// certificate they do not verify, and Secrets whose leaf is still signed by the authority's Secret.
func trustedBy(p *pass, certificate desired.Certificate, leaf *corev1.Secret) []byte {
	trusted, pair := leaf.Data[desired.AuthorityKey], desired.PairOf(leaf)
	fromUser := p.cluster.Spec.Certificates.Serving.SecretRef != nil && certificate.Secret == desired.ServingSecret
	if fromUser && !p.certificates.bundles[certificate.Domain].Issued(pair) {
		name := authorityName(p.cluster, certificate.Domain)
		return pki.Select(trusted, func(common string) bool {
			return common == name || strings.HasPrefix(common, name+"@")
		})
	}
	bundle, found := p.certificates.bundles[certificate.Domain]
	if found && bundle.Signed(pair) || !pki.Verifies(trusted, pair) {
		return nil
	}
	return trusted
}

// forgetReplacements removes the annotation from Secrets that may be replaced, after the replacement.
func (r *Reconciler) forgetReplacements(ctx context.Context, p *pass) error {
	if _, ok := p.cluster.Annotations[v1alpha1.ReplaceSecretsAnnotation]; !ok || !p.mayChange() {
		return nil
	}
	before := p.cluster.DeepCopy()
	delete(p.cluster.Annotations, v1alpha1.ReplaceSecretsAnnotation)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Patch(ctx, p.cluster, patch); err != nil {
		return fmt.Errorf("removing the annotation %s: %w", v1alpha1.ReplaceSecretsAnnotation, err)
	}
	return nil
}
