package upgrade

import (
	"errors"
	"slices"
	"strings"
	"testing"

	etcdversion "go.etcd.io/etcd/api/v3/version"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// upgrading returns the input for a cluster whose first member runs a new image with another minor version of etcd, and
// a function that returns the reason for which the upgrade waits.
func upgrading(t *testing.T, stored ...client.Object) (*ownedtest.Host, *Input, func() Result) {
	t.Helper()
	h := ownedtest.NewHost(t, append(stored, ownedtest.NewCluster())...)
	state := &observed.State{Image: "quorate:2", Cluster: h.Cluster()}
	for _, run := range [][3]string{
		{"demo-0", "quorate:2", "3.7.3"}, {"demo-1", "quorate:1", "3.6.4"}, {"demo-2", "quorate:1", "3.6.4"},
	} {
		pod := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: run[0]}}
		pod.Spec.Containers = []corev1.Container{{Name: desired.ServerContainer, Image: run[1]}}
		state.Pods = append(state.Pods, pod)
		state.Members = append(state.Members, etcd.Member{Name: run[0], Version: run[2]})
	}
	in := &Input{State: state, Members: make([]membership.Member, 3)}
	return h, in, func() Result {
		t.Helper()
		state.Cluster, in.HasQuorum = h.Cluster(), state.EtcdErr == nil
		result, err := Hold(t.Context(), h.Objects, *in)
		h.Must(err)
		return result
	}
}

// nightly returns a schedule of backups of the cluster demo.
func nightly() *v1alpha1.ApiServerBackupSchedule {
	schedule := &v1alpha1.ApiServerBackupSchedule{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "nightly"}}
	schedule.Spec.Template.ClusterName = "demo"
	schedule.Spec.Template.Destination.Volume = &v1alpha1.VolumeDestination{ClaimName: "backups"}
	return schedule
}

// TestUpgradeWaitsForItsBackup checks that the rollout is held until the backup is completed, and that a backup that
// has failed and is then deleted is taken again.
func TestUpgradeWaitsForItsBackup(t *testing.T) {
	h, _, hold := upgrading(t, nightly())
	b := &v1alpha1.ApiServerBackup{}
	read := func() {
		t.Helper()
		h.Must(h.API.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: BackupName(h.Cluster())}, b))
	}
	for range 2 {
		if held := hold().Held; !strings.HasPrefix(held, "Waiting for backup "+BackupName(h.Cluster())) {
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
		h.Must(h.API.Status().Update(t.Context(), b))
	}
	finish(v1alpha1.BackupFailed)
	if held := hold().Held; !strings.Contains(held, "failed; delete it") {
		t.Errorf("held by %q", held)
	}
	h.Must(h.API.Delete(t.Context(), b))
	if held := hold().Held; !strings.HasPrefix(held, "Waiting for backup "+BackupName(h.Cluster())) {
		t.Errorf("held by %q", held)
	}
	finish(v1alpha1.BackupCompleted)
	if held := hold().Held; held != "" {
		t.Errorf("held by %q after the backup", held)
	}
}

// TestUpgradeIsHeldWhileMembersAreUnreachable checks that neither unreachable members, nor lost pods, nor a lost quorum
// end the wait for the backup, and that pods that are created during the wait get the former image.
func TestUpgradeIsHeldWhileMembersAreUnreachable(t *testing.T) {
	h, in, hold := upgrading(t, nightly())
	pods := in.State.Pods
	expect := func(situation string) {
		t.Helper()
		if got := hold(); !strings.HasPrefix(got.Held, "Waiting for backup ") || got.FormerImage != "quorate:1" {
			t.Errorf("%s: %+v", situation, got)
		}
	}
	expect("all members respond")
	in.State.Members[2].Version = ""
	expect("one member with the former image does not respond")
	in.State.Members[1].Version = ""
	expect("no member with the former image responds")
	in.State.Members[0].Version = ""
	expect("no version is known")
	in.State.Members[0].Version = "3.7.3"
	in.State.Pods = slices.DeleteFunc(slices.Clone(pods), func(pod corev1.Pod) bool { return pod.Name != "demo-0" })
	expect("all pods with the former image were deleted")
	in.State.Members, in.State.EtcdErr = nil, errors.New("no quorum")
	expect("etcd has no quorum")
	in.State.Pods = nil
	expect("there are no pods")
	name := client.ObjectKey{Namespace: "ns", Name: BackupName(h.Cluster())}
	b := &v1alpha1.ApiServerBackup{}
	h.Must(h.API.Get(t.Context(), name, b))
	b.Status.Phase = v1alpha1.BackupCompleted
	h.Must(h.API.Status().Update(t.Context(), b))
	if got := hold(); got != (Result{}) {
		t.Errorf("%+v after the backup", got)
	}
}

// TestUpgradeBackupIsTakenInTheMaintenanceWindow checks that the upgrade is held until the maintenance window opens,
// and that the backup is taken only then.
func TestUpgradeBackupIsTakenInTheMaintenanceWindow(t *testing.T) {
	h, in, hold := upgrading(t, nightly())
	in.Window = "Waiting for the maintenance window"
	var backups v1alpha1.ApiServerBackupList
	for range 2 {
		if got := hold(); got.Held != in.Window || got.FormerImage != "quorate:1" {
			t.Errorf("%+v", got)
		}
	}
	h.Must(h.API.List(t.Context(), &backups))
	if len(backups.Items) != 0 {
		t.Errorf("%d backups before the window", len(backups.Items))
	}
	in.Window = ""
	if held := hold().Held; !strings.HasPrefix(held, "Waiting for backup ") {
		t.Errorf("held by %q", held)
	}
	h.Must(h.API.List(t.Context(), &backups))
	if len(backups.Items) != 1 {
		t.Errorf("%d backups in the window", len(backups.Items))
	}
}

