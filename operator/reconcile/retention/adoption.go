package retention

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/reconcile/owned"
)

// Adopt makes the cluster the owner of the objects that were retained from the cluster in spec.adopt, and continues
// with that cluster's status. Nothing else is created before. Each step can be repeated: the status is written once all
// objects are adopted, and the record is deleted after that.
//
// The status is written last because the next steps depend on it: with the former membership, its members start from
// their volumes; without it, the next step would bootstrap a new etcd. Everything is read, and every problem reported,
// before the first object changes its owner.
func Adopt(ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, now time.Time) error {
	if cluster.Spec.Adopt == nil {
		return nil
	}
	if cluster.Adopted() {
		return deleteRecord(ctx, objects, cluster)
	}
	if cluster.Status.Membership != nil {
		return nil // the validation reports it
	}
	secret, record, err := readRecord(ctx, objects, cluster)
	if errors.Is(err, errNoRecord) {
		return restoreAdoption(ctx, objects, cluster, err, now)
	}
	if err != nil {
		return err
	}
	claims, err := retainedClaims(ctx, objects, cluster)
	if err != nil {
		return err
	}
	secrets, err := retainedSecrets(ctx, objects, cluster, record)
	if err != nil {
		return err
	}
	if len(claims) == 0 && !cluster.ExternalEtcd() {
		return fmt.Errorf("no PersistentVolumeClaim has the label %s=%s: the volumes of the deleted cluster are gone; "+
			"restore a backup instead", desired.RetainedLabel, cluster.Spec.Adopt.ClusterUID)
	}
	for i := range claims {
		after := claims[i].DeepCopy()
		desired.Adopt(cluster, after)
		if err := objects.PatchClaim(ctx, &claims[i], after); err != nil {
			return err
		}
	}
	for _, current := range append(secrets, secret) {
		after := current.DeepCopy()
		desired.Adopt(cluster, after)
		if err := objects.Update(ctx, current, after); err != nil {
			return err
		}
	}
	return finishAdoption(ctx, objects, cluster, record, len(claims), len(secrets), now)
}

func finishAdoption(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, record desired.Record,
	claims, secrets int, now time.Time,
) error {
	if err := recordAdoption(
		ctx, objects, cluster, desired.AdoptedStatus(cluster.Status, record.Cluster), now,
	); err != nil {
		return err
	}
	objects.Event(cluster, owned.Event{
		Reason: v1alpha1.ReasonVolumesAdopted, Action: "Adopt",
		Message: fmt.Sprintf("Adopted %d volumes and %d Secrets of the deleted cluster %s", claims, secrets,
			cluster.Spec.Adopt.ClusterUID),
	})
	return nil
}

// recordAdoption writes the status of a cluster that has adopted the objects in spec.adopt, with an optimistic lock.
func recordAdoption(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster,
	next v1alpha1.ApiServerClusterStatus, now time.Time,
) error {
	before := cluster.DeepCopy()
	cluster.Status = next
	cluster.Status.Adoption = &v1alpha1.AdoptionStatus{
		ClusterUID: cluster.Spec.Adopt.ClusterUID, Time: metav1.NewTime(now),
	}
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := objects.Client.Status().Patch(ctx, cluster, patch); err != nil {
		return fmt.Errorf("record the adoption: %w", err)
	}
	return nil
}

// restoreAdoption records a former adoption again that the cluster has lost together with its status. The operator
// deletes the record of an adopted cluster. Such a cluster owns volumes, and nothing is left to adopt. Otherwise,
// restoreAdoption returns the error of reading the record: an empty cluster that names a former one must not begin with
// new volumes.
func restoreAdoption(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, missing error, now time.Time,
) error {
	claims, err := ownClaims(ctx, objects, cluster)
	if err != nil {
		return err
	}
	if len(claims) == 0 {
		return missing
	}
	retained := client.MatchingLabels{desired.RetainedLabel: cluster.Spec.Adopt.ClusterUID}
	for _, list := range []client.ObjectList{&corev1.PersistentVolumeClaimList{}, &corev1.SecretList{}} {
		if err := objects.Reader.List(ctx, list, client.InNamespace(cluster.Namespace), retained); err != nil {
			return fmt.Errorf("list retained objects: %w", err)
		}
		if meta.LenList(list) > 0 {
			return missing
		}
	}
	return recordAdoption(ctx, objects, cluster, cluster.Status, now)
}

