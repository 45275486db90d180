package kubeconfig

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// maxWrites is the number of writes, including failed ones, that a fault may cause in an hour.
const maxWrites = 300

// TestRefusedWritesAreBounded checks the number of writes while the hosting cluster refuses one kind of write for an
// hour.
func TestRefusedWritesAreBounded(t *testing.T) {
	refusals := map[string]error{
		"conflict":  apierrors.NewConflict(schema.GroupResource{}, "ci", errors.New("the object has been modified")),
		"exists":    apierrors.NewAlreadyExists(schema.GroupResource{}, "ci"),
		"forbidden": apierrors.NewForbidden(schema.GroupResource{}, "ci", errors.New("exceeded quota")),
	}
	for _, verb := range []string{"create", "patch", "status"} {
		for reason, refusal := range refusals {
			t.Run(verb+", "+reason, func(t *testing.T) {
				f := newFixture(t)
				f.createCluster()
				writes := map[string]int{}
				write := func(v string, o client.Object) error {
					writes[fmt.Sprintf("%s %T", v, o)]++
					if v == verb {
						return refusal
					}
					return nil
				}
				raw, ok := f.client.(client.WithWatch)
				if !ok {
					t.Fatal("the fake client cannot watch")
				}
				f.reconciler.Client = interceptor.NewClient(raw, refusing(write))
				f.reconcileFor(time.Hour)
				for name, count := range writes {
					if count > maxWrites {
						t.Errorf("%s: %d times in an hour, at most %d are permitted", name, count, maxWrites)
					}
				}
			})
		}
	}
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
func (f *fixture) reconcileFor(duration time.Duration) {
	failures, end := 0, f.clock.Now().Add(duration)
	for f.clock.Now().Before(end) {
		result, err := f.reconciler.Reconcile(f.t.Context(), ctrl.Request{NamespacedName: key})
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
		f.clock.Step(delay)
	}
}
