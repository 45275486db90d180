package servingcert

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/clock"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// TestRefusedWritesAreBounded checks the number of writes while the hosting cluster refuses to create the Secret for an
// hour.
func TestRefusedWritesAreBounded(t *testing.T) {
	for name, refusal := range map[string]error{
		"conflict":  apierrors.NewConflict(schema.GroupResource{}, "metrics", errors.New("the object has been modified")),
		"exists":    apierrors.NewAlreadyExists(schema.GroupResource{}, "metrics"),
		"forbidden": apierrors.NewForbidden(schema.GroupResource{}, "metrics", errors.New("exceeded quota")),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				writes := 0
				c := interceptor.NewClient(fake.NewClientBuilder().Build(), interceptor.Funcs{
					Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
						writes++
						return refusal
					},
				})
				k := &Keeper{
					Client: c, Leaf: leaf, Clock: clock.RealClock{}, Logger: logr.Discard(),
					Secret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "metrics", Namespace: "ns"}},
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				if err := k.Start(ctx); err != nil {
					t.Fatal(err)
				}
				if writes < 60 || writes > 75 {
					t.Errorf("tried to write %d times in an hour, want about once per minute", writes)
				}
			})
		})
	}
}
