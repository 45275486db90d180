package upgrade

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	etcdversion "go.etcd.io/etcd/api/v3/version"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/backup"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned"
)

// Input is what Hold depends on.
type Input struct {
	State     *observed.State
	Members   []membership.Member
	HasQuorum bool
	Image     string // the operator's own image
	Window    string // why the rollout waits for a maintenance window; "" in one
}

// Result is the result of Hold.
type Result struct {
	Held        string // why pods with the former image keep it for now; "": the upgrade is not held
	FormerImage string // image of the pods of members that are created while the upgrade is held; "": the next image
}

// upgrader takes the backup before a change of the image of one cluster.
type upgrader struct {
	owned.Objects
	Input
	cluster *v1alpha1.ApiServerCluster
}

// Hold takes the backup before a change of the image, and returns why pods with the former image keep it for now. Pods
// that are created while the upgrade is held, or if Hold returns an error, get the former image: a member that is
// replaced at that time must not be the first with the next version.
func Hold(ctx context.Context, objects owned.Objects, in Input) (result Result, err error) {
	u := &upgrader{Objects: objects, Input: in, cluster: in.State.Cluster}
	if in.HasQuorum {
		result.Held, err = u.awaitBackup(ctx)
	} else {
		result.Held, err = u.keepHeld(ctx)
	}
	if recorded := u.cluster.Status.Upgrade; recorded != nil && recorded.Image == in.State.Image &&
		(result.Held != "" || err != nil) {
		result.FormerImage = recorded.FormerImage
	}
	return result, err
}

// keepHeld returns why pods keep the former image while etcd has no quorum. Without a quorum no backup can be taken and
// no etcd version is known, so a backup that has been recorded stays required. It assumes one member with the former
// image and an unknown version, the case in which backup.BeforeUpgrade is most careful. An image that is not recorded
// is not held: no upgrade was in progress when the quorum was lost.
func (u *upgrader) keepHeld(ctx context.Context) (string, error) {
	recorded := u.cluster.Status.Upgrade
	if recorded == nil || recorded.Image != u.State.Image {
		return "", nil
	}
	state, message, err := u.backup(ctx)
	change := backup.Upgrade{Policy: policyOf(u.cluster), Former: []string{""}, Destination: true, Backup: state}
	if err != nil || backup.BeforeUpgrade(change) == backup.Proceed {
		return "", err
	}
	return message, nil
}

// awaitBackup takes a backup if a backup is required. It returns the reason for which the upgrade waits, or "". A
// record of another image belongs to an upgrade that the user has replaced by another one, and is discarded together
// with its backup requirement. The changes of status.upgrade that are not written here are written with the status at
// the end of the reconciliation, because nothing acts on them.
func (u *upgrader) awaitBackup(ctx context.Context) (string, error) {
	change := u.versions()
	if u.cluster.ExternalEtcd() || len(change.Former) == 0 {
		u.cluster.Status.Upgrade = nil // the upgrade is finished or was reverted
		return "", nil
	}
	destination, err := u.destination(ctx)
	if err != nil {
		return "", err
	}
	change.Destination = destination != nil
	recorded := u.cluster.Status.Upgrade
	if recorded != nil && recorded.Image != u.State.Image {
		recorded, u.cluster.Status.Upgrade = nil, nil
	}
	var message string
	if recorded != nil {
		if change.Backup, message, err = u.backup(ctx); err != nil {
			return "", err
		}
	}
	switch backup.BeforeUpgrade(change) {
	case backup.SkipBackup:
		if u.Window != "" {
			return "", nil // until the window opens, the user may still set a destination
		}
		return "", u.skipBackup(ctx)
	case backup.TakeBackup:
		return u.takeBackup(ctx, *destination)
	case backup.Hold:
		recorded.Message = message
		return message, nil
	}
	if recorded != nil && change.Backup == backup.UpgradeCompleted {
		recorded.Message = "Backup " + recorded.BackupName + " is completed"
	}
	return "", nil
}

// policyOf returns the policy of the spec, or the default.
func policyOf(cluster *v1alpha1.ApiServerCluster) backup.UpgradePolicy {
	return backup.UpgradePolicy(cmp.Or(cluster.Spec.Maintenance.UpgradeBackup.Policy, v1alpha1.BackupEtcdMinorVersion))
}

