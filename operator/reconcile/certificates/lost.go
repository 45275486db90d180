package certificates

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/rotations"
)

// mounts reports whether a pod of the cluster mounts a Secret. A pod that mounts it cannot restart without it, and has
// clients or servers that rely on its content: the Secret is in use.
func (i *issuer) mounts(secret string) bool {
	return slices.ContainsFunc(i.State.Pods, func(pod corev1.Pod) bool {
		return desired.Mounts(&pod, secret)
	})
}

// protectAuthority detects that the Secret of an authority was deleted or edited, and prevents the silent replacement
// of the authority. The Secrets of its leaves contain the certificates that clients and servers trust. The cases are:
//
//   - The Secret of the authority verifies its leaves, or its signer (or the successor of a signer whose key was lost)
//     is among these certificates: nothing was lost.
//   - No leaf is left, and pods mount the Secret: the authority is lost, because nothing shows which certificate the
//     replicas trust.
//   - No leaf is left, and no pod mounts the Secret: nothing depends on the authority, as in a new cluster. The same
//     holds if the user has permitted the replacement.
//   - Otherwise the key is lost, but the certificate is known. It stays trusted, the authority in the Secret or a new
//     one becomes its successor (pki.Recover), and the stages of a rotation begin. If the user's Secret still has the
//     key, the authority is simply restored.
//
// If a rotation is in a later stage, its stage is first set back to TrustBoth, which ends this reconciliation: the
// Secrets of a stage must not be written before the status records the stage.
func (i *issuer) protectAuthority(ctx context.Context, domain string) error {
	bundle, found := i.result.Credentials.Bundles[domain]
	name := desired.SecretName(i.cluster, domain)
	trusted, err := i.trustedByLeaves(ctx, domain)
	switch {
	case err != nil || !i.mayChange():
		return err
	case found &&
		(len(trusted) == 0 || bundle.Signer.Contains(trusted) || bundle.SignerLost() && bundle.Next.Contains(trusted)):
		return nil
	case len(trusted) == 0 && i.mounts(name) && !i.cluster.MayReplaceSecret(name):
		i.lost(name, "is missing", "replicas trust only its authority")
		return nil
	case len(trusted) == 0:
		return nil // the cluster is new
	}
	reason := "the key in Secret " + name + " was lost"
	if err := rotations.RestartAuthorities(ctx, i.Objects, i.cluster, reason, i.Now); err != nil {
		return err
	}
	next, err := i.replacement(domain, bundle, found)
	if err != nil {
		return err
	}
	if next.Contains(trusted) { // the user's Secret still has the key
		i.result.Credentials.Bundles[domain] = pki.Bundle{Signer: next}
		return nil
	}
	if i.result.Credentials.Bundles[domain], err = pki.Recover(trusted, next); err != nil {
		return fmt.Errorf("authority %s: %w", domain, err)
	}
	i.Event(i.cluster, owned.Event{
		Warning: true, Reason: v1alpha1.ReasonAuthorityKeyLost, Action: "Replace",
		Message: "Secret " + name +
			" was deleted or contains another authority than the one in use; its certificate stays trusted while the " +
			"authority is replaced in stages",
	})
	return nil
}

// replacement returns the authority that replaces an authority whose key is lost: the authority in its Secret, else the
// user's authority, else a new authority.
func (i *issuer) replacement(domain string, bundle pki.Bundle, found bool) (pki.Authority, error) {
	if found {
		return bundle.Signer, nil
	}
	return rotations.Successor(i.cluster, i.result.Credentials, domain, i.Now)
}

// trustedByLeaves returns the PEM certificates of the authority of a domain that the Secrets of its leaves contain, or
// nil. The first leaf that shows a loss decides (see trustedBy).
func (i *issuer) trustedByLeaves(ctx context.Context, domain string) ([]byte, error) {
	for _, certificate := range desired.Certificates(i.cluster, nil) {
		if certificate.Domain != domain {
			continue
		}
		leaf := &corev1.Secret{}
		found, err := i.Find(ctx, i.cluster, desired.SecretName(i.cluster, certificate.Secret), leaf)
		if err != nil {
			return nil, err
		}
		if trusted := i.trustedBy(certificate, leaf); found && len(trusted) > 0 {
			return trusted, nil
		}
	}
	return nil, nil
}

// trustedBy returns the PEM certificates of the authority that the Secret of one leaf contains. It returns nil if the
// Secret was edited, so that the certificates do not verify the leaf, and if the authority's own Secret still verifies
// the leaf. From the Secret of a serving certificate of the user, which contains certificates of both, it selects the
// operator's by their names.
func (i *issuer) trustedBy(certificate desired.Certificate, leaf *corev1.Secret) []byte {
	trusted, pair := leaf.Data[desired.AuthorityKey], desired.PairOf(leaf)
	fromUser := i.cluster.Spec.Certificates.Serving.SecretRef != nil && certificate.Secret == desired.ServingSecret
	if fromUser && !i.result.Credentials.Bundles[certificate.Domain].Issued(pair) {
		return pki.Select(trusted, func(common string) bool {
			return rotations.IsAuthorityName(i.cluster, certificate.Domain, common)
		})
	}
	bundle, found := i.result.Credentials.Bundles[certificate.Domain]
	if found && bundle.Signed(pair) || !pki.Verifies(trusted, pair) {
		return nil
	}
	return trusted
}

// forgetReplacements removes the annotation that permits the replacement of lost Secrets, after they were replaced.
func (i *issuer) forgetReplacements(ctx context.Context) error {
	if _, ok := i.cluster.Annotations[v1alpha1.ReplaceSecretsAnnotation]; !ok || !i.mayChange() {
		return nil
	}
	before := i.cluster.DeepCopy()
	delete(i.cluster.Annotations, v1alpha1.ReplaceSecretsAnnotation)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := i.Client.Patch(ctx, i.cluster, patch); err != nil {
		return fmt.Errorf("remove the annotation %s: %w", v1alpha1.ReplaceSecretsAnnotation, err)
	}
	return nil
}
