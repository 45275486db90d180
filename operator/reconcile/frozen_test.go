package reconcile

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/reconcile/members"
	"quorate.dev/operator/reconcile/outcome"
)

// frozenReader is the reader of an operator whose process is suspended after it has listed pods.
type frozenReader struct {
	client.Client
	clock *clocktesting.FakeClock
	time  time.Duration
}

// List implements client.Reader.
func (f *frozenReader) List(ctx context.Context, list client.ObjectList, options ...client.ListOption) error {
	err := f.Client.List(ctx, list, options...)
	if _, ok := list.(*corev1.PodList); ok {
		f.clock.Step(f.time)
	}
	return err
}

// TestFrozenOperator checks that an operator that was suspended between its observation and its action takes no action,
// because another operator may hold the leader lease by then.
func TestFrozenOperator(t *testing.T) {
	c := newCluster(t)
	frozen := &frozenReader{Client: c.client, clock: c.clock, time: members.ActionDeadline + time.Second}
	c.reconciler.Reader = frozen
	c.execute([]string{"create", "replicas=3"})
	for range 5 {
		c.reconcile()
	}
	if c.get().Status.Membership != nil {
		t.Error("an operator acts on an observation from before it was frozen")
	}
	frozen.time = 0
	c.execute([]string{"settle"})
	var pods corev1.PodList
	c.must(c.client.List(t.Context(), &pods))
	if len(pods.Items) != 3 {
		t.Errorf("%d pods, want 3 once the operator is not frozen", len(pods.Items))
	}
}

// TestRefusedWrites checks that writes that the hosting cluster rejects are reported with its message and retried with
// backoff, one replica at a time.
func TestRefusedWrites(t *testing.T) {
	for kind, refused := range map[string]func(client.Object) bool{
		"Secret":                func(o client.Object) bool { _, ok := o.(*corev1.Secret); return ok },
		"Service":               func(o client.Object) bool { _, ok := o.(*corev1.Service); return ok },
		"PersistentVolumeClaim": func(o client.Object) bool { _, ok := o.(*corev1.PersistentVolumeClaim); return ok },
		"Pod":                   func(o client.Object) bool { _, ok := o.(*corev1.Pod); return ok },
	} {
		t.Run(kind, func(t *testing.T) {
			c := newCluster(t)
			raw, refusing := c.client.(client.WithWatch), true
			c.reconciler.Client = interceptor.NewClient(raw, interceptor.Funcs{
				Create: func(
					ctx context.Context, inner client.WithWatch, object client.Object, options ...client.CreateOption,
				) error {
					if refusing && refused(object) {
						return apierrors.NewForbidden(schema.GroupResource{Resource: kind}, object.GetName(),
							errors.New("exceeded quota: small"))
					}
					return inner.Create(ctx, object, options...)
				},
			})
			c.execute([]string{"create", "replicas=3"})
			for range 4 {
				if wait := c.reconcile(); wait != outcome.ResyncInterval { // an error, which the rate limiter delays
					c.reconcile()
				}
			}
			degraded := meta.FindStatusCondition(c.get().Status.Conditions, v1alpha1.Degraded)
			if degraded == nil || degraded.Reason != "ReconcileFailed" ||
				!strings.Contains(degraded.Message, "exceeded quota: small") {
				t.Errorf("condition %+v, want the message of the quota", degraded)
			}
			refusing = false
			c.execute([]string{"settle"})
			var pods corev1.PodList
			c.must(c.client.List(t.Context(), &pods))
			if len(pods.Items) != 3 {
				t.Errorf("%d pods, want 3 once nothing is refused", len(pods.Items))
			}
		})
	}
}
