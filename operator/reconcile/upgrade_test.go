package reconcile

import (
	"errors"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
)

// upgrading returns a cluster whose first member runs a new image with another minor version of etcd, and a function
// that returns what the upgrade waits for.
func upgrading(t *testing.T) (*cluster, *pass, func() string) {
	t.Helper()
	c := newCluster(t)
	c.execute([]string{"create", "image=quorate:2"})
	state := &observed.State{Image: "quorate:2", Cluster: c.get()}
	for name, run := range map[string][2]string{
		"demo-0": {"quorate:2", "3.7.3"}, "demo-1": {"quorate:1", "3.6.4"}, "demo-2": {"quorate:1", "3.6.4"},
	} {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}}
		pod.Spec.Containers = []corev1.Container{{Name: desired.ServerContainer, Image: run[0]}}
		state.Pods = append(state.Pods, pod)
		state.Members = append(state.Members, etcd.Member{Name: name, Version: run[1]})
	}
	slices.SortFunc(state.Members, func(a, b etcd.Member) int { return strings.Compare(a.Name, b.Name) })
	p := &pass{state: state}
	return c, p, func() string {
		t.Helper()
		p.cluster, p.formerImage, p.input.Now = c.get(), "", c.clock.Now()
		held, err := c.reconciler.holdUpgrade(t.Context(), p, membership.Observation{
			HasQuorum: state.EtcdErr == nil, Members: make([]membership.Member, 3),
		})
		c.must(err)
		return held
	}
}

// TestUpgradeWaitsForItsBackup checks that the rollout is held until the backup is completed, and that a failed backup
// that is deleted is taken again.
func TestUpgradeWaitsForItsBackup(t *testing.T) {
	c, _, hold := upgrading(t)
	c.scheduleBackups()
	b := &v1alpha1.ApiServerBackup{}
	read := func() {
		t.Helper()
		c.must(c.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: upgradeBackupName(c.get())}, b))
	}
	for range 2 {
		if held := hold(); !strings.HasPrefix(held, "Waiting for backup "+upgradeBackupName(c.get())) {
			t.Fatalf("held by %q", held)
		}
	}
	if read(); b.Spec.Destination.Volume.ClaimName != "backups" || b.Spec.ClusterName != "demo" {
		t.Errorf("%+v", b.Spec)
	}
	finish := func(phase v1alpha1.BackupPhase) {
		t.Helper()
		read()
		b.Status.Phase = phase
		c.must(c.client.Update(t.Context(), b))
	}
	finish(v1alpha1.BackupFailed)
	if held := hold(); !strings.Contains(held, "failed; delete it") {
		t.Errorf("held by %q", held)
	}
	c.must(c.client.Delete(t.Context(), b))
	if held := hold(); !strings.HasPrefix(held, "Waiting for backup "+upgradeBackupName(c.get())) {
		t.Errorf("held by %q", held)
	}
	finish(v1alpha1.BackupCompleted)
	if held := hold(); held != "" {
		t.Errorf("held by %q after the backup", held)
	}
}

func (c *cluster) scheduleBackups() {
	c.t.Helper()
	schedule := &v1alpha1.ApiServerBackupSchedule{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "nightly"}}
	schedule.Spec.Template.ClusterName = "demo"
	schedule.Spec.Template.Destination.Volume = &v1alpha1.VolumeDestination{ClaimName: "backups"}
	c.must(c.client.Create(c.t.Context(), schedule))
}

