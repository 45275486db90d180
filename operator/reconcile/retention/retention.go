package retention

import (
	"context"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned"
)

// EnsureOwnership gives the durable objects of a cluster the kind of owner that spec.deletion needs. It removes owner
// references also from objects of a cluster that may not be changed, because spec.deletion must hold when such a
// cluster is deleted. It adds owner references only if the cluster may be changed: a reference is what permits the
// garbage collector to delete.
func EnsureOwnership(ctx context.Context, objects owned.Objects, state *observed.State, mayChange bool) error {
	cluster := state.Cluster
	if !desired.Detached(cluster) && !mayChange {
		return nil
	}
	for i := range state.Claims {
		claim := state.Claims[i].DeepCopy()
		if err := objects.Own(cluster, claim); err != nil {
			return err
		}
		if err := objects.PatchClaim(ctx, &state.Claims[i], claim); err != nil {
			return err
		}
		state.Claims[i] = *claim
	}
	for _, name := range desired.KeySecrets(cluster) {
		current := &corev1.Secret{}
		err := objects.Client.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, current)
		if apierrors.IsNotFound(err) || err == nil && !desired.Owns(cluster, current) {
			continue
		}
		if err != nil {
			return fmt.Errorf("read Secret %s: %w", name, err)
		}
		after := current.DeepCopy()
		if err := objects.Own(cluster, after); err != nil {
			return err
		}
		if err := objects.Update(ctx, current, after); err != nil {
			return err
		}
	}
	return nil
}

// ownClaims returns the claims of a cluster, also those that are marked as retained.
func ownClaims(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster,
) ([]corev1.PersistentVolumeClaim, error) {
	all, err := labeledClaims(ctx, objects, cluster)
	return slices.DeleteFunc(all, func(claim corev1.PersistentVolumeClaim) bool {
		return !desired.Owns(cluster, &claim) || claim.DeletionTimestamp != nil
	}), err
}

// labeledClaims returns the claims with the labels of a cluster, including claims of a deleted cluster with the same
// name.
func labeledClaims(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster,
) ([]corev1.PersistentVolumeClaim, error) {
	var list corev1.PersistentVolumeClaimList
	selector := client.MatchingLabels(desired.Selector(cluster))
	if err := objects.Reader.List(ctx, &list, client.InNamespace(cluster.Namespace), selector); err != nil {
		return nil, fmt.Errorf("list persistent volume claims: %w", err)
	}
	return list.Items, nil
}

// ownSecrets returns the Secrets of keys of a cluster that exist, also those that are marked as retained.
func ownSecrets(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster,
) (secrets []*corev1.Secret, err error) {
	for _, name := range desired.KeySecrets(cluster) {
		secret := &corev1.Secret{}
		err := objects.Reader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, secret)
		switch {
		case apierrors.IsNotFound(err):
		case err != nil:
			return nil, fmt.Errorf("read Secret %s: %w", name, err)
		case desired.Owns(cluster, secret) && secret.DeletionTimestamp == nil:
			secrets = append(secrets, secret)
		}
	}
	return secrets, nil
}

// Retain marks the durable objects of a cluster that retains its data, before any object is deleted. The record is
// written first: marked objects without it could not be adopted. A cluster that has no data and whose claims were never
// bound to volumes retains nothing. A bound claim is enough to retain it: the pod that has written to the volume may be
// gone. A cluster that does not retain its data keeps only claims with the only copy of acknowledged writes.
func Retain(ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster) error {
	if !cluster.RetainsData() {
		return retainLostWrites(ctx, objects, cluster)
	}
	claims, err := ownClaims(ctx, objects, cluster)
	if err != nil {
		return err
	}
	stored, err := HasData(ctx, objects, cluster)
	if err != nil || !stored && !slices.ContainsFunc(claims, bound) {
		return err
	}
	secrets, err := ownSecrets(ctx, objects, cluster)
	if err != nil {
		return err
	}
	record, err := ensureRecord(ctx, objects, cluster, secrets)
	if err != nil {
		return err
	}
	marked := desired.RetainedFrom(record) != ""
	for i := range claims {
		after := claims[i].DeepCopy()
		desired.Retain(cluster, after)
		if err := objects.PatchClaim(ctx, &claims[i], after); err != nil {
			return err
		}
	}
	for _, secret := range append(secrets, record) { // the record last: it is marked once everything else is
		after := secret.DeepCopy()
		desired.Retain(cluster, after)
		if err := objects.Update(ctx, secret, after); err != nil {
			return err
		}
	}
	if !marked {
		objects.Event(cluster, owned.Event{
			Reason: v1alpha1.ReasonVolumesRetained, Action: "Retain",
			Message: fmt.Sprintf("Retained %d volumes and %d Secrets with the label %s=%s", len(claims), len(secrets),
				desired.RetainedLabel, cluster.UID),
		})
	}
	return nil
}