func TestUpgradeWithoutDestination(t *testing.T) {
	h, _, hold := upgrading(t)
	for range 2 {
		if held := hold().Held; held != "" {
			t.Errorf("held by %q", held)
		}
	}
	skipped := slices.DeleteFunc(h.Events(), func(line string) bool {
		return !strings.Contains(line, "UpgradeBackupSkipped")
	})
	if len(skipped) != 1 || h.Cluster().Status.Upgrade == nil {
		t.Errorf("events %q, status %+v", skipped, h.Cluster().Status.Upgrade)
	}
}

// TestUpgradeIgnoresBackupsOfFormerClusters creates a cluster with the name of a deleted one, whose backup still
// exists. The generations of the new cluster begin again, so that they do not make the names of backups unique.
func TestUpgradeIgnoresBackupsOfFormerClusters(t *testing.T) {
	former := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", UID: "11111111-a", Generation: 2}}
	next := &v1alpha1.ApiServerCluster{ObjectMeta: metav1.ObjectMeta{Name: "demo", UID: "22222222-b", Generation: 2}}
	if a, b := BackupName(former), BackupName(next); a == b || b != "demo-upgrade-22222222-2" {
		t.Errorf("%s and %s", a, b)
	}
	next.Name = strings.Repeat("x", 63)
	if name := BackupName(next); len(name) > 57 {
		t.Errorf("%s has %d characters", name, len(name))
	}
}

// TestFailedRequests lets each request of a step fail that takes a backup.
func TestFailedRequests(t *testing.T) {
	var in *Input
	ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host {
		var h *ownedtest.Host
		h, in, _ = upgrading(t, nightly())
		in.HasQuorum = true
		return h
	}, func(h *ownedtest.Host) error {
		in.State.Cluster = h.Cluster()
		_, err := Hold(t.Context(), h.Objects, *in)
		return err
	})
}

// TestPolicies checks that the destination in the spec is preferred to schedules, that a backup is not needed if the
// policy says so or nothing is upgraded, and that a backup of another cluster with the name blocks the upgrade.
func TestPolicies(t *testing.T) {
	for name, test := range map[string]struct {
		change func(*v1alpha1.ApiServerCluster, *Input)
		held   string
		claim  string // volume of the backup; "": no backup is taken
	}{
		"destination in the spec": {func(c *v1alpha1.ApiServerCluster, _ *Input) {
			c.Spec.Maintenance.UpgradeBackup.Destination = &v1alpha1.BackupDestination{
				Volume: &v1alpha1.VolumeDestination{ClaimName: "own"},
			}
		}, "Waiting for backup demo-upgrade-demo-0 before etcd is upgraded", "own"},
		"no backup wanted": {func(c *v1alpha1.ApiServerCluster, _ *Input) {
			c.Spec.Maintenance.UpgradeBackup.Policy = v1alpha1.BackupNever
		}, "", ""},
		"the same minor version": {func(_ *v1alpha1.ApiServerCluster, in *Input) {
			in.State.Members[0].Version = "3.6.9"
		}, "", ""},
		"the image of this operator": {func(_ *v1alpha1.ApiServerCluster, in *Input) {
			in.Image, in.State.Members = "quorate:2", in.State.Members[1:]
			for i := range in.State.Members {
				in.State.Members[i].Version = etcdversion.Version
			}
		}, "", ""},
		"another upgrade was recorded": {func(c *v1alpha1.ApiServerCluster, _ *Input) {
			c.Status.Upgrade = &v1alpha1.UpgradeStatus{Image: "quorate:3", BackupName: "earlier"}
		}, "Waiting for backup demo-upgrade-demo-0 before etcd is upgraded", "backups"},
		"finished": {func(c *v1alpha1.ApiServerCluster, in *Input) {
			c.Status.Upgrade = &v1alpha1.UpgradeStatus{Image: "quorate:2"}
			in.State.Members = in.State.Members[:1]
		}, "", ""},
		"of another cluster": {func(c *v1alpha1.ApiServerCluster, _ *Input) {
			c.Status.Upgrade = &v1alpha1.UpgradeStatus{Image: "quorate:2", BackupName: "other"}
		}, "Waiting for backup other of another cluster to be deleted", ""},
	} {
		t.Run(name, func(t *testing.T) {
			other := &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "other"}}
			h, in, _ := upgrading(t, nightly(), other)
			test.change(in.State.Cluster, in)
			in.HasQuorum = true
			h.Must(h.API.Status().Update(t.Context(), in.State.Cluster.DeepCopy()))
			in.State.Cluster.ResourceVersion = h.Cluster().ResourceVersion
			result, err := Hold(t.Context(), h.Objects, *in)
			h.Must(err)
			if result.Held != test.held {
				t.Errorf("held by %q, want %q", result.Held, test.held)
			}
			b := &v1alpha1.ApiServerBackup{}
			exists := h.Exists("demo-upgrade-demo-0", b)
			if exists != (test.claim != "") || exists && b.Spec.Destination.Volume.ClaimName != test.claim {
				t.Errorf("backup %t: %+v", exists, b.Spec.Destination)
			}
		})
	}
}
