package reconcile

import (
	"context"
	"errors"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestUnreadableCertificate checks that the operator retries if the user's Secret cannot be read. It must not issue a
// certificate instead, which the user's clients would not trust.
func TestUnreadableCertificate(t *testing.T) {
	c := newCluster(t)
	c.execute([]string{"create", "replicas=1", "external=https://etcd:2379", "serving=api-tls"})
	c.execute([]string{"give", "api-tls", "2160h", "demo.ns.svc"})
	unreadable := true
	c.reconciler.Reader = interceptor.NewClient(c.client.(client.WithWatch), interceptor.Funcs{Get: func(
		ctx context.Context, inner client.WithWatch, key client.ObjectKey, object client.Object, options ...client.GetOption,
	) error {
		if key.Name == "api-tls" && unreadable {
			return apierrors.NewInternalError(errors.New("etcdserver: request timed out"))
		}
		return inner.Get(ctx, key, object, options...)
	}})
	for range 2 {
		if _, err := c.reconciler.Reconcile(t.Context(), ctrl.Request{NamespacedName: demo}); err == nil {
			t.Error("the error is not returned, so that it is not retried with back-off")
		}
	}
	serving := &corev1.Secret{}
	key := client.ObjectKey{Namespace: "ns", Name: "demo-serving"}
	if err := c.client.Get(t.Context(), key, serving); !apierrors.IsNotFound(err) {
		t.Errorf("Secret demo-serving exists, %v", err)
	}
	unreadable = false
	c.execute([]string{"settle"})
	c.must(c.client.Get(t.Context(), key, serving))
}
