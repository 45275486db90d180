package backups

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"quorate.dev/operator/api/v1alpha1"
)

// maxWrites is the number of writes of a kind, including failed ones, that a fault may cause in an hour. A backup that
// waits two seconds between its steps causes most.
const maxWrites = 300

// TestRefusedWritesAreBounded makes the hosting cluster refuse one kind of write for an hour, while a backup runs,
// while a backup is deleted, and while a schedule creates one every minute.
func TestRefusedWritesAreBounded(t *testing.T) {
	refusals := map[string]error{
		"conflict":  apierrors.NewConflict(schema.GroupResource{}, "b", errors.New("the object has been modified")),
		"forbidden": apierrors.NewForbidden(schema.GroupResource{}, "b", errors.New("exceeded quota")),
	}
	for _, task := range []string{"backup", "deletion", "schedule"} {
		for _, verb := range []string{"create", "patch", "status", "delete"} {
			for reason, refusal := range refusals {
				t.Run(task+", "+verb+", "+reason, func(t *testing.T) {
					e := newEnvironment(t)
					raw, ok := e.client.(client.WithWatch)
					if !ok {
						t.Fatal("the fake client cannot watch")
					}
					writes := map[string]int{}
					refused := interceptor.NewClient(raw, refusing(func(v string, o client.Object) error {
						writes[fmt.Sprintf("%s %T", v, o)]++
						if v == verb {
							return refusal
						}
						return nil
					}))
					reconciler, name := e.begin(task, refused)
					e.reconcileFor(reconciler, name, time.Hour)
					for kind, count := range writes {
						if count > maxWrites {
							t.Errorf("%s: %d times in an hour, at most %d are permitted", kind, count, maxWrites)
						}
					}
				})
			}
		}
	}
}

// begin creates the object of a task, and returns its name and a reconciler that writes through the given client.
func (e *environment) begin(task string, c client.Client) (reconcile.Reconciler, string) {
	if task == "schedule" {
		e.must(e.client.Create(e.t.Context(), &v1alpha1.ApiServerBackupSchedule{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: "often", CreationTimestamp: metav1.NewTime(e.clock.Now())},
			Spec: v1alpha1.ApiServerBackupScheduleSpec{
				Schedule: "* * * * *", Template: v1alpha1.BackupTemplate{ClusterName: "demo", Destination: volume},
			},
		}))
		return &ScheduleReconciler{Client: c, Reader: e.client, Recorder: e, Clock: e.clock}, "often"
	}
	e.create(v1alpha1.ApiServerBackupSpec{ClusterName: "demo", Destination: volume})
	if task == "deletion" {
		b := e.reconcile()
		e.must(e.client.Delete(e.t.Context(), b))
	}
	return &Reconciler{Client: c, Reader: e.client, Recorder: e, Clock: e.clock, Retries: NewRetries()}, "b"
}

// refusing returns functions that call write before each write.
func refusing(write func(verb string, object client.Object) error) interceptor.Funcs {
	return interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if err := write("create", o); err != nil {
				return err
			}
			return c.Create(ctx, o, options...)
		},
		Patch: func(
			ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, options ...client.PatchOption,
		) error {
			if err := write("patch", o); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, options...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, options ...client.DeleteOption) error {
			if err := write("delete", o); err != nil {
				return err
			}
			return c.Delete(ctx, o, options...)
		},
		SubResourcePatch: func(
			ctx context.Context, c client.Client, _ string, o client.Object, p client.Patch,
			options ...client.SubResourcePatchOption,
		) error {
			if err := write("status", o); err != nil {
				return err
			}
			return c.Status().Patch(ctx, o, p, options...)
		},
	}
}

// reconcileFor calls Reconcile for a duration, with the requeue intervals and the backoff of controller-runtime.
func (e *environment) reconcileFor(r reconcile.Reconciler, name string, duration time.Duration) {
	failures, end := 0, e.clock.Now().Add(duration)
	request := ctrl.Request{NamespacedName: client.ObjectKey{Namespace: "ns", Name: name}}
	for e.clock.Now().Before(end) {
		result, err := r.Reconcile(e.t.Context(), request)
		delay := result.RequeueAfter
		if err != nil {
			delay = min(5*time.Millisecond<<min(failures, 18), 1000*time.Second) // the default rate limiter
			failures++
		} else {
			failures = 0
		}
		if delay == 0 {
			return
		}
		e.clock.Step(delay)
	}
}
