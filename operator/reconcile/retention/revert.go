package retention

import (
	"context"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/reconcile/owned"
)

// RevertAdoption marks objects as retained again if the cluster is deleted before its adoption is complete: they are
// not the cluster's data yet. That holds without the record, too, although the objects then cannot be adopted.
//
// Without the record, there are three cases. The status records the adoption of another cluster: the objects are the
// data of this cluster. The cluster has lost its status after the adoption and retains its data: the adoption is
// recorded again, and Retain keeps the objects under the UID of this cluster. Otherwise, they are marked with the UID
// of the former cluster, so that nothing deletes them.
func RevertAdoption(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, now time.Time,
) error {
	if cluster.Adopted() || cluster.Status.Membership != nil {
		return nil
	}
	former := cluster.Spec.Adopt.ClusterUID
	claims, err := ownClaims(ctx, objects, cluster)
	if err != nil {
		return err
	}
	secrets, err := ownSecrets(ctx, objects, cluster)
	if err != nil {
		return err
	}
	record := &corev1.Secret{}
	err = objects.Reader.Get(ctx,
		client.ObjectKey{Namespace: cluster.Namespace, Name: desired.SecretName(cluster, desired.RecordSecret)}, record)
	if client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("read Secret %s: %w", desired.SecretName(cluster, desired.RecordSecret), err)
	}
	if err != nil && cluster.Status.Adoption != nil {
		return nil // the objects are the data of this cluster
	}
	if err != nil && cluster.RetainsData() { // retain them under the UID of this cluster, with a new record
		if err := restoreAdoption(ctx, objects, cluster, errNoRecord, now); !errors.Is(err, errNoRecord) {
			return err
		}
	}
	if desired.Owns(cluster, record) {
		secrets = append(secrets, record)
	}
	for i := range claims {
		after := claims[i].DeepCopy()
		desired.Detach(cluster, after)
		desired.MarkRetained(former, after)
		if err := objects.PatchClaim(ctx, &claims[i], after); err != nil {
			return err
		}
	}
	for _, secret := range secrets {
		after := secret.DeepCopy()
		desired.Detach(cluster, after)
		desired.MarkRetained(former, after)
		if err := objects.Update(ctx, secret, after); err != nil {
			return err
		}
	}
	return nil
}