// mayAdopt reports whether an object was retained from the cluster in spec.adopt, or is adopted already. The second
// case makes an adoption repeatable.
func mayAdopt(cluster *v1alpha1.ApiServerCluster, object client.Object) bool {
	return desired.RetainedFrom(object) == cluster.Spec.Adopt.ClusterUID || desired.Owns(cluster, object)
}

// errNoRecord marks the error of reading a record that does not exist.
var errNoRecord = errors.New("does not exist")

// readRecord returns the record of the cluster in spec.adopt.
func readRecord(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster,
) (*corev1.Secret, desired.Record, error) {
	secret, name := &corev1.Secret{}, desired.SecretName(cluster, desired.RecordSecret)
	err := objects.Reader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, secret)
	if apierrors.IsNotFound(err) {
		return nil, desired.Record{}, fmt.Errorf("spec.adopt: Secret %s %w: no cluster of this name was retained",
			name, errNoRecord)
	}
	if err != nil {
		return nil, desired.Record{}, fmt.Errorf("read Secret %s: %w", name, err)
	}
	record, err := desired.ParseRecord(secret)
	switch former := record.Cluster; {
	case err != nil:
		return nil, record, err
	case string(former.UID) != cluster.Spec.Adopt.ClusterUID || !mayAdopt(cluster, secret):
		return nil, record, fmt.Errorf("spec.adopt.clusterUID is %s, but Secret %s was retained from %s",
			cluster.Spec.Adopt.ClusterUID, name, former.UID)
	case former.ExternalEtcd() != cluster.ExternalEtcd() || former.IsExtension() != cluster.IsExtension():
		return nil, record, errors.New("spec.adopt: the deleted cluster had another mode or kind of etcd")
	}
	return secret, record, nil
}

// retainedClaims returns the claims of the deleted cluster that a cluster adopts.
func retainedClaims(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster,
) ([]corev1.PersistentVolumeClaim, error) {
	all, err := labeledClaims(ctx, objects, cluster)
	return slices.DeleteFunc(all, func(claim corev1.PersistentVolumeClaim) bool { return !mayAdopt(cluster, &claim) }), err
}

// retainedSecrets returns the Secrets of a record. One that is missing would be replaced, which makes tokens,
// kubeconfigs or stored objects useless: the user decides.
func retainedSecrets(
	ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster, record desired.Record,
) (all []*corev1.Secret, err error) {
	for _, name := range record.Secrets {
		secret := &corev1.Secret{}
		err := objects.Reader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, secret)
		replaceable := name != desired.SecretName(cluster, desired.EncryptionSecret)
		switch {
		case client.IgnoreNotFound(err) != nil:
			return nil, fmt.Errorf("read Secret %s: %w", name, err)
		case err == nil && mayAdopt(cluster, secret):
			all = append(all, secret)
		case err == nil:
			return nil, fmt.Errorf("spec.adopt: Secret %s has another owner", name)
		case !replaceable:
			return nil, fmt.Errorf("spec.adopt: Secret %s, with which stored objects are encrypted, is missing: restore it "+
				"with the label %s=%s",
				name, desired.RetainedLabel, cluster.Spec.Adopt.ClusterUID)
		case !cluster.MayReplaceSecret(name):
			return nil, fmt.Errorf("spec.adopt: Secret %s is missing: restore it with the label %s=%s, or list it in the "+
				"annotation %s to let the operator create a new one", name, desired.RetainedLabel, cluster.Spec.Adopt.ClusterUID,
				v1alpha1.ReplaceSecretsAnnotation)
		}
	}
	return all, nil
}

// deleteRecord deletes the record of an adopted cluster, which no longer describes the present one.
func deleteRecord(ctx context.Context, objects owned.Objects, cluster *v1alpha1.ApiServerCluster) error {
	record := &corev1.Secret{}
	err := objects.Client.Get(ctx,
		client.ObjectKey{Namespace: cluster.Namespace, Name: desired.SecretName(cluster, desired.RecordSecret)}, record)
	if apierrors.IsNotFound(err) || err == nil && (!desired.Owns(cluster, record) || cluster.DeletionTimestamp != nil) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read Secret %s: %w", desired.SecretName(cluster, desired.RecordSecret), err)
	}
	return client.IgnoreNotFound(objects.Client.Delete(ctx, record, client.Preconditions{UID: &record.UID}))
}
