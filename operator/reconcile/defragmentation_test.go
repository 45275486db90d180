package reconcile

import (
	"context"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
	ctrl "sigs.k8s.io/controller-runtime"

	"quorate.dev/operator/etcd"
)

// defragmented returns a cluster whose pool of etcd clients has the result of an earlier defragmentation of demo-0.
func defragmented(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t)
	c.execute([]string{"create"})
	// Fails immediately.
	c.reconciler.Etcd.Defragment(demo.String(), etcd.Endpoint{Name: "demo-0"}, 1, "0", etcd.Credentials{})
	c.must(wait.PollUntilContextTimeout(t.Context(), time.Millisecond, time.Minute, true, func(
		context.Context,
	) (bool, error) {
		return c.reconciler.Etcd.Defragmentation(demo.String()).Finished, nil
	}))
	return c
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
