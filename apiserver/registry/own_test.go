package registry_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/registry"
	"quorate.dev/apiserver/registry/client"
	"quorate.dev/apiserver/resource"
	"quorate.dev/writelimit"
)

// limited is a world whose controllers may write an object three times, and then once per minute.
type limited struct {
	*world
	client *client.Client
	clock  *clocktesting.FakeClock
	writes int
}

func openLimited(t *testing.T) *limited {
	w := openWorld(t, etcdtest.Client(t), configMaps())
	l := &limited{world: w, clock: clocktesting.NewFakeClock(time.Now())}
	w.registry = registry.New(registry.Options{
		Store: w.store, Caches: w.caches, Catalog: w.publisher, Admission: &admission.Chain{},
		Clock: clock.RealClock{}, Logger: logr.Discard(),
		OwnWrites: writelimit.New(writelimit.Limit{Burst: 3, PerHour: 60}, l.clock, writelimit.NewCounter("Writes.")),
	})
	l.client = clientOf(w.registry).Named("controller")
	return l
}

func newConfigMap(name string, finalizers ...string) *corev1.ConfigMap {
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: "a", Name: name, Finalizers: finalizers}}
}

// change returns a function that changes a ConfigMap with each call.
func (l *limited) change(object runtime.Object) error {
	l.writes++
	object.(*corev1.ConfigMap).Data = map[string]string{"n": fmt.Sprint(l.writes)}
	return nil
}

func (l *limited) update(ctx context.Context, c *client.Client, name string) error {
	_, err := c.Update(ctx, configMap(name), l.change, resource.WriteOptions{})
	return err
}

// attempt calls write until it is refused, at most 50 times, and returns how often it succeeded.
func attempt(t *testing.T, write func() error) (succeeded int) {
	t.Helper()
	for range 50 {
		err := write()
		if apierrors.IsTooManyRequests(err) {
			if _, wait := apierrors.SuggestsClientDelay(err); wait {
				t.Error("the refusal makes client-go wait, which would occupy a worker of the controller")
			}
			return succeeded
		}
		if err != nil {
			t.Fatal(err)
		}
		succeeded++
	}
	return succeeded
}

// TestOwnWritesAreLimited writes one object again and again, in each way.
func TestOwnWritesAreLimited(t *testing.T) {
	ctx := t.Context()
	for name, c := range map[string]struct {
		write func(*limited) error
		want  int
	}{
		"update": {func(l *limited) error { return l.update(ctx, l.client, "x") }, 3},
		"create and delete": {func(l *limited) error {
			if _, err := l.client.Create(ctx, configMap(""), newConfigMap("new"), resource.WriteOptions{}); err != nil {
				return err
			}
			return l.client.Delete(ctx, configMap("new"), &metav1.DeleteOptions{})
		}, 3},
		"without a change": {func(l *limited) error {
			_, err := l.client.Update(ctx, configMap("x"), func(runtime.Object) error { return nil }, resource.WriteOptions{})
			return err
		}, 50},
		"dry run": {func(l *limited) error {
			_, err := l.client.Update(ctx, configMap("x"), l.change, resource.WriteOptions{DryRun: true})
			return err
		}, 50},
		"by a client": {func(l *limited) error { return l.update(ctx, clientOf(l.registry), "x") }, 50},
		"by the local transport": {func(l *limited) error {
			return l.update(writelimit.WithWriter(ctx, "controllers"), clientOf(l.registry), "x")
		}, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := openLimited(t)
			if _, err := clientOf(l.registry).Create(
				ctx, configMap(""), newConfigMap("x"), resource.WriteOptions{},
			); err != nil {
				t.Fatal(err)
			}
			if got := attempt(t, func() error { return c.write(l) }); got != c.want {
				t.Errorf("%d writes succeeded, want %d", got, c.want)
			}
		})
	}
}

// TestLimitIsOfOneObject exhausts the limit of one controller's writes of one object. The controller can still write
// other objects, also a new object with the same name, another controller can write the object, and the first
// controller can write the object again once a minute has passed. A deletion that waits for finalizers counts like
// other writes.
func TestLimitIsOfOneObject(t *testing.T) {
	ctx, l := t.Context(), openLimited(t)
	create := func(name string) {
		t.Helper()
		if _, err := clientOf(l.registry).Create(
			ctx, configMap(""), newConfigMap(name, "example.com/f"), resource.WriteOptions{},
		); err != nil {
			t.Fatal(err)
		}
	}
	create("x")
	if got := attempt(t, func() error { return l.update(ctx, l.client, "x") }); got != 3 {
		t.Errorf("%d updates succeeded", got)
	}
	if err := l.client.Delete(ctx, configMap("x"), &metav1.DeleteOptions{}); !apierrors.IsTooManyRequests(err) {
		t.Errorf("marking the object as deleted: %v", err)
	}
	for i := range 20 {
		create(fmt.Sprint(i))
		if err := l.update(ctx, l.client, fmt.Sprint(i)); err != nil {
			t.Errorf("another object: %v", err)
		}
	}
	if err := l.update(ctx, clientOf(l.registry).Named("another"), "x"); err != nil {
		t.Errorf("another controller: %v", err)
	}
	l.clock.Step(time.Minute)
	if err := l.client.Delete(ctx, configMap("x"), &metav1.DeleteOptions{}); err != nil {
		t.Errorf("after a minute: %v", err)
	}
	release := func(object runtime.Object) error {
		object.(*corev1.ConfigMap).Finalizers = nil
		return nil
	}
	if _, err := l.client.Update(
		ctx, configMap("x"), release, resource.WriteOptions{},
	); !apierrors.IsTooManyRequests(err) {
		t.Errorf("removing the last finalizer: %v", err)
	}
	if _, err := clientOf(l.registry).Update(ctx, configMap("x"), release, resource.WriteOptions{}); err != nil {
		t.Fatal(err)
	}
	create("x")
	if err := l.update(ctx, l.client, "x"); err != nil {
		t.Errorf("a new object with the same name: %v", err)
	}
}