// TestUpgradeIsHeldWhileMembersAreUnreachable checks that neither unreachable members, nor lost pods, nor a lost
// quorum end the wait for the backup, and that pods created meanwhile get the former image.
func TestUpgradeIsHeldWhileMembersAreUnreachable(t *testing.T) {
	c, p, hold := upgrading(t)
	c.scheduleBackups()
	pods := p.state.Pods
	expect := func(situation string) {
		t.Helper()
		if held := hold(); !strings.HasPrefix(held, "Waiting for backup ") || p.formerImage != "quorate:1" {
			t.Errorf("%s: held by %q, pods are created with image %q", situation, held, p.formerImage)
		}
	}
	expect("all members respond")
	p.state.Members[2].Version = ""
	expect("one member with the former image does not respond")
	p.state.Members[1].Version = ""
	expect("no member with the former image responds")
	p.state.Members[0].Version = ""
	expect("no version is known")
	p.state.Members[0].Version = "3.7.3"
	p.state.Pods = slices.DeleteFunc(slices.Clone(pods), func(pod corev1.Pod) bool { return pod.Name != "demo-0" })
	expect("all pods with the former image were deleted")
	p.state.Members, p.state.EtcdErr = nil, errors.New("no quorum")
	expect("etcd has no quorum")
	p.state.Pods = nil
	expect("there are no pods")
	c.must(c.reconciler.createPod(t.Context(), p, membership.Action{Kind: membership.CreatePod, Name: "demo-1"}))
	pod := &corev1.Pod{}
	c.must(c.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-1"}, pod))
	if image := imageOf(pod); image != "quorate:1" {
		t.Errorf("the pod is created with image %s", image)
	}
	name := client.ObjectKey{Namespace: "ns", Name: upgradeBackupName(c.get())}
	b := &v1alpha1.ApiServerBackup{}
	c.must(c.client.Get(t.Context(), name, b))
	b.Status.Phase = v1alpha1.BackupCompleted
	c.must(c.client.Update(t.Context(), b))
	if held := hold(); held != "" || p.formerImage != "" {
		t.Errorf("held by %q after the backup, with image %q", held, p.formerImage)
	}
}

// TestHeldUpgradeTakesNoAction checks that neither the rollout nor the restart of unready pods gives the new image to
// the last member with the former one, which is unreachable.
func TestHeldUpgradeTakesNoAction(t *testing.T) {
	c, p, hold := upgrading(t)
	c.scheduleBackups()
	hold()
	for i := range p.state.Pods {
		p.state.Pods[i].Labels = map[string]string{desired.RoleLabel: desired.RoleMember}
		member := &p.state.Members[i]
		member.ID, member.Started, member.Healthy, member.Leader = uint64(i+1), true, i < 2, i == 0
		p.state.Claims = append(p.state.Claims, corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Name: member.Name}})
	}
	p.state.Members[2].Version = ""
	p.cluster = c.get()
	p.cluster.Status.Membership = &v1alpha1.Membership{Bootstrapped: true, NextOrdinal: 3}
	p.state.Cluster, p.observed = p.cluster, c.clock.Now()
	c.must(c.reconciler.takeActions(t.Context(), p))
	if a := p.input.Action; a.Kind != membership.Wait || !strings.HasPrefix(a.Reason, "Waiting for backup") {
		t.Errorf("%s %s: %s", a.Kind, a.Name, a.Reason)
	}
}

// TestUpgradeBackupIsTakenInTheMaintenanceWindow checks that the upgrade is held without a backup until the window
// opens.
func TestUpgradeBackupIsTakenInTheMaintenanceWindow(t *testing.T) {
	c, p, hold := upgrading(t)
	c.scheduleBackups()
	p.input.Held = "Waiting for the maintenance window"
	var backups v1alpha1.ApiServerBackupList
	for range 2 {
		if held := hold(); held != p.input.Held || p.formerImage != "quorate:1" {
			t.Errorf("held by %q, with image %q", held, p.formerImage)
		}
	}
	c.must(c.client.List(t.Context(), &backups))
	if len(backups.Items) != 0 {
		t.Errorf("%d backups before the window", len(backups.Items))
	}
	p.input.Held = ""
	if held := hold(); !strings.HasPrefix(held, "Waiting for backup ") {
		t.Errorf("held by %q", held)
	}
	c.must(c.client.List(t.Context(), &backups))
	if len(backups.Items) != 1 {
		t.Errorf("%d backups in the window", len(backups.Items))
	}
}

func TestUpgradeWithoutDestination(t *testing.T) {
	c, _, hold := upgrading(t)
	c.results = nil
	for range 2 {
		if held := hold(); held != "" {
			t.Errorf("held by %q", held)
		}
	}
	skipped := slices.DeleteFunc(c.results, func(line string) bool { return !strings.Contains(line, "UpgradeBackupSkipped") })
	if len(skipped) != 1 || c.get().Status.Upgrade == nil {
		t.Errorf("events %q, status %+v", skipped, c.get().Status.Upgrade)
	}
}

// TestUpgradeIgnoresBackupsOfFormerClusters uses a backup that outlives its cluster: the generations of the next
// cluster begin again.
func TestUpgradeIgnoresBackupsOfFormerClusters(t *testing.T) {
	former := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", UID: "11111111-a", Generation: 2}}
	next := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", UID: "22222222-b", Generation: 2}}
	if a, b := upgradeBackupName(former), upgradeBackupName(next); a == b || b != "demo-upgrade-22222222-2" {
		t.Errorf("%s and %s", a, b)
	}
	next.Name = strings.Repeat("x", 63)
	if name := upgradeBackupName(next); len(name) > 57 {
		t.Errorf("%s has %d characters", name, len(name))
	}
}
