package limited

import (
	"errors"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"quorate.dev/writelimit"
)

// TestClient repeats a write of one object. The third is refused, whether or not those before have succeeded.
func TestClient(t *testing.T) {
	ctx := t.Context()
	empty := client.RawPatch(types.MergePatchType, []byte("{}"))
	for name, c := range map[string]struct {
		write   func(client.Client, *corev1.Pod) error
		missing bool // the object does not exist, so that each write fails
		limited bool
	}{
		"create":          {write: func(c client.Client, o *corev1.Pod) error { return c.Create(ctx, o) }, limited: true},
		"create, dry run": {write: func(c client.Client, o *corev1.Pod) error { return c.Create(ctx, o, client.DryRunAll) }},
		"update":          {write: func(c client.Client, o *corev1.Pod) error { return c.Update(ctx, o) }, limited: true},
		"update nothing": {
			write: func(c client.Client, o *corev1.Pod) error { return c.Update(ctx, o) }, missing: true, limited: true,
		},
		"patch": {
			write: func(c client.Client, o *corev1.Pod) error { return c.Patch(ctx, o, empty) }, limited: true,
		},
		"patch, dry run": {
			write: func(c client.Client, o *corev1.Pod) error { return c.Patch(ctx, o, empty, client.DryRunAll) },
		},
		"delete": {write: func(c client.Client, o *corev1.Pod) error { return c.Delete(ctx, o) }, limited: true},
		"status update": {
			write: func(c client.Client, o *corev1.Pod) error { return c.Status().Update(ctx, o) }, limited: true,
		},
		"status patch": {
			write: func(c client.Client, o *corev1.Pod) error { return c.Status().Patch(ctx, o, empty) }, limited: true,
		},
		"get": {write: func(c client.Client, o *corev1.Pod) error { return c.Get(ctx, client.ObjectKeyFromObject(o), o) }},
	} {
		t.Run(name, func(t *testing.T) {
			object := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: "b", UID: "c"}}
			build := func() client.Client {
				builder := fake.NewClientBuilder().WithStatusSubresource(object)
				if !c.missing {
					builder = builder.WithObjects(object.DeepCopy())
				}
				return builder.Build()
			}
			limiter := writelimit.New(writelimit.Limit{Burst: 2, PerHour: 60}, clocktesting.NewFakeClock(time.Now()),
				writelimit.NewCounter(Help))
			connect := Connect(func(*rest.Config) (client.Client, error) { return build(), nil }, limiter, "controller")
			inCluster, err := connect(&rest.Config{Host: "example.com"})
			if err != nil {
				t.Fatal(err)
			}
			for _, tested := range []client.Client{New(build(), limiter, "controller"), inCluster} {
				for i := range 4 {
					var refused *writelimit.Error
					err := c.write(tested, object.DeepCopy())
					if got, want := errors.As(err, &refused), c.limited && i >= 2; got != want {
						t.Errorf("write %d: %v, want a refusal: %t", i+1, err, want)
					}
				}
			}
		})
	}
}