// bound reports whether a claim has, or had, a volume.
func bound(claim corev1.PersistentVolumeClaim) bool {
	return claim.Status.Phase == corev1.ClaimBound || claim.Status.Phase == corev1.ClaimLost
}

// ensureRecord returns the record of a cluster that is being deleted, and creates it if it does not exist. A record of
// this cluster is kept as it is: it was written before anything was deleted. The record of a cluster whose data this
// one has adopted is replaced.
func ensureRecord(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, secrets []*corev1.Secret,
) (*corev1.Secret, error) {
	record := desired.Record{Cluster: cluster}
	for _, secret := range secrets {
		record.Secrets = append(record.Secrets, secret.Name)
	}
	wanted, err := record.Secret()
	if err != nil {
		return nil, err
	}
	current := &corev1.Secret{}
	err = objects.Reader.Get(ctx, client.ObjectKeyFromObject(wanted), current)
	switch {
	case apierrors.IsNotFound(err):
		desired.Detach(cluster, wanted)
		if err := objects.Client.Create(ctx, wanted); err != nil {
			return nil, fmt.Errorf("create Secret %s: %w", wanted.Name, err)
		}
		return wanted, nil
	case err != nil:
		return nil, fmt.Errorf("read Secret %s: %w", wanted.Name, err)
	case !desired.Owns(cluster, current):
		return nil, owned.ForeignError(current)
	}
	if former, err := desired.ParseRecord(current); err == nil && former.Cluster.UID == cluster.UID {
		return current, nil
	}
	after := current.DeepCopy() // the record of the cluster whose data this one has adopted
	after.Data = wanted.Data
	return after, objects.Update(ctx, current, after)
}

// RetainClaim removes a claim from the cluster without deleting it, and reports why. The patch has an optimistic lock,
// and a claim that no longer exists is not an error. No cluster adopts such a claim: an administrator decides about its
// data.
func RetainClaim(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, claim *corev1.PersistentVolumeClaim,
) error {
	before := claim.DeepCopy()
	desired.Release(cluster, claim)
	if err := objects.Client.Patch(
		ctx, claim, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}),
	); err != nil {
		return client.IgnoreNotFound(err)
	}
	reason := "its former member has acknowledged writes that the other members lack"
	if claim.Annotations[desired.LostWritesAnnotation] == "" {
		reason = "its former member may have acknowledged writes that the other members lack: " +
			claim.Annotations[desired.UnprovenAnnotation]
	}
	objects.Event(cluster, owned.Event{
		Warning: true, Related: owned.Reference("PersistentVolumeClaim", claim),
		Reason: v1alpha1.ReasonVolumeRetained, Action: "Retain",
		Message: "PersistentVolumeClaim " + claim.Name + " is kept, because " + reason +
			"; delete it when you do not need these writes",
	})
	return nil
}

// retainLostWrites removes claims that have, or may have, the only copy of acknowledged writes from a cluster that is
// being deleted. A claim that is marked is still part of the cluster while the pod of its former member exists, which a
// dead node delays for ever.
func retainLostWrites(ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster) error {
	state, err := observed.Read(ctx, objects.Reader, cluster, "")
	if err != nil {
		return err
	}
	for i := range state.Claims {
		claim := &state.Claims[i]
		if state.LostWrites(claim.Name) == "" && !desired.Kept(claim) || desired.RetainedFrom(claim) != "" ||
			claim.DeletionTimestamp != nil {
			continue
		}
		if err := RetainClaim(ctx, objects, cluster, claim); err != nil {
			return err
		}
	}
	return nil
}

// HasData reports whether a cluster may have stored something. If its status was lost or never written, the annotations
// of the claims show it, and the pods of an operator that stopped right after it had created them. An external etcd
// always counts as data, since the operator cannot know.
func HasData(ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster) (bool, error) {
	if cluster.ExternalEtcd() || cluster.Bootstrapped() || cluster.Status.Recovery != nil {
		return true, nil
	}
	claims, err := ownClaims(ctx, objects, cluster)
	if err != nil {
		return false, err
	}
	started := func(claim corev1.PersistentVolumeClaim) bool {
		return claim.Annotations[desired.MemberIDAnnotation] != ""
	}
	if slices.ContainsFunc(claims, started) {
		return true, nil
	}
	var pods corev1.PodList
	selector := client.MatchingLabels(desired.Selector(cluster))
	if err := objects.Reader.List(ctx, &pods, client.InNamespace(cluster.Namespace), selector); err != nil {
		return false, fmt.Errorf("list pods: %w", err)
	}
	return slices.ContainsFunc(pods.Items, func(pod corev1.Pod) bool {
		return desired.Owns(cluster, &pod) && observed.RunsMember(&pod) && observed.HasRun(&pod)
	}), nil
}
