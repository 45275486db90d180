package backups

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/reconcile/owned/ownedtest"
)

// TestWatches checks which events reconcile which backups and schedules. A reconciliation reads its object first. An
// event has the object before, after, or before and after a change.
func TestWatches(t *testing.T) {
	setUpBackups := func(h *ownedtest.Host, manager ctrl.Manager) error {
		return reconcilerOf(h).SetupWithManager(manager)
	}
	setUpSchedules := func(h *ownedtest.Host, manager ctrl.Manager) error {
		return scheduleReconcilerOf(h).SetupWithManager(manager)
	}
	cluster := ownedtest.NewCluster()
	changed := func(change func(*v1alpha1.ApiServerCluster)) client.Object {
		c := cluster.DeepCopy()
		change(c)
		return c
	}
	scaled := changed(func(c *v1alpha1.ApiServerCluster) { c.Generation++ })
	const readBackup, readSchedule = "get ApiServerBackup b", "get ApiServerBackupSchedule hourly"
	for name, test := range map[string]struct {
		setUp         func(*ownedtest.Host, ctrl.Manager) error
		before, after client.Object
		refuse        bool // the hosting cluster is unavailable
		want          string
	}{
		"backup created": {setUp: setUpBackups, after: newBackup(), want: readBackup},
		"pod of a backup ended": {
			setUp: setUpBackups, before: podOf(newBackup(), "b-try1", corev1.PodRunning, ""),
			after: podOf(newBackup(), "b-try1", corev1.PodFailed, ""), want: readBackup,
		},
		"pod of a backup deleted": {
			setUp: setUpBackups, before: podOf(newBackup(), "b-try1", corev1.PodFailed, ""), want: readBackup,
		},
		"another pod": {
			setUp: setUpBackups, after: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "b-try1"}},
		},

		"schedule created": {setUp: setUpSchedules, after: newSchedule(), want: readSchedule},
		"backup of the schedule completed": {
			setUp: setUpSchedules, before: scheduled("x", v1alpha1.BackupRunning, 0),
			after: scheduled("x", v1alpha1.BackupCompleted, 0), want: readSchedule,
		},
		"another backup": {setUp: setUpSchedules, after: newBackup()},
		"cluster scaled": {setUp: setUpSchedules, before: cluster, after: scaled, want: readSchedule},
		"cluster scaled while schedules cannot be listed": {
			setUp: setUpSchedules, before: cluster, after: scaled, refuse: true,
		},
		"cluster without a schedule created": {
			setUp: setUpSchedules, after: changed(func(c *v1alpha1.ApiServerCluster) { c.Name = "other" }),
		},
		"status of the cluster": {setUp: setUpSchedules, before: cluster, after: changed(ownedtest.Bootstrapped)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				// The schedule is being deleted, so that its reconciliation only reads it.
				h := ownedtest.NewHost(t, newSchedule(func(s *v1alpha1.ApiServerBackupSchedule) {
					s.DeletionTimestamp, s.Finalizers = &metav1.Time{Time: due()}, []string{"example.org/wait"}
				}))
				var read []string
				h.Refuse = func(request string) error {
					if strings.HasPrefix(request, "get ") && !slices.Contains(read, request) {
						read = append(read, request)
					}
					if test.refuse {
						return ownedtest.ErrUnavailable
					}
					return nil
				}
				manager := ownedtest.NewManager(t)
				h.Must(test.setUp(h, manager))
				go func() {
					if err := manager.Start(t.Context()); err != nil {
						t.Error(err)
					}
				}()
				synctest.Wait()
				switch {
				case test.before == nil:
					manager.Events.Create(test.after)
				case test.after == nil:
					manager.Events.Delete(test.before)
				default:
					manager.Events.Update(test.before, test.after)
				}
				synctest.Wait()
				if got := strings.Join(read, ", "); got != test.want {
					t.Errorf("reads %q, want %q", got, test.want)
				}
			})
		})
	}
}
