package recovery

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned/ownedtest"
	"quorate.dev/operator/reconcile/preparation"
)

// recovering returns a change of a cluster: a recovery of demo-0 is in a stage.
func recovering(
	stage v1alpha1.RecoveryStage, changes ...func(*v1alpha1.RecoveryStatus),
) func(*v1alpha1.ApiServerCluster) {
	return func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Recovery = &v1alpha1.Recovery{RequestID: "1", Member: "demo-0"}
		c.Status.Recovery = &v1alpha1.RecoveryStatus{Request: *c.Spec.Recovery, Stage: stage, Member: "demo-0"}
		for _, change := range changes {
			change(c.Status.Recovery)
		}
	}
}

// fromBackup is a change of a recovery: it continues with a backup.
func fromBackup(r *v1alpha1.RecoveryStatus) {
	r.Request.From = &v1alpha1.RestoreSource{BackupName: "b"}
}

// completed returns an ApiServerBackup that can be restored.
func completed() *v1alpha1.ApiServerBackup {
	b := &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b"}}
	b.Spec.ClusterName, b.Spec.Destination.Volume = "demo", &v1alpha1.VolumeDestination{ClaimName: "backups"}
	b.Status = v1alpha1.ApiServerBackupStatus{Phase: v1alpha1.BackupCompleted, Path: "ns/demo/b", ManifestSHA256: "00ff"}
	return b
}

// recoverAt executes Recover, and stores the status as the end of a reconciliation does.
func recoverAt(h *ownedtest.Host, now time.Time) (podAbsent bool, err error) {
	cluster := h.Cluster()
	claim := *desired.Claim(cluster, "demo-0")
	podAbsent, err = Recover(h.Context(), h.Objects, &observed.State{
		Cluster: cluster, Image: "quorate:1", Claims: []corev1.PersistentVolumeClaim{claim},
	}, now)
	if err == nil && cluster.Status.Recovery != nil {
		recovery := cluster.Status.Recovery
		ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
			c.Status.Recovery = recovery
		})
	}
	return podAbsent, err
}

// end reports that the pod of the recovery has terminated.
func end(h *ownedtest.Host, phase corev1.PodPhase, message string) {
	ownedtest.Change(h, "demo-recovery", &corev1.Pod{}, func(pod *corev1.Pod) {
		pod.Status = corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{
			Name: desired.ContainerName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
				Message: message, FinishedAt: metav1.NewTime(ownedtest.Now()),
			}},
		}}}
	})
}

// result returns the termination message of a pod that has prepared data.
func result(t *testing.T, verification format.Verification) string {
	t.Helper()
	text, err := json.Marshal(format.Result{
		Verification: verification, Manifest: format.Manifest{Snapshot: format.Snapshot{Revision: 7}},
	})
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestRecover follows a recovery from the data of a member: the first pod fails and is repeated after a while, the
// second one succeeds, and is deleted in the next stage.
func TestRecover(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(recovering(v1alpha1.RecoveryRestoring, func(
		r *v1alpha1.RecoveryStatus,
	) {
		r.AcknowledgedRevision = 9
	})))
	expect := func(after time.Duration, absent, exists bool, reason string) {
		t.Helper()
		got, err := recoverAt(h, ownedtest.Now().Add(after))
		h.Must(err)
		if got != absent || h.Exists("demo-recovery", &corev1.Pod{}) != exists ||
			h.Cluster().Status.Recovery.Reason != reason {
			t.Errorf("pod absent: %t, exists now: %t, %+v", got, h.Exists("demo-recovery", &corev1.Pod{}),
				h.Cluster().Status.Recovery)
		}
	}
	expect(0, true, true, "")
	expect(0, false, true, "")
	end(h, corev1.PodFailed, "Error: disk full")
	expect(time.Second, false, true, v1alpha1.ReasonRecoveryFailed)
	expect(preparation.RetryInterval, false, false, v1alpha1.ReasonRecoveryFailed)
	expect(preparation.RetryInterval, true, true, v1alpha1.ReasonRecoveryFailed)
	end(h, corev1.PodSucceeded, result(t, format.VerifiedBySignature))
	h.Events()
	expect(preparation.RetryInterval, false, true, "")
	if r := h.Cluster().Status.Recovery; r.Stage != v1alpha1.RecoveryStarting || r.Revision != 7 {
		t.Errorf("status %+v", r)
	}
	if events := strings.Join(h.Events(), ""); !strings.Contains(events, "the acknowledged revisions 8 to 9") {
		t.Errorf("events %q", events)
	}
	expect(preparation.RetryInterval, false, false, "")
}

