package backups

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// due is the current scheduled time of the schedule hourly.
func due() time.Time { return ownedtest.Now() }

// newSchedule returns the schedule hourly of the cluster demo, with changes. It was created ten hours ago.
func newSchedule(changes ...func(*v1alpha1.ApiServerBackupSchedule)) *v1alpha1.ApiServerBackupSchedule {
	s := &v1alpha1.ApiServerBackupSchedule{ObjectMeta: metav1.ObjectMeta{
		Namespace: "ns", Name: "hourly", CreationTimestamp: metav1.NewTime(due().Add(-10 * time.Hour)),
	}}
	s.Spec = v1alpha1.ApiServerBackupScheduleSpec{
		Schedule: "0 * * * *", Template: v1alpha1.BackupTemplate{ClusterName: "demo", Destination: volume},
	}
	for _, change := range changes {
		change(s)
	}
	return s
}

// scheduled returns a backup of the schedule hourly. If it is finished, it has ended some time before the current
// scheduled time.
func scheduled(name string, phase v1alpha1.BackupPhase, age time.Duration) *v1alpha1.ApiServerBackup {
	b := newBackup(func(b *v1alpha1.ApiServerBackup) {
		b.Name, b.Labels, b.Status.Phase = name, map[string]string{desired.ScheduleLabel: "hourly"}, phase
	})
	if b.Finished() {
		b.Status.CompletionTime = &metav1.Time{Time: due().Add(-age)}
	}
	return b
}

// scheduleReconcilerOf returns the reconciler of schedules in a hosting cluster, a minute after the current scheduled
// time.
func scheduleReconcilerOf(h *ownedtest.Host) *ScheduleReconciler {
	return &ScheduleReconciler{
		Client: h.Client, Reader: h.Reader, Recorder: h, Clock: clocktesting.NewFakeClock(due().Add(time.Minute)),
	}
}

// backupNames returns the names of the backups in a hosting cluster.
func backupNames(h *ownedtest.Host) (names []string) {
	for _, name := range h.Names() {
		if name, ok := strings.CutPrefix(name, "ApiServerBackup "); ok {
			names = append(names, name)
		}
	}
	return names
}

// newest is the name of the present backup of the schedule hourly.
func newest() string { return fmt.Sprintf("hourly-%d", due().Unix()/60) }

// reconcileSchedule reconciles the schedule hourly once, and returns it.
func reconcileSchedule(h *ownedtest.Host) (*v1alpha1.ApiServerBackupSchedule, error) {
	_, err := scheduleReconcilerOf(h).Reconcile(h.Context(), ctrl.Request{
		NamespacedName: client.ObjectKey{Namespace: "ns", Name: "hourly"},
	})
	s := &v1alpha1.ApiServerBackupSchedule{}
	h.Read("hourly", s)
	return s, err
}

// decisions returns the events about created, skipped and deleted backups since the last call.
func decisions(h *ownedtest.Host) []string {
	return slices.DeleteFunc(h.Events(), func(event string) bool {
		return !strings.Contains(event, " Successful") && !strings.Contains(event, " "+v1alpha1.ReasonBackupSkipped)
	})
}

