package certificates

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/pki"
	"quorate.dev/operator/reconcile/credentials"
	"quorate.dev/operator/reconcile/network"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/rotations"
	"quorate.dev/operator/status"
)

// Input is what Ensure depends on.
type Input struct {
	State     *observed.State
	Service   *corev1.Service // the Service for clients, whose addresses the serving certificate contains; nil: unknown
	Endpoint  string          // URL for clients
	MayChange bool            // the cluster may be changed; otherwise Ensure only reads what exists
	Now       time.Time
}

// Result is the result of Ensure. It is also valid if Ensure returns an error.
type Result struct {
	Credentials        credentials.Set // incomplete if the cluster may not be changed
	Expiries           []status.Expiry
	UserCertificateErr error // why certificates or authorities of the user cannot be used
	Lost               error // why the cluster must not be changed: a Secret in use is missing
}

// issuer creates, issues and replaces the certificates and keys of one cluster.
type issuer struct {
	owned.Objects
	Input
	cluster *v1alpha1.ApiServerCluster
	secrets map[string]*corev1.Secret // as read: authorities by trust domain, service-account keys
	result  Result
}

// mayChange reports whether the cluster may be changed: the input permits that, and no Secret has been found to be
// lost.
func (i *issuer) mayChange() bool { return i.MayChange && i.result.Lost == nil }

// lost records that a Secret in use is missing or unusable and that a new one would do harm.
func (i *issuer) lost(name, problem, consequence string) {
	i.result.Lost = credentials.Lost(name, problem, consequence)
}

// Ensure creates missing authorities, brings them to the stage of their rotation, and issues missing or outdated
// leaves. If the cluster may not be changed, it only reads what exists.
func Ensure(ctx context.Context, objects owned.Objects, in Input) (Result, error) {
	i := &issuer{Objects: objects, Input: in, cluster: in.State.Cluster, secrets: map[string]*corev1.Secret{}}
	i.result.Credentials = credentials.Set{
		Bundles: map[string]pki.Bundle{}, Leaves: map[string]pki.Pair{}, UserAuthorities: map[string]pki.Authority{},
	}
	err := i.ensure(ctx)
	return i.result, err
}