// TestRecoverFromBackup checks the reasons for which a recovery from a backup waits, and that an event reports a
// recovery from an unverified backup.
func TestRecoverFromBackup(t *testing.T) {
	for name, test := range map[string]struct {
		change  func(*v1alpha1.RecoveryStatus)
		backup  func(*v1alpha1.ApiServerBackup)
		message string // termination message of the pod; "": the pod is not created
		reason  string
		stage   v1alpha1.RecoveryStage
	}{
		"verified": {
			fromBackup, func(*v1alpha1.ApiServerBackup) {}, result(t, format.VerifiedByManifestDigest),
			"", v1alpha1.RecoveryStarting,
		},
		"unverified": {func(r *v1alpha1.RecoveryStatus) {
			fromBackup(r)
			r.Request.From.Verification = v1alpha1.SkipVerification
		}, func(*v1alpha1.ApiServerBackup) {}, result(t, format.Unverified), "", v1alpha1.RecoveryStarting},
		"earlier image": {
			fromBackup, func(*v1alpha1.ApiServerBackup) {}, result(t, ""), v1alpha1.ReasonRecoveryFailed,
			v1alpha1.RecoveryRestoring,
		},
		"not completed": {
			fromBackup, func(b *v1alpha1.ApiServerBackup) { b.Status.Phase = v1alpha1.BackupRunning }, "",
			v1alpha1.ReasonBackupNotAvailable, v1alpha1.RecoveryRestoring,
		},
		"identities are missing": {func(r *v1alpha1.RecoveryStatus) {
			fromBackup(r)
			r.Request.Encryption = &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: "missing"}}
		}, func(*v1alpha1.ApiServerBackup) {}, "", v1alpha1.ReasonObjectMissing, v1alpha1.RecoveryRestoring},
	} {
		t.Run(name, func(t *testing.T) {
			b := completed()
			test.backup(b)
			h := ownedtest.NewHost(t, ownedtest.NewCluster(recovering(v1alpha1.RecoveryRestoring, test.change)), b)
			_, err := recoverAt(h, ownedtest.Now())
			h.Must(err)
			if created := h.Exists("demo-recovery", &corev1.Pod{}); created != (test.message != "") {
				t.Fatalf("pod created: %t, %+v", created, h.Cluster().Status.Recovery)
			}
			if test.message != "" {
				end(h, corev1.PodSucceeded, test.message)
				_, err := recoverAt(h, ownedtest.Now())
				h.Must(err)
			}
			if r := h.Cluster().Status.Recovery; r.Reason != test.reason || r.Stage != test.stage {
				t.Errorf("%+v", r)
			}
			if unverified := strings.Contains(
				strings.Join(h.Events(), ""), v1alpha1.ReasonBackupNotVerified,
			); unverified != (name == "unverified") {
				t.Errorf("reported as unverified: %t", unverified)
			}
		})
	}
}

// TestOtherPods checks that the pod of a former request is deleted, and that a pod that cannot start is reported.
func TestOtherPods(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(recovering(v1alpha1.RecoveryRestoring)))
	_, err := recoverAt(h, ownedtest.Now())
	h.Must(err)
	ownedtest.Change(h, "demo-recovery", &corev1.Pod{}, func(pod *corev1.Pod) {
		pod.Status.ContainerStatuses = []corev1.ContainerStatus{{
			Name: desired.ContainerName, State: corev1.ContainerState{
				Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"},
			},
		}}
	})
	_, err = recoverAt(h, ownedtest.Now())
	h.Must(err)
	if r := h.Cluster().Status.Recovery; r.Reason != v1alpha1.ReasonPodNotStarting {
		t.Errorf("%+v", r)
	}
	ownedtest.Change(h, "demo", &v1alpha1.ApiServerCluster{}, func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Recovery.RequestID, c.Status.Recovery.Request.RequestID = "2", "2"
	})
	_, err = recoverAt(h, ownedtest.Now())
	h.Must(err)
	if h.Exists("demo-recovery", &corev1.Pod{}) {
		t.Error("the pod of a former request is used")
	}
	if absent, err := recoverAt(ownedtest.NewHost(t, ownedtest.NewCluster()), ownedtest.Now()); absent || err != nil {
		t.Errorf("without a recovery: %t, %v", absent, err)
	}
}

// TestObservation checks how the request and its progress are presented to the plan.
func TestObservation(t *testing.T) {
	requested := ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Recovery = &v1alpha1.Recovery{RequestID: "1", Member: "demo-1"}
	})
	survivors := []etcd.Survivor{{Name: "demo-1", Reachable: true, Revision: 5}, {Name: "demo-2"}}
	for name, test := range map[string]struct {
		cluster *v1alpha1.ApiServerCluster
		want    membership.Recovery
	}{
		"none": {ownedtest.NewCluster(), membership.Recovery{}},
		"requested": {
			requested, membership.Recovery{
				Stage: membership.RecoveryRequested, Member: "demo-1",
				Survivors: []membership.Survivor{{Name: "demo-1", Revision: 5}},
			},
		},
		"stopping": {
			ownedtest.NewCluster(recovering(v1alpha1.RecoveryStopping)), membership.Recovery{
				Stage: membership.RecoveryStopping, SelectedName: "demo-0", JobRunning: true,
			},
		},
		"restoring": {
			ownedtest.NewCluster(recovering(v1alpha1.RecoveryRestoring, fromBackup)), membership.Recovery{
				Stage: membership.RecoveryRestoring, SelectedName: "demo-0", FromBackup: true, JobRunning: true,
			},
		},
	} {
		got := Observation(&observed.State{Cluster: test.cluster, Survivors: survivors}, false)
		if !slices.Equal(got.Survivors, test.want.Survivors) {
			t.Errorf("%s: survivors %v", name, got.Survivors)
		}
		got.Survivors, test.want.Survivors = nil, nil
		if got.Stage != test.want.Stage || got.Member != test.want.Member || got.SelectedName != test.want.SelectedName ||
			got.FromBackup != test.want.FromBackup || got.JobRunning != test.want.JobRunning {
			t.Errorf("%s: %+v, want %+v", name, got, test.want)
		}
	}
}