// TestPolicies checks what happens at a scheduled time while another backup is not finished, the schedule is suspended,
// or the time is long past.
func TestPolicies(t *testing.T) {
	created := "Normal SuccessfulCreate: Created backup " + newest()
	skipped := "Warning BackupSkipped: Skipped the backup of " + due().Format(time.RFC3339) + ": "
	for name, test := range map[string]struct {
		change func(*v1alpha1.ApiServerBackupSchedule)
		want   []string // backups
		events []string
		ready  string // reason of the condition Ready
	}{
		"forbid": {
			func(*v1alpha1.ApiServerBackupSchedule) {}, []string{"running"},
			[]string{skipped + "backup running is not finished"}, v1alpha1.ReasonScheduled,
		},
		"replace": {
			func(s *v1alpha1.ApiServerBackupSchedule) { s.Spec.ConcurrencyPolicy = v1alpha1.ReplaceConcurrent },
			[]string{newest()}, []string{"Normal SuccessfulDelete: Deleted unfinished backup running", created},
			v1alpha1.ReasonScheduled,
		},
		"allow": {
			func(s *v1alpha1.ApiServerBackupSchedule) { s.Spec.ConcurrencyPolicy = v1alpha1.AllowConcurrent },
			[]string{newest(), "running"}, []string{created}, v1alpha1.ReasonScheduled,
		},
		"the deadline has passed": {
			func(s *v1alpha1.ApiServerBackupSchedule) {
				s.Spec.ConcurrencyPolicy, s.Spec.StartingDeadlineSeconds = v1alpha1.AllowConcurrent, ptr.To[int64](10)
			},
			[]string{"running"}, []string{skipped + "the starting deadline passed 50s ago"}, v1alpha1.ReasonScheduled,
		},
		"suspended": {
			func(s *v1alpha1.ApiServerBackupSchedule) { s.Spec.Suspend = true }, []string{"running"}, nil,
			v1alpha1.ReasonSuspended,
		},
		"invalid": {
			func(s *v1alpha1.ApiServerBackupSchedule) { s.Spec.Schedule = "every night" }, []string{"running"}, nil,
			v1alpha1.ReasonInvalidSpec,
		},
		"being deleted": {
			func(s *v1alpha1.ApiServerBackupSchedule) {
				s.DeletionTimestamp, s.Finalizers = &metav1.Time{Time: due()}, []string{"example.org/wait"}
			}, []string{"running"}, nil, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := ownedtest.NewHost(t, append(hosted(t), newSchedule(test.change),
				scheduled("running", v1alpha1.BackupRunning, 0))...)
			s, err := reconcileSchedule(h)
			h.Must(err)
			if got := backupNames(h); !slices.Equal(got, test.want) {
				t.Errorf("backups %q, want %q", got, test.want)
			}
			if events := decisions(h); !slices.Equal(events, test.events) {
				t.Errorf("events %q, want %q", events, test.events)
			}
			reason := ""
			if c := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ScheduleReady); c != nil {
				reason = c.Reason
			}
			if reason != test.ready {
				t.Errorf("condition Ready has the reason %q, want %q", reason, test.ready)
			}
		})
	}
}

// TestInterruptedSchedule checks that a backup that was created just before the operator stopped is kept by the next
// operator, whatever the policy: it is unfinished, but must not be replaced, or count as a reason to skip its own time.
func TestInterruptedSchedule(t *testing.T) {
	for _, policy := range []v1alpha1.ConcurrencyPolicy{
		"", v1alpha1.ForbidConcurrent, v1alpha1.ReplaceConcurrent, v1alpha1.AllowConcurrent,
	} {
		h := ownedtest.NewHost(t, append(hosted(t), newSchedule(func(s *v1alpha1.ApiServerBackupSchedule) {
			s.Spec.ConcurrencyPolicy = policy
		}))...)
		h.Refuse = func(request string) error {
			if strings.HasPrefix(request, "status ") {
				return ownedtest.ErrUnavailable
			}
			return nil
		}
		if _, err := reconcileSchedule(h); !errors.Is(err, ownedtest.ErrUnavailable) {
			t.Errorf("%s: %v", policy, err)
		}
		h.Refuse = nil
		h.Events()
		s, err := reconcileSchedule(h)
		h.Must(err)
		if got := backupNames(h); !slices.Equal(got, []string{newest()}) {
			t.Errorf("policy %q: backups %q", policy, got)
		}
		if got := decisions(h); len(got) != 0 {
			t.Errorf("policy %q: events %q", policy, got)
		}
		if at := s.Status.LastScheduleTime; at == nil || !at.Time.Equal(due()) {
			t.Errorf("policy %q: handled %s, want %s", policy, at, due())
		}
	}
}

// TestRefusedBackup checks that a backup that the hosting cluster refuses, for example because of a quota, is tried
// again: its time does not count as handled, and expired backups are still deleted.
func TestRefusedBackup(t *testing.T) {
	h := ownedtest.NewHost(t, append(hosted(t), newSchedule(func(s *v1alpha1.ApiServerBackupSchedule) {
		s.Spec.Retention.Count = ptr.To[int32](1)
	}), scheduled("old", v1alpha1.BackupCompleted, 3*time.Hour),
		scheduled("new", v1alpha1.BackupCompleted, 2*time.Hour))...)
	h.Refuse = func(request string) error {
		if request == "create ApiServerBackup "+newest() {
			return apierrors.NewForbidden(schema.GroupResource{}, newest(), errors.New("exceeded quota"))
		}
		return nil
	}
	s, err := reconcileSchedule(h)
	if err == nil || !strings.Contains(err.Error(), "exceeded quota") || s.Status.LastScheduleTime != nil {
		t.Errorf("handled %s, %v", s.Status.LastScheduleTime, err)
	}
	if got := backupNames(h); !slices.Equal(got, []string{"new"}) {
		t.Errorf("backups %q", got)
	}
	h.Refuse = nil
	s, err = reconcileSchedule(h)
	h.Must(err)
	if got := backupNames(h); !slices.Equal(got, []string{newest(), "new"}) ||
		!s.Status.LastScheduleTime.Time.Equal(due()) {
		t.Errorf("backups %q, handled %s", got, s.Status.LastScheduleTime)
	}
}

