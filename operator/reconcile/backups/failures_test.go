package backups

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// newBackup returns the encrypted backup b of the cluster demo, with changes.
func newBackup(changes ...func(*v1alpha1.ApiServerBackup)) *v1alpha1.ApiServerBackup {
	b := &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "b", UID: "uid", CreationTimestamp: metav1.NewTime(ownedtest.Now()),
	}}
	b.Spec = v1alpha1.ApiServerBackupSpec{
		ClusterName: "demo", Destination: volume,
		Encryption: &v1alpha1.BackupEncryption{SecretRef: corev1.LocalObjectReference{Name: "keys"}},
	}
	for _, change := range changes {
		change(b)
	}
	return b
}

// started is a change of a backup: its first attempt is recorded.
func started(b *v1alpha1.ApiServerBackup) {
	b.Finalizers = []string{finalizer}
	b.Status.Phase, b.Status.Attempts, b.Status.Path = v1alpha1.BackupRunning, 1, "etcd/ns/demo/b"
	setComplete(b, metav1.ConditionUnknown, v1alpha1.ReasonRunning, attemptMessage(b), ownedtest.Now())
}

// deleted is a change of a backup: it is being deleted together with its data.
func deleted(b *v1alpha1.ApiServerBackup) {
	b.DeletionTimestamp, b.Spec.DeletionPolicy = &metav1.Time{Time: ownedtest.Now()}, v1alpha1.BackupDelete
}

// podOf returns a pod of a backup that has ended.
func podOf(b *v1alpha1.ApiServerBackup, name string, phase corev1.PodPhase, message string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name, OwnerReferences: []metav1.OwnerReference{
			*metav1.NewControllerRef(b, v1alpha1.GroupVersion.WithKind("ApiServerBackup")),
		}},
		Status: corev1.PodStatus{Phase: phase, ContainerStatuses: []corev1.ContainerStatus{{
			Name: desired.ContainerName, State: corev1.ContainerState{
				Terminated: &corev1.ContainerStateTerminated{Message: message},
			},
		}}},
	}
}

// reconcilerOf returns the reconciler of backups in a hosting cluster.
func reconcilerOf(h *ownedtest.Host) *Reconciler {
	return &Reconciler{
		Client: h.Client, Reader: h.Reader, Recorder: h, Clock: clocktesting.NewFakeClock(ownedtest.Now()),
		Retries: NewRetries(),
	}
}

// reconcileUntil reconciles an object until done returns true. It returns the first error.
func reconcileUntil(h *ownedtest.Host, r reconcile.Reconciler, name string, done func() bool) error {
	request := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: name}}
	for range 10 {
		if done() {
			return nil
		}
		if _, err := r.Reconcile(h.Context(), request); err != nil {
			return err
		}
	}
	return fmt.Errorf("%s is not done after 10 reconciliations", name)
}

// TestFailedRequests lets each request of the start, end and deletion of a backup, and of a schedule, fail once. The
// reconciliation returns the error, and its repetition leaves the same objects.
func TestFailedRequests(t *testing.T) {
	const result = `{"manifest":{"uid":"uid"}}`
	exists := func(h *ownedtest.Host, name string) bool { return h.Exists(name, &corev1.Pod{}) }
	for name, test := range map[string]struct {
		backup *v1alpha1.ApiServerBackup
		pod    *corev1.Pod
		done   func(h *ownedtest.Host, b *v1alpha1.ApiServerBackup) bool
	}{
		"begins": {backup: newBackup(), done: func(_ *ownedtest.Host, b *v1alpha1.ApiServerBackup) bool {
			return b.Status.Attempts == 1
		}},
		"completes": {
			backup: newBackup(started), pod: podOf(newBackup(), "b-try1", corev1.PodSucceeded, result),
			done: func(h *ownedtest.Host, b *v1alpha1.ApiServerBackup) bool {
				return b.Status.Phase == v1alpha1.BackupCompleted && !exists(h, "b-try1")
			},
		},
		"fails": {
			backup: newBackup(started), pod: podOf(newBackup(), "b-try1", corev1.PodSucceeded, "no result"),
			done: func(h *ownedtest.Host, b *v1alpha1.ApiServerBackup) bool {
				return b.Status.Phase == v1alpha1.BackupFailed && !exists(h, "b-try1")
			},
		},
		"is deleted": {
			backup: newBackup(started, deleted), pod: podOf(newBackup(), "b-try1", corev1.PodFailed, "no quorum"),
			done: func(h *ownedtest.Host, b *v1alpha1.ApiServerBackup) bool {
				if pod := (&corev1.Pod{}); h.Exists("b-delete", pod) {
					pod.Status.Phase = corev1.PodSucceeded
					h.Must(h.API.Status().Update(h.Context(), pod))
				}
				return b == nil
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host {
				h := ownedtest.NewHost(t, append(hosted(t), test.backup.DeepCopy())...)
				if test.pod != nil {
					h.CreateAll(test.pod.DeepCopy())
				}
				return h
			}, func(h *ownedtest.Host) error {
				return reconcileUntil(h, reconcilerOf(h), "b", func() bool {
					b := &v1alpha1.ApiServerBackup{}
					if !h.Exists("b", b) {
						b = nil
					}
					return test.done(h, b)
				})
			})
		})
	}
	t.Run("schedule", func(t *testing.T) {
		ownedtest.FailEach(t, func(t *testing.T) *ownedtest.Host {
			s := newSchedule(func(s *v1alpha1.ApiServerBackupSchedule) {
				s.Spec.ConcurrencyPolicy, s.Spec.Retention.Count = v1alpha1.ReplaceConcurrent, ptr.To[int32](1)
			})
			return ownedtest.NewHost(t, append(hosted(t), s, scheduled("running", v1alpha1.BackupRunning, 0),
				scheduled("old", v1alpha1.BackupCompleted, 3*time.Hour), scheduled("new", v1alpha1.BackupCompleted, 2*time.Hour),
			)...)
		}, func(h *ownedtest.Host) error {
			return reconcileUntil(h, scheduleReconcilerOf(h), "hourly", func() bool {
				return slices.Equal(backupNames(h), []string{newest(), "new"})
			})
		})
	})
}