// TestWrite checks the stages that the actions of a recovery store in the status.
func TestWrite(t *testing.T) {
	h := ownedtest.NewHost(t, ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
		c.Spec.Recovery = &v1alpha1.Recovery{RequestID: "1"}
		c.Status.Members = []v1alpha1.MemberStatus{{
			Name: "demo-3", ID: "1", Volume: "a", Acknowledged: &v1alpha1.Acknowledged{Index: 3, Revision: 9},
		}}
	}))
	write := func(a membership.Action) *v1alpha1.ApiServerClusterStatus {
		t.Helper()
		state := &observed.State{
			Cluster: h.Cluster(), Survivors: []etcd.Survivor{{Name: "demo-3", Reachable: true, Revision: 5}},
		}
		h.Must(Write(t.Context(), h.Objects, state, a, ownedtest.Now()))
		return &h.Cluster().Status
	}
	s := write(membership.Action{Kind: membership.StartRecovery, Name: "demo-3"})
	if r := s.Recovery; r.Stage != v1alpha1.RecoveryStopping || r.Member != "demo-3" ||
		!slices.Equal(r.Survivors, []string{"demo-3: revision 5"}) || r.AcknowledgedRevision != 9 ||
		s.Membership.NextOrdinal != 4 {
		t.Errorf("started: %+v, %+v", r, s.Membership)
	}
	s = write(membership.Action{Kind: membership.RestoreQuorum, Names: []string{"demo-3"}})
	if s.Recovery.Stage != v1alpha1.RecoveryRestoring || s.Members[0].ID != "" || s.Members[0].Acknowledged != nil ||
		s.Membership.NextOrdinal != 4 {
		t.Errorf("restoring: %+v", s)
	}
	state := &observed.State{Cluster: h.Cluster()}
	if kept := survivorsOf(state, s.Recovery); !slices.Equal(kept, []string{"demo-3: revision 5"}) {
		t.Errorf("survivors after the pods have stopped: %v", kept)
	}
	h.Refuse = func(string) error { return ownedtest.ErrUnavailable }
	if err := Write(
		t.Context(), h.Objects, state, membership.Action{Kind: membership.DeclineRecovery}, ownedtest.Now(),
	); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("a failed write: %v", err)
	}
	h.Refuse = nil
	if s = write(membership.Action{Kind: membership.DeclineRecovery}); s.Recovery.Stage != v1alpha1.RecoveryNotNeeded ||
		s.Recovery.CompletedAt == nil {
		t.Errorf("declined: %+v", s.Recovery)
	}
}

// TestFailedRequests lets each request fail with which a pod is created, and with which its result is stored.
func TestFailedRequests(t *testing.T) {
	step := func(h *ownedtest.Host) error {
		_, err := recoverAt(h, ownedtest.Now().Add(time.Hour))
		return err
	}
	encrypted := func(r *v1alpha1.RecoveryStatus) {
		fromBackup(r)
		r.Request.Encryption = &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: "identities"}}
	}
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	identities := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "identities"}, Data: map[string][]byte{
			desired.IdentitiesKey: []byte(identity.String()),
		},
	}
	start := func(t *testing.T) *ownedtest.Host {
		return ownedtest.NewHost(t, ownedtest.NewCluster(recovering(v1alpha1.RecoveryRestoring, encrypted)),
			completed(), identities.DeepCopy())
	}
	ownedtest.FailEach(t, start, step)
	for _, phase := range []corev1.PodPhase{corev1.PodSucceeded, corev1.PodFailed} {
		h := start(t)
		h.Must(step(h))
		end(h, phase, result(t, format.VerifiedByManifestDigest))
		h.Refuse = func(string) error { return ownedtest.ErrUnavailable }
		if step(h) == nil {
			t.Errorf("%s: the error is not returned", phase)
		}
		h.Refuse = func(request string) error {
			if strings.HasPrefix(request, "get") {
				return nil
			}
			return ownedtest.ErrUnavailable
		}
		if err := step(h); !errors.Is(err, ownedtest.ErrUnavailable) {
			t.Errorf("%s: %v", phase, err)
		}
	}
	h := start(t)
	h.Must(step(h))
	end(h, corev1.PodSucceeded, "nonsense")
	if step(h) == nil {
		t.Error("a result that cannot be parsed")
	}
}
