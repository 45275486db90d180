package preparation

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// TestPods checks that the pods of restores and recoveries are found and deleted, except for pods of other owners.
func TestPods(t *testing.T) {
	cluster := ownedtest.NewCluster()
	start := func(t *testing.T) *ownedtest.Host {
		h := ownedtest.NewHost(t, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: desired.RecoveryPodName(cluster)},
		})
		h.Must(h.Objects.Create(t.Context(), cluster, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: desired.RestorePodName(cluster)},
		}))
		return h
	}
	h := start(t)
	pod, err := Find(t.Context(), h.Objects, cluster, desired.RestorePodName(cluster))
	if err != nil || pod == nil {
		t.Errorf("pod %v, %v", pod, err)
	}
	h.Must(Delete(t.Context(), h.Objects, nil))
	ownedtest.FailEach(t, start, func(h *ownedtest.Host) error { return DeleteAll(h.Context(), h.Objects, cluster) })
	h.Must(DeleteAll(t.Context(), h.Objects, cluster))
	if left := h.Names(); !slices.Equal(left, []string{"Pod demo-recovery"}) {
		t.Errorf("left %v", left)
	}
}

// TestTerminatingPod checks that a pod that terminates is not deleted again.
func TestTerminatingPod(t *testing.T) {
	h := ownedtest.NewHost(t)
	h.Refuse = func(request string) error {
		t.Errorf("sent %q", request)
		return ownedtest.ErrUnavailable
	}
	deleted := metav1.NewTime(ownedtest.Now())
	h.Must(Delete(t.Context(), h.Objects, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "demo-restore", DeletionTimestamp: &deleted,
	}}))
}

// TestStoredBackup checks why an ApiServerBackup or a location cannot be restored.
func TestStoredBackup(t *testing.T) {
	backup := func(name string, phase v1alpha1.BackupPhase, s v1alpha1.ApiServerBackupStatus) *v1alpha1.ApiServerBackup {
		s.Phase, s.Path = phase, "ns/demo/"+name
		return &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name}, Status: s}
	}
	h := ownedtest.NewHost(t,
		backup("signed", v1alpha1.BackupCompleted, v1alpha1.ApiServerBackupStatus{ManifestSHA256: "00ff"}),
		backup("running", v1alpha1.BackupRunning, v1alpha1.ApiServerBackupStatus{}),
		backup("unknown", v1alpha1.BackupCompleted, v1alpha1.ApiServerBackupStatus{}))
	for name, want := range map[string]string{
		"signed": "", "running": v1alpha1.ReasonBackupNotAvailable, "unknown": v1alpha1.ReasonBackupNotVerifiable,
		"none": v1alpha1.ReasonBackupNotAvailable,
	} {
		stored, reason, message, err := StoredBackup(t.Context(), h.Reader, "ns", v1alpha1.RestoreSource{BackupName: name})
		if err != nil || reason != want || (message == "") != (want == "") ||
			want == "" && stored.Location.Path != "ns/demo/signed" {
			t.Errorf("%s: %+v, %s: %s, %v", name, stored, reason, message, err)
		}
	}
	location := v1alpha1.RestoreSource{Location: &v1alpha1.BackupLocation{Path: "p"}}
	if _, reason, _, err := StoredBackup(t.Context(), h.Reader, "ns", location); err != nil ||
		reason != v1alpha1.ReasonBackupNotVerifiable {
		t.Errorf("a location: %s, %v", reason, err)
	}
	location.Verification = v1alpha1.SkipVerification
	if _, reason, _, err := StoredBackup(t.Context(), h.Reader, "ns", location); err != nil || reason != "" {
		t.Errorf("an unverified location: %s, %v", reason, err)
	}
	h.Refuse = func(string) error { return ownedtest.ErrUnavailable }
	if _, _, _, err := StoredBackup(
		t.Context(), h.Reader, "ns", v1alpha1.RestoreSource{BackupName: "signed"},
	); !errors.Is(err, ownedtest.ErrUnavailable) {
		t.Errorf("an unreadable backup: %v", err)
	}
}

// TestFailures checks the messages about a failed pod, and when it is repeated.
func TestFailures(t *testing.T) {
	pod := func(message string) *corev1.Pod {
		return &corev1.Pod{
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Image: "quorate:0"}}},
			Status: corev1.PodStatus{Phase: corev1.PodFailed, ContainerStatuses: []corev1.ContainerStatus{{
				Name: desired.ContainerName, State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{
					Message: message, FinishedAt: metav1.NewTime(ownedtest.Now()),
				}},
			}}},
		}
	}
	e := &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: "identities"}}
	for message, want := range map[string]string{
		"flags\nError: disk full":                "disk full",
		"Error: " + format.ErrNoIdentity.Error(): "its identities are those of Secret identities",
		"Error: unknown flag: --path":            "the image quorate:0 is of an earlier release",
	} {
		if got := Failure(pod(message), e); !strings.Contains(got, want) {
			t.Errorf("%q: %q", message, got)
		}
	}
	for after, due := range map[time.Duration]bool{RetryInterval - time.Second: false, RetryInterval: true} {
		if RetryDue(pod(""), ownedtest.Now().Add(after)) != due {
			t.Errorf("after %s: due %t", after, !due)
		}
	}
}

// TestVerification checks which results may be used, and that only an unverified one is reported.
func TestVerification(t *testing.T) {
	skip := v1alpha1.RestoreSource{Verification: v1alpha1.SkipVerification}
	for name, test := range map[string]struct {
		verification format.Verification
		from         v1alpha1.RestoreSource
		usable       bool
	}{
		"verified":          {format.VerifiedBySignature, v1alpha1.RestoreSource{}, true},
		"earlier image":     {"", v1alpha1.RestoreSource{}, false},
		"unverified":        {format.Unverified, skip, true},
		"no longer skipped": {format.Unverified, v1alpha1.RestoreSource{}, false},
	} {
		h, result := ownedtest.NewHost(t), format.Result{Verification: test.verification}
		if problem := NotVerified(result, test.from); (problem == "") != test.usable {
			t.Errorf("%s: %q", name, problem)
		}
		ReportUnverified(h.Objects, ownedtest.NewCluster(), result, "Restore")
		if reported := len(h.Events()) > 0; reported != (test.verification == format.Unverified) {
			t.Errorf("%s: reported %t", name, reported)
		}
	}
}
