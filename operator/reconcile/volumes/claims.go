package volumes

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned"
	"quorate.dev/operator/reconcile/retention"
)

// Delete deletes a claim that is still as it was observed: another operator may have marked it since. The UID and the
// resource version are preconditions of the deletion. It follows the removal of the member from etcd, so that no voter
// is left without its data.
func Delete(ctx context.Context, objects owned.Objects, state *observed.State, name string) error {
	claim := state.Claim(name)
	if claim == nil {
		return nil
	}
	unchanged := client.Preconditions{UID: &claim.UID, ResourceVersion: &claim.ResourceVersion}
	return client.IgnoreNotFound(objects.Client.Delete(ctx, claim, unchanged))
}

// Keep marks the claim of a member that is removed next. The mark is stored before the removal: after it, the member
// list no longer shows that the member existed, and the claim would be deleted like any claim of a former member.
func Keep(ctx context.Context, objects owned.Objects, state *observed.State, name, reason string) error {
	claim := state.Claim(name)
	if claim == nil {
		return nil
	}
	after := claim.DeepCopy()
	metav1.SetMetaDataAnnotation(&after.ObjectMeta, desired.UnprovenAnnotation, reason)
	return objects.PatchClaim(ctx, claim, after)
}

// Release removes a marked claim from the cluster without deleting it. The claim loses its owner, so that neither the
// operator nor the garbage collector deletes it, and keeps its name, which no new member gets.
func Release(ctx context.Context, objects owned.Objects, state *observed.State, name string) error {
	claim := state.Claim(name)
	if claim == nil || !observed.Kept(claim) {
		return nil
	}
	return retention.RetainClaim(ctx, objects, state.Cluster, claim)
}

// Relabel restores the labels of the claims of members in the status. Without them, a claim would not be found, and its
// member would be replaced. Only members whose claim is not listed are looked up by name. A claim with another owner is
// left alone. The relabeled claims are added to the observation, so that this reconciliation already plans with them.
func Relabel(ctx context.Context, objects owned.Objects, state *observed.State, now time.Time) error {
	cluster := state.Cluster
	if cluster.Paused(now) {
		return nil
	}
	for _, member := range cluster.Status.Members {
		if state.Claim(member.Name) != nil {
			continue
		}
		claim := &corev1.PersistentVolumeClaim{}
		err := objects.Reader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: member.Name}, claim)
		switch {
		case client.IgnoreNotFound(err) != nil:
			return fmt.Errorf("read claim %s: %w", member.Name, err)
		case err != nil, !desired.Owns(cluster, claim), claim.Labels[desired.ClusterLabel] == cluster.Name:
			continue
		}
		if err := objects.Relabel(ctx, cluster, claim); err != nil {
			return err
		}
		state.Claims = append(state.Claims, *claim)
	}
	return nil
}