// versions returns the etcd versions of the members that run the former and the next image. A member that does not
// respond is assumed to have the version of other members with the same image. A member without a pod had the former
// image if the upgrade is recorded, because pods get that image while the upgrade is held.
func (u *upgrader) versions() backup.Upgrade {
	change := backup.Upgrade{Policy: policyOf(u.cluster)}
	for _, m := range u.Members {
		if !m.Learner {
			change.Voters++
		}
	}
	versions := map[string]string{} // by image
	for _, m := range u.State.Members {
		if pod := u.State.Pod(m.Name); pod != nil && m.Version != "" {
			versions[imageOf(pod)] = m.Version
		}
	}
	recorded := u.cluster.Status.Upgrade
	for _, m := range u.State.Members {
		image := ""
		if pod := u.State.Pod(m.Name); pod != nil {
			image = imageOf(pod)
		} else if recorded != nil && recorded.Image == u.State.Image {
			image = recorded.FormerImage
		}
		version := cmp.Or(m.Version, versions[image])
		switch {
		case image == "", image == u.State.Image && version == "":
		case image == u.State.Image:
			change.Next = append(change.Next, version)
		default:
			change.Former = append(change.Former, version)
		}
	}
	if len(change.Next) == 0 && u.State.Image == u.Image { // the next image is the image of this operator
		change.Next = []string{etcdversion.Version}
	}
	return change
}

// formerImage returns the image of a member that does not run the next image, or "".
func formerImage(s *observed.State) string {
	for _, m := range s.Members {
		if pod := s.Pod(m.Name); pod != nil && imageOf(pod) != s.Image {
			return imageOf(pod)
		}
	}
	return ""
}

// imageOf returns the image of the server in a pod, or "".
func imageOf(pod *corev1.Pod) string {
	for _, c := range pod.Spec.Containers {
		if c.Name == desired.ServerContainer {
			return c.Image
		}
	}
	return ""
}

// destination returns the spec of the backup. Its destination is the destination in the cluster's spec or, if the spec
// has none, the destination of the cluster's first schedule by name. destination returns nil if there is neither. The
// order by name makes the choice independent of the cache.
func (u *upgrader) destination(ctx context.Context) (*v1alpha1.ApiServerBackupSpec, error) {
	if spec := u.cluster.Spec.Maintenance.UpgradeBackup; spec.Destination != nil {
		return &v1alpha1.ApiServerBackupSpec{
			ClusterName: u.cluster.Name, Destination: *spec.Destination, Encryption: spec.Encryption,
		}, nil
	}
	var list v1alpha1.ApiServerBackupScheduleList
	if err := u.Client.List(ctx, &list, client.InNamespace(u.cluster.Namespace)); err != nil {
		return nil, fmt.Errorf("list backup schedules: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.ApiServerBackupSchedule) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range list.Items {
		if t := s.Spec.Template; t.ClusterName == u.cluster.Name {
			return &v1alpha1.ApiServerBackupSpec{
				ClusterName: t.ClusterName, Destination: t.Destination, Encryption: t.Encryption,
				TimeoutSeconds: t.TimeoutSeconds, StartTimeoutSeconds: t.StartTimeoutSeconds,
			}, nil
		}
	}
	return nil, nil
}

// backup returns the state of the recorded backup, and the message about it for the status. A record without a name
// means that the backup was skipped. A backup of another cluster with the recorded name counts as failed: it must not
// satisfy the requirement, and only the user can delete it.
func (u *upgrader) backup(ctx context.Context) (state backup.UpgradeState, message string, err error) {
	name := u.cluster.Status.Upgrade.BackupName
	if name == "" {
		return backup.UpgradeSkipped, "", nil
	}
	b := &v1alpha1.ApiServerBackup{}
	err = u.Reader.Get(ctx, client.ObjectKey{Namespace: u.cluster.Namespace, Name: name}, b)
	switch {
	case apierrors.IsNotFound(err):
		return backup.UpgradeDeleted, "Waiting for backup " + name + " before etcd is upgraded", nil
	case err != nil:
		return "", "", fmt.Errorf("read backup %s: %w", name, err)
	case b.Spec.ClusterName != u.cluster.Name:
		return backup.UpgradeFailed, "Waiting for backup " + name + " of another cluster to be deleted", nil
	}
	reason := ""
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BackupComplete); c != nil {
		reason = ": " + c.Message
	}
	switch b.Status.Phase {
	case v1alpha1.BackupCompleted:
		return backup.UpgradeCompleted, "", nil
	case v1alpha1.BackupFailed:
		return backup.UpgradeFailed, "Backup " + name + " before the upgrade of etcd failed; delete it to take another one" +
			reason, nil
	}
	return backup.UpgradePending, "Waiting for backup " + name + " before etcd is upgraded" + reason, nil
}

