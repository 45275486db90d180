package reconcile

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
)

// holdUpgrade takes the backup before a change of the image, and returns why outdated members keep their image, or "".
// Pods that are recreated meanwhile get the former image.
func (r *Reconciler) holdUpgrade(ctx context.Context, p *pass, o membership.Observation) (held string, err error) {
	if o.HasQuorum {
		held, err = r.awaitUpgradeBackup(ctx, p, o.Members)
	} else {
		held, err = r.keepUpgradeHeld(ctx, p)
	}
	if recorded := p.cluster.Status.Upgrade; recorded != nil && recorded.Image == p.state.Image && (held != "" || err != nil) {
		p.formerImage = recorded.FormerImage
	}
	return held, err
}

// keepUpgradeHeld returns why outdated members keep their image while etcd has no quorum: no backup can be taken, and
// no version is known.
func (r *Reconciler) keepUpgradeHeld(ctx context.Context, p *pass) (string, error) {
	recorded := p.cluster.Status.Upgrade
	if recorded == nil || recorded.Image != p.state.Image {
		return "", nil
	}
	state, message, err := r.upgradeBackup(ctx, p.cluster)
	u := backup.Upgrade{Policy: upgradePolicy(p.cluster), Former: []string{""}, Destination: true, Backup: state}
	if err != nil || backup.BeforeUpgrade(u) == backup.Proceed {
		return "", err
	}
	return message, nil
}

// awaitUpgradeBackup takes the backup and returns what the upgrade waits for, or "".
func (r *Reconciler) awaitUpgradeBackup(ctx context.Context, p *pass, members []membership.Member) (string, error) {
	u := r.upgrade(p, members)
	if p.cluster.ExternalEtcd() || len(u.Former) == 0 {
		p.cluster.Status.Upgrade = nil // the upgrade has finished or was reverted
		return "", nil
	}
	destination, err := r.upgradeDestination(ctx, p.cluster)
	if err != nil {
		return "", err
	}
	u.Destination = destination != nil
	recorded := p.cluster.Status.Upgrade
	if recorded != nil && recorded.Image != p.state.Image {
		recorded, p.cluster.Status.Upgrade = nil, nil
	}
	var message string
	if recorded != nil {
		if u.Backup, message, err = r.upgradeBackup(ctx, p.cluster); err != nil {
			return "", err
		}
	}
	switch backup.BeforeUpgrade(u) {
	case backup.SkipBackup:
		if p.input.Held != "" {
			return "", nil // the user may set a destination until the rollout begins
		}
		return "", r.skipUpgradeBackup(ctx, p)
	case backup.TakeBackup:
		return r.takeUpgradeBackup(ctx, p, *destination)
	case backup.Hold:
		recorded.Message = message
		return message, nil
	}
	if recorded != nil && u.Backup == backup.UpgradeCompleted {
		recorded.Message = "Backup " + recorded.BackupName + " is completed"
	}
	return "", nil
}

func upgradePolicy(cluster *v1alpha1.ApiServerCluster) backup.UpgradePolicy {
	return backup.UpgradePolicy(cmp.Or(cluster.Spec.Maintenance.UpgradeBackup.Policy, v1alpha1.BackupEtcdMinorVersion))
}

// upgrade returns the etcd versions that the members run with the former and with the next image. A member that does
// not respond is assumed to have the version of other members with its image. A member without a pod had the former
// image if the upgrade is recorded: while the upgrade is held, pods are created with that image.
func (r *Reconciler) upgrade(p *pass, members []membership.Member) backup.Upgrade {
	u := backup.Upgrade{Policy: upgradePolicy(p.cluster)}
	for _, m := range members {
		if !m.Learner {
			u.Voters++
		}
	}
	versions := map[string]string{} // by image
	for _, m := range p.state.Members {
		if pod := p.state.Pod(m.Name); pod != nil && m.Version != "" {
			versions[imageOf(pod)] = m.Version
		}
	}
	recorded := p.cluster.Status.Upgrade
	for _, m := range p.state.Members {
		image := ""
		if pod := p.state.Pod(m.Name); pod != nil {
			image = imageOf(pod)
		} else if recorded != nil && recorded.Image == p.state.Image {
			image = recorded.FormerImage
		}
		version := cmp.Or(m.Version, versions[image])
		switch {
		case image == "", image == p.state.Image && version == "":
		case image == p.state.Image:
			u.Next = append(u.Next, version)
		default:
			u.Former = append(u.Former, version)
		}
	}
	if len(u.Next) == 0 && p.state.Image == r.Image { // the operator's own image
		u.Next = []string{etcdversion.Version}
	}
	return u
}

// formerImage returns the image of a member that does not run the next one, or "".
func formerImage(s *observed.State) string {
	for _, m := range s.Members {
		if pod := s.Pod(m.Name); pod != nil && imageOf(pod) != s.Image {
			return imageOf(pod)
		}
	}
	return ""
}

func imageOf(pod *corev1.Pod) string {
	for _, c := range pod.Spec.Containers {
		if c.Name == desired.ServerContainer {
			return c.Image
		}
	}
	return ""
}