// TestRetention checks which backups are kept within the limits of a schedule, and which beyond them, because a cluster
// is restored from them or was requested to be.
func TestRetention(t *testing.T) {
	byLocation := v1alpha1.RestoreSource{Location: &v1alpha1.BackupLocation{Path: "etcd/ns/demo/old"}}
	restoring := func(change func(*v1alpha1.ApiServerCluster)) client.Object {
		return ownedtest.NewCluster(func(c *v1alpha1.ApiServerCluster) {
			c.Name = "restored"
			change(c)
		})
	}
	recovery := func(stage v1alpha1.RecoveryStage) func(*v1alpha1.ApiServerCluster) {
		return func(c *v1alpha1.ApiServerCluster) {
			c.Spec.Recovery = &v1alpha1.Recovery{RequestID: "1", From: &byLocation}
			if stage != "" {
				c.Status.Recovery = &v1alpha1.RecoveryStatus{Request: *c.Spec.Recovery, Stage: stage}
			}
		}
	}
	one := v1alpha1.BackupRetention{Count: ptr.To[int32](1)}
	for name, test := range map[string]struct {
		retention v1alpha1.BackupRetention
		failures  *int32
		cluster   client.Object // nil: no other cluster
		want      []string
	}{
		"no limit": {want: []string{"failed", "failed-earlier", "new", "old"}},
		"count":    {retention: one, want: []string{"failed", "failed-earlier", "new"}},
		"age": {
			retention: v1alpha1.BackupRetention{Age: &metav1.Duration{Duration: 150 * time.Minute}},
			want:      []string{"failed", "failed-earlier", "new"},
		},
		"age of the newest": {
			retention: v1alpha1.BackupRetention{Age: &metav1.Duration{Duration: time.Minute}},
			want:      []string{"failed", "failed-earlier", "new"},
		},
		"a failure":   {failures: ptr.To[int32](1), want: []string{"failed", "new", "old"}},
		"no failures": {failures: ptr.To[int32](0), want: []string{"new", "old"}},
		"restored by location": {
			retention: one, cluster: restoring(func(c *v1alpha1.ApiServerCluster) {
				c.Spec.Restore = &v1alpha1.Restore{From: byLocation}
			}), want: []string{"failed", "failed-earlier", "new", "old"},
		},
		"was restored": {
			retention: one, cluster: restoring(func(c *v1alpha1.ApiServerCluster) {
				c.Spec.Restore, c.Status.Restore = &v1alpha1.Restore{From: byLocation}, &v1alpha1.RestoreStatus{Completed: true}
			}), want: []string{"failed", "failed-earlier", "new"},
		},
		"recovery is requested": {
			retention: one, cluster: restoring(recovery("")), want: []string{"failed", "failed-earlier", "new", "old"},
		},
		"recovery restores": {
			retention: one, cluster: restoring(recovery(v1alpha1.RecoveryRestoring)),
			want: []string{"failed", "failed-earlier", "new", "old"},
		},
		"recovery has restored": {
			retention: one, cluster: restoring(recovery(v1alpha1.RecoveryStarting)),
			want: []string{"failed", "failed-earlier", "new"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			objects := append(hosted(t), newSchedule(func(s *v1alpha1.ApiServerBackupSchedule) {
				s.Spec.Suspend, s.Spec.Retention, s.Spec.FailedBackupsHistoryLimit = true, test.retention, test.failures
			}), scheduled("old", v1alpha1.BackupCompleted, 3*time.Hour), scheduled("new", v1alpha1.BackupCompleted, 2*time.Hour),
				scheduled("failed-earlier", v1alpha1.BackupFailed, 2*time.Hour),
				scheduled("failed", v1alpha1.BackupFailed, time.Hour))
			if test.cluster != nil {
				objects = append(objects, test.cluster)
			}
			h := ownedtest.NewHost(t, objects...)
			_, err := reconcileSchedule(h)
			h.Must(err)
			if got := backupNames(h); !slices.Equal(got, test.want) {
				t.Errorf("backups %q, want %q", got, test.want)
			}
		})
	}
}