// takeBackup records the name of the backup in the status and then creates it. Outside of maintenance windows it only
// records the name, because a backup that is taken now would be outdated when the rollout begins. A name and a former
// image that are already recorded are kept: the former image is no longer known once no pod runs it.
func (u *upgrader) takeBackup(ctx context.Context, spec v1alpha1.ApiServerBackupSpec) (string, error) {
	name := BackupName(u.cluster)
	if recorded := u.cluster.Status.Upgrade; recorded != nil && recorded.BackupName != "" {
		name = recorded.BackupName
	}
	message := cmp.Or(u.Window, "Waiting for backup "+name+" before etcd is upgraded")
	next := v1alpha1.UpgradeStatus{
		Image: u.State.Image, FormerImage: formerImage(u.State), BackupName: name, Message: message,
	}
	if recorded := u.cluster.Status.Upgrade; recorded != nil {
		next.FormerImage = cmp.Or(recorded.FormerImage, next.FormerImage)
	}
	if err := u.record(ctx, next); err != nil {
		return "", err
	}
	if u.Window != "" {
		return message, nil
	}
	b := &v1alpha1.ApiServerBackup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: u.cluster.Namespace, Name: name, Labels: map[string]string{desired.ManagedByLabel: desired.ManagedBy},
		},
		Spec: spec,
	}
	if err := u.Client.Create(ctx, b); client.IgnoreAlreadyExists(err) != nil {
		return "", fmt.Errorf("create backup %s: %w", name, err)
	}
	u.Event(u.cluster, owned.Event{
		Reason: v1alpha1.ReasonUpgradeBackupCreated, Action: "Upgrade",
		Message: "Created ApiServerBackup " + name + " before etcd is upgraded",
	})
	return message, nil
}

// BackupName returns the name of the backup before an upgrade. It is unique to a generation of the spec. The name
// contains a part of the UID, because backups outlive their cluster and a later cluster with the same name must not
// rely on them.
func BackupName(cluster *v1alpha1.ApiServerCluster) string {
	const limit = 57 // maximum length of a backup's name, to which the names of its pods add a suffix
	const part = 8   // length of the first group of a UID
	suffix := fmt.Sprintf("-upgrade-%s-%d", cluster.UID[:min(len(cluster.UID), part)], cluster.Generation)
	return cluster.Name[:min(len(cluster.Name), limit-len(suffix))] + suffix
}

// skipBackup records in the status that there is no destination for the backup, so that the upgrade proceeds.
func (u *upgrader) skipBackup(ctx context.Context) error {
	const message = "Skipping the backup before the upgrade of etcd: set spec.maintenance.upgradeBackup.destination or " +
		"create a schedule"
	if err := u.record(ctx, v1alpha1.UpgradeStatus{Image: u.State.Image, Message: message}); err != nil {
		return err
	}
	u.Event(u.cluster, owned.Event{
		Warning: true, Reason: v1alpha1.ReasonUpgradeBackupSkipped, Action: "Upgrade", Message: message,
	})
	return nil
}

// record writes status.upgrade with an optimistic lock, if it differs.
func (u *upgrader) record(ctx context.Context, s v1alpha1.UpgradeStatus) error {
	before := u.cluster.DeepCopy()
	if recorded := before.Status.Upgrade; recorded != nil && *recorded == s {
		return nil
	}
	u.cluster.Status.Upgrade = &s
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := u.Client.Status().Patch(ctx, u.cluster, patch); err != nil {
		return fmt.Errorf("record the upgrade: %w", err)
	}
	return nil
}
