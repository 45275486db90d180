package reconcile

import (
	"context"
	"errors"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"quorate.dev/operator/etcd"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/status"
)

// defragmented returns a cluster with the result of a former defragmentation of demo-0.
func defragmented(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t)
	c.execute([]string{"create"})
	c.reconciler.Etcd.Defragment(demo.String(), etcd.Endpoint{Name: "demo-0"}, 1, "0", etcd.Credentials{}) // fails at once
	c.must(wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(context.Context) (bool, error) {
		return c.reconciler.Etcd.Defragmentation(demo.String()).Finished, nil
	}))
	return c
}

// TestLostResponseToDefragmentation loses the response to the status patch. The request to etcd still follows, and a
// former result does not count for it.
func TestLostResponseToDefragmentation(t *testing.T) {
	c := defragmented(t)
	stored, ok := c.client.(client.WithWatch)
	if !ok {
		t.Fatal("the fake client cannot watch")
	}
	lost := errors.New("connection lost")
	c.reconciler.Client = interceptor.NewClient(stored, interceptor.Funcs{
		SubResourcePatch: func(
			ctx context.Context, w client.Client, name string, o client.Object, p client.Patch, options ...client.SubResourcePatchOption,
		) error {
			return errors.Join(w.SubResource(name).Patch(ctx, o, p, options...), lost)
		},
	})
	p := &pass{cluster: c.get(), input: status.Input{Now: c.clock.Now()}}
	start := membership.Action{Kind: membership.StartDefragmentation, Name: "demo-0", ID: 1}
	if err := c.reconciler.writeDefragmentation(t.Context(), p, start); !errors.Is(err, lost) {
		t.Fatal(err)
	}
	next := c.reconciler.defragmentation(&pass{cluster: c.get(), input: status.Input{Now: c.clock.Now()}})
	if next.Member != "demo-0" || next.Finished || next.Running {
		t.Errorf("%+v", next)
	}
}

func TestDeletedClusterForgetsItsDefragmentation(t *testing.T) {
	c := defragmented(t)
	c.must(c.client.Delete(t.Context(), c.get()))
	_, err := c.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: demo})
	c.must(err)
	if d := c.reconciler.Etcd.Defragmentation(demo.String()); d != nil {
		t.Errorf("%+v", d)
	}
}