// upgradeDestination returns where the backup is stored, or nil.
func (r *Reconciler) upgradeDestination(ctx context.Context, cluster *v1alpha1.ApiServerCluster) (*v1alpha1.ApiServerBackupSpec, error) {
	if spec := cluster.Spec.Maintenance.UpgradeBackup; spec.Destination != nil {
		return &v1alpha1.ApiServerBackupSpec{
			ClusterName: cluster.Name, Destination: *spec.Destination, Encryption: spec.Encryption,
		}, nil
	}
	var list v1alpha1.ApiServerBackupScheduleList
	if err := r.Client.List(ctx, &list, client.InNamespace(cluster.Namespace)); err != nil {
		return nil, fmt.Errorf("listing backup schedules: %w", err)
	}
	slices.SortFunc(list.Items, func(a, b v1alpha1.ApiServerBackupSchedule) int { return cmp.Compare(a.Name, b.Name) })
	for _, s := range list.Items {
		if t := s.Spec.Template; t.ClusterName == cluster.Name {
			return &v1alpha1.ApiServerBackupSpec{
				ClusterName: t.ClusterName, Destination: t.Destination, Encryption: t.Encryption,
				TimeoutSeconds: t.TimeoutSeconds, StartTimeoutSeconds: t.StartTimeoutSeconds,
			}, nil
		}
	}
	return nil, nil
}

// upgradeBackup returns the state of the recorded backup and what the rollout waits for.
func (r *Reconciler) upgradeBackup(
	ctx context.Context, cluster *v1alpha1.ApiServerCluster,
) (state backup.UpgradeState, message string, err error) {
	name := cluster.Status.Upgrade.BackupName
	if name == "" {
		return backup.UpgradeSkipped, "", nil
	}
	b := &v1alpha1.ApiServerBackup{}
	err = r.Reader.Get(ctx, client.ObjectKey{Namespace: cluster.Namespace, Name: name}, b)
	switch {
	case apierrors.IsNotFound(err):
		return backup.UpgradeDeleted, "Waiting for backup " + name + " before etcd is upgraded", nil
	case err != nil:
		return "", "", fmt.Errorf("reading backup %s: %w", name, err)
	case b.Spec.ClusterName != cluster.Name:
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
		return backup.UpgradeFailed, "Backup " + name + " before the upgrade of etcd failed; delete it to take another one" + reason, nil
	}
	return backup.UpgradePending, "Waiting for backup " + name + " before etcd is upgraded" + reason, nil
}

// takeUpgradeBackup records the name of the backup, then creates it. It waits for the maintenance window, because an
// earlier backup would be outdated when the rollout begins.
func (r *Reconciler) takeUpgradeBackup(ctx context.Context, p *pass, spec v1alpha1.ApiServerBackupSpec) (string, error) {
	name := upgradeBackupName(p.cluster)
	if recorded := p.cluster.Status.Upgrade; recorded != nil && recorded.BackupName != "" {
		name = recorded.BackupName
	}
	message := cmp.Or(p.input.Held, "Waiting for backup "+name+" before etcd is upgraded")
	next := v1alpha1.UpgradeStatus{Image: p.state.Image, FormerImage: formerImage(p.state), BackupName: name, Message: message}
	if recorded := p.cluster.Status.Upgrade; recorded != nil {
		next.FormerImage = cmp.Or(recorded.FormerImage, next.FormerImage)
	}
	if err := r.recordUpgrade(ctx, p, next); err != nil {
		return "", err
	}
	if p.input.Held != "" {
		return message, nil
	}
	b := &v1alpha1.ApiServerBackup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.cluster.Namespace, Name: name, Labels: map[string]string{desired.ManagedByLabel: desired.ManagedBy},
		},
		Spec: spec,
	}
	if err := r.Client.Create(ctx, b); client.IgnoreAlreadyExists(err) != nil {
		return "", fmt.Errorf("creating backup %s: %w", name, err)
	}
	r.event(p.cluster, event{
		reason: v1alpha1.ReasonUpgradeBackupCreated, action: "Upgrade", message: "Created ApiServerBackup " + name + " before etcd is upgraded",
	})
	return message, nil
}

// upgradeBackupName returns a name that is unique to one change of the spec. It contains a part of the UID, because
// backups outlive their cluster: a new cluster with the same name must not use them.
func upgradeBackupName(cluster *v1alpha1.ApiServerCluster) string {
	const limit = 57 // of the names of backups
	const part = 8   // the first group of a UID
	suffix := fmt.Sprintf("-upgrade-%s-%d", cluster.UID[:min(len(cluster.UID), part)], cluster.Generation)
	return cluster.Name[:min(len(cluster.Name), limit-len(suffix))] + suffix
}

func (r *Reconciler) skipUpgradeBackup(ctx context.Context, p *pass) error {
	const message = "Skipping the backup before the upgrade of etcd: set spec.maintenance.upgradeBackup.destination or create a schedule"
	if err := r.recordUpgrade(ctx, p, v1alpha1.UpgradeStatus{Image: p.state.Image, Message: message}); err != nil {
		return err
	}
	r.event(p.cluster, event{warning: true, reason: v1alpha1.ReasonUpgradeBackupSkipped, action: "Upgrade", message: message})
	return nil
}

func (r *Reconciler) recordUpgrade(ctx context.Context, p *pass, s v1alpha1.UpgradeStatus) error {
	before := p.cluster.DeepCopy()
	if recorded := before.Status.Upgrade; recorded != nil && *recorded == s {
		return nil
	}
	p.cluster.Status.Upgrade = &s
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, p.cluster, patch); err != nil {
		return fmt.Errorf("recording the upgrade: %w", err)
	}
	return nil
}