// TestPodNeedsAllKeys lets each request fail with which the pod of a recorded attempt is created. No pod is created
// without the keys, the error is returned or in the condition, and the next reconciliation creates the pod.
func TestPodNeedsAllKeys(t *testing.T) {
	request := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "b"}}
	run := func(h *ownedtest.Host) error {
		_, err := reconcilerOf(h).Reconcile(t.Context(), request)
		return err
	}
	var requests []string
	reference := ownedtest.NewHost(t, append(hosted(t), newBackup(started))...)
	reference.Refuse = func(request string) error {
		requests = append(requests, request)
		return nil
	}
	reference.Must(run(reference))
	if len(requests) < 10 || requests[len(requests)-1] != "create Pod b-try1" {
		t.Fatalf("requests %q", requests)
	}
	for failing, name := range requests {
		h, number := ownedtest.NewHost(t, append(hosted(t), newBackup(started))...), 0
		h.Refuse = func(string) error {
			if number++; number == failing+1 {
				return ownedtest.ErrUnavailable
			}
			return nil
		}
		err := run(h)
		b := &v1alpha1.ApiServerBackup{}
		h.Read("b", b)
		c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BackupComplete)
		if !errors.Is(err, ownedtest.ErrUnavailable) && !strings.Contains(c.Message, ownedtest.ErrUnavailable.Error()) {
			t.Errorf("%s has failed: the error is not reported: %v, %+v", name, err, c)
		}
		if h.Exists("b-try1", &corev1.Pod{}) {
			t.Errorf("%s has failed: the pod was created", name)
		}
		h.Refuse = nil
		h.Must(run(h))
		h.Must(run(h))
		pod := &corev1.Pod{}
		h.Read("b-try1", pod)
		h.Read("b", b)
		sealed := slices.ContainsFunc(pod.Spec.Containers[0].Env, func(v corev1.EnvVar) bool {
			return v.Name == "QUORATE_SEALED_KEYS" && v.Value != ""
		})
		c = meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BackupComplete)
		if !sealed || b.Status.Attempts != 1 || c.Reason != v1alpha1.ReasonRunning || c.Message != "Attempt 1 of 3" {
			t.Errorf("repeated after %s has failed: sealed %t, %+v", name, sealed, b.Status)
		}
	}
}

// TestConflictingOperators checks that an attempt is counted once if two operators start it: the second one gets a
// conflict, and repeats its step later.
func TestConflictingOperators(t *testing.T) {
	h := ownedtest.NewHost(t, append(hosted(t), newBackup())...)
	first, second := reconcilerOf(h), reconcilerOf(h)
	request := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: "b"}}
	_, err := first.Reconcile(t.Context(), request) // the finalizer
	h.Must(err)
	h.Refuse = func(request string) error {
		if request == "status ApiServerBackup b" {
			h.Refuse = nil
			_, err := second.Reconcile(t.Context(), ctrl.Request{
				NamespacedName: client.ObjectKey{Namespace: "ns", Name: "b"},
			})
			h.Must(err)
		}
		return nil
	}
	result, err := first.Reconcile(t.Context(), request)
	b := &v1alpha1.ApiServerBackup{}
	h.Read("b", b)
	if err != nil || result.RequeueAfter != firstRetry || b.Status.Attempts != 1 {
		t.Errorf("%d attempts, the operator repeats its step after %s, %v", b.Status.Attempts, result.RequeueAfter, err)
	}
}

// TestTerminatingNamespace checks that the deletion of a namespace is not delayed by data that no pod can delete.
func TestTerminatingNamespace(t *testing.T) {
	h := ownedtest.NewHost(t, append(hosted(t), newBackup(started, deleted))...)
	h.Refuse = func(request string) error {
		if request != "create Pod b-delete" {
			return nil
		}
		return &apierrors.StatusError{ErrStatus: metav1.Status{
			Status: metav1.StatusFailure, Code: http.StatusForbidden, Reason: metav1.StatusReasonForbidden,
			Details: &metav1.StatusDetails{Causes: []metav1.StatusCause{{Type: corev1.NamespaceTerminatingCause}}},
		}}
	}
	h.Must(reconcileUntil(h, reconcilerOf(h), "b", func() bool { return !h.Exists("b", &v1alpha1.ApiServerBackup{}) }))
	want := []string{"Warning DataRetained: The namespace is being deleted; the data of the backup stays"}
	if got := h.Events(); !slices.Equal(got, want) {
		t.Errorf("events %q, want %q", got, want)
	}
}
