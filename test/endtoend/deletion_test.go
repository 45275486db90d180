package endtoend

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
)

// deleteAndAdopt deletes a cluster of one member that encrypts the Secret hidden at rest. At first the cluster is
// protected: with the admission policy the API rejects the deletion, and without the policy the operator keeps the
// cluster running. Then the cluster is deleted after a final backup, and a new one adopts its volume and keys.
func (b *backupTest) deleteAndAdopt(name string, volume v1alpha1.BackupDestination) {
	b.t.Helper()
	former := b.named(name)
	base := former.DeepCopy()
	former.Spec.Deletion = v1alpha1.Deletion{
		Protected: true, Policy: v1alpha1.RetainData, FinalBackup: &v1alpha1.FinalBackup{Destination: volume},
	}
	check(b.t, b.clusters.Patch(b.t.Context(), former, ctrl.MergeFrom(base)))
	policy := b.file(b.kustomize("../../config/admission"))
	b.run(b.management, "apply", "-f", policy)
	refused := func() (bool, string) {
		output, err := b.try(b.management, "delete", "asc", name, "--dry-run=server")
		return err != nil &&
			strings.Contains(output, "ApiServerCluster "+name+" is protected: set spec.deletion.protected to false"), output
	}
	b.waitFor("the API to refuse the deletion", refused)
	b.run(b.management, "delete", "-f", policy)
	b.waitFor("the API without the policy", func() (bool, string) {
		denied, output := refused()
		return !denied, output
	})

	b.run(b.management, "delete", "asc", name, "--cascade=foreground", "--wait=false")
	b.deletionWaits(name, v1alpha1.ReasonDeletionProtected)
	b.readsHidden(name)
	b.run(b.management, "patch", "asc", name, "--type=merge", "-p", `{"spec":{"deletion":{"protected":false}}}`)
	b.run(b.management, "wait", "asc/"+name, "--for=delete", "--timeout=120s")
	b.completed(fmt.Sprintf("%s-final-%s", name, former.UID[:8]))
	var claims corev1.PersistentVolumeClaimList
	check(b.t, b.clusters.List(b.t.Context(), &claims, ctrl.MatchingLabels{
		"quorate.dev/retained-from": string(former.UID),
	}))
	if len(claims.Items) != 1 || claims.Items[0].DeletionTimestamp != nil {
		b.t.Fatalf("retained claims: %+v", claims.Items)
	}

	b.create(&v1alpha1.ApiServerCluster{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"},
		Spec: v1alpha1.ApiServerClusterSpec{
			Replicas: ptr.To[int32](1), Encryption: former.Spec.Encryption,
			Adopt: &v1alpha1.Adoption{ClusterUID: string(former.UID)},
		},
	})
	b.settledCluster(name, 1)
	b.readsHidden(name)
	adopted := &corev1.PersistentVolumeClaim{}
	check(b.t, b.clusters.Get(b.t.Context(), ctrl.ObjectKeyFromObject(&claims.Items[0]), adopted))
	if adopted.UID != claims.Items[0].UID || !metav1.IsControlledBy(adopted, b.named(name)) {
		b.t.Errorf("the cluster does not own the retained volume: %+v", adopted.ObjectMeta)
	}
	b.waitFor("the record of the deleted cluster to be deleted", func() (bool, string) {
		_, err := b.pods.CoreV1().Secrets("default").Get(b.t.Context(), name+"-retained", metav1.GetOptions{})
		return apierrors.IsNotFound(err), fmt.Sprint(err)
	})
}

func (b *backupTest) deletionWaits(name, reason string) {
	b.t.Helper()
	b.waitFor("condition Deleting with reason "+reason, func() (bool, string) {
		c := meta.FindStatusCondition(b.named(name).Status.Conditions, v1alpha1.Deleting)
		return c != nil && c.Status == metav1.ConditionFalse && c.Reason == reason, fmt.Sprint(c)
	})
}

// readsHidden reads the Secret that restoreEncryptedAtRest has created.
func (b *backupTest) readsHidden(name string) {
	b.t.Helper()
	b.waitFor("the Secret in cluster "+name, func() (bool, string) {
		got, err := b.client(name).CoreV1().Secrets("default").Get(b.t.Context(), "hidden", metav1.GetOptions{})
		return err == nil && string(got.Data["password"]) == "swordfish", fmt.Sprint(err)
	})
}