// ensure first reads all authorities, because the decision whether an authority is due or lost depends on the other
// authorities and on the leaves. Authorities and keys are written before the leaves. Errors of leaves are collected, so
// that a foreign Secret with the name of one leaf does not delay the renewal of the others.
func (i *issuer) ensure(ctx context.Context) error {
	if err := i.readAuthorities(ctx); err != nil {
		return err
	}
	if err := i.checkServiceAccountKey(ctx); err != nil {
		return err
	}
	for _, domain := range desired.Domains(i.cluster) {
		if err := i.ensureAuthority(ctx, domain); err != nil {
			return err
		}
	}
	if err := i.ensureServiceAccountKey(ctx); err != nil {
		return err
	}
	var errs []error
	for _, certificate := range desired.Certificates(i.cluster, network.Addresses(i.Service)) {
		errs = append(errs, i.ensureLeaf(ctx, certificate))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	return i.forgetReplacements(ctx)
}

// readAuthorities reads the authorities of all trust domains and the authorities that the user has provided, and
// detects lost authorities. A Secret that cannot be parsed is an error and not a loss: the user may have edited it and
// can restore it, whereas a deleted one is replaced in stages.
func (i *issuer) readAuthorities(ctx context.Context) error {
	for _, domain := range desired.Domains(i.cluster) {
		current := &corev1.Secret{}
		found, err := i.Find(ctx, i.cluster, desired.SecretName(i.cluster, domain), current)
		if err != nil {
			return err
		}
		if found {
			bundle, err := pki.ParseBundle(current.Data)
			if err != nil {
				return fmt.Errorf("secret %s is invalid: %w; restore it, or delete it to replace the authority in stages",
					current.Name, err)
			}
			i.result.Credentials.Bundles[domain] = bundle
		}
		i.secrets[domain] = current
		if err := i.readUserAuthority(ctx, domain); err != nil {
			return err
		}
		if err := i.protectAuthority(ctx, domain); err != nil {
			return err
		}
	}
	return nil
}

// ensureAuthority creates a missing authority, or brings an existing one to the stage of the rotation. It never
// replaces an authority in one step, because clients that trust the old one would lose access.
//
// An authority is missing only if neither a leaf nor a pod depends on it, as in a new cluster, or if the user has
// permitted the replacement of a lost Secret: protectAuthority has handled all other cases. The user's authority is
// then used directly, because nothing trusts another one yet. If the operator already has an authority, a different one
// of the user is introduced by a rotation.
func (i *issuer) ensureAuthority(ctx context.Context, domain string) error {
	bundle, found := i.result.Credentials.Bundles[domain]
	if !found && !i.mayChange() {
		return nil
	}
	var err error
	authority, provided := i.result.Credentials.UserAuthorities[domain]
	switch {
	case found && i.mayChange():
		bundle, err = rotations.AdvanceAuthority(i.cluster, i.result.Credentials, domain, i.Now)
	case !found && provided:
		bundle.Signer = authority
	case !found:
		bundle.Signer, err = pki.NewAuthority(rotations.AuthorityName(i.cluster, domain),
			i.cluster.AuthorityLifetime(), i.Now)
	}
	if err != nil {
		return fmt.Errorf("authority %s: %w", domain, err)
	}
	if i.mayChange() {
		wanted := desired.AuthoritySecret(i.cluster, domain, bundle)
		exists := i.secrets[domain].ResourceVersion != ""
		if err := i.WriteSecret(ctx, i.cluster, exists, i.secrets[domain], wanted); err != nil {
			return err
		}
	}
	i.result.Credentials.Bundles[domain] = bundle
	i.expires(status.Expiry{
		Secret: desired.SecretName(i.cluster, domain), At: bundle.Signer.Expiry(), Renewal: bundle.Signer.Renewal(),
		Created: bundle.Signer.Created(),
	})
	return nil
}

// ensureLeaf issues a leaf certificate if it is missing or outdated, and stores it in its Secret. Only the Secret of
// the serving certificate may contain a certificate of the user.
//
// It also determines for which host the operator verifies the serving certificate: for the name of the Service if an
// authority of the cluster has issued it, and for the host of the endpoint if the user has provided it, because that is
// the only name that a user's certificate must have (pki.CheckServing).
func (i *issuer) ensureLeaf(ctx context.Context, certificate desired.Certificate) error {
	name := desired.SecretName(i.cluster, certificate.Secret)
	current := &corev1.Secret{}
	found, err := i.Find(ctx, i.cluster, name, current)
	if err != nil || !found && !i.mayChange() {
		return err
	}
	bundle := i.result.Credentials.Bundles[certificate.Domain]
	pair, trusted := desired.PairOf(current), current.Data[desired.AuthorityKey]
	if i.mayChange() {
		var reason string
		if pair, trusted, reason, err = i.leaf(ctx, certificate, current, found); err != nil {
			return err
		}
		issued := desired.LeafSecret(i.cluster, certificate.Secret, pair, trusted)
		if err := i.WriteSecret(ctx, i.cluster, found, current, issued); err != nil {
			return err
		}
		if found && reason != "" {
			i.Event(i.cluster, owned.Event{
				Related: owned.Reference("Secret", current), Reason: v1alpha1.ReasonCertificateIssued, Action: "Issue",
				Message: fmt.Sprintf("Issued certificate in Secret %s: %s", name, reason),
			})
		}
	}
	i.result.Credentials.Leaves[certificate.Secret] = pair
	if certificate.Secret == desired.ServingSecret {
		i.result.Credentials.Trusted, i.result.Credentials.ServerName = trusted, i.cluster.Name+"."+i.cluster.Namespace+".svc"
		if !bundle.Issued(pair) {
			i.result.Credentials.ServerName = endpointHost(i.Endpoint)
		}
	}
	created, due, expiry, err := pki.Validity(pair)
	i.expires(status.Expiry{Secret: name, At: expiry, Renewal: due, Created: created})
	return err
}

// leaf returns the desired content of a leaf's Secret: the certificate with its key, and the certificates that verify
// it. reason is why the certificate differs from the stored one, or "".
//
// A leaf that is still valid keeps its key, but not always its intermediate certificates (Rechain): when the old
// authority is dropped, servers no longer send the cross-signed certificate with which the leaf was issued in Reissue.
func (i *issuer) leaf(
	ctx context.Context, certificate desired.Certificate, current *corev1.Secret, found bool,
) (pair pki.Pair, trusted []byte, reason string, err error) {
	bundle := i.result.Credentials.Bundles[certificate.Domain]
	pair, trusted, reason = desired.PairOf(current), bundle.Trusted(), "missing"
	if certificate.Secret == desired.ServingSecret {
		user, err := i.readServingCertificate(ctx, current)
		if err != nil {
			return pki.Pair{}, nil, "", err
		}
		if user != nil {
			return user.pair, user.published(trusted), user.difference(pair), nil
		}
	}
	if found {
		reason = bundle.Evaluate(pair, certificate.Leaf, i.Now)
	}
	if reason != "" {
		pair, err = bundle.Issue(certificate.Leaf, i.Now)
		return pair, trusted, reason, err
	}
	pair, _ = bundle.Rechain(pair)
	return pair, trusted, "", nil
}

// expires reports the expiry of a certificate.
func (i *issuer) expires(e status.Expiry) { i.result.Expiries = append(i.result.Expiries, e) }

// EnsureKubeconfig publishes the administrator's kubeconfig. It follows Ensure in the same reconciliation, so that the
// kubeconfig never refers to a certificate that is not stored.
func EnsureKubeconfig(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, endpoint string, c credentials.Set,
) error {
	secret, err := desired.AdminKubeconfig(cluster, endpoint, c.Trusted, c.Leaves[desired.AdminSecret])
	if err != nil {
		return err
	}
	return objects.EnsureSecret(ctx, cluster, secret)
}

// AnnotatePods annotates each pod with the hash of the certificates and files that it reloads. The kubelet syncs a pod
// immediately when it is updated, including the files of its Secrets, instead of about once per minute. The annotation
// does not restart the pod, and nothing depends on it: without it, a rotation only takes longer. A pod that is deleted
// in between is not an error.
func AnnotatePods(ctx context.Context, objects owned.Objects, state *observed.State, hash string) error {
	for i := range state.Pods {
		pod := &state.Pods[i]
		if pod.DeletionTimestamp != nil || pod.Annotations[desired.CertificateHashAnnotation] == hash {
			continue
		}
		after := pod.DeepCopy()
		metav1.SetMetaDataAnnotation(&after.ObjectMeta, desired.CertificateHashAnnotation, hash)
		if err := objects.Client.Patch(ctx, after, client.MergeFrom(pod)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("annotate pod %s: %w", pod.Name, err)
		}
	}
	return nil
}
