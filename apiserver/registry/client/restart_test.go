package client_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clocktesting "k8s.io/utils/clock/testing"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/registry/client"
	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
)

// interrupted is a follower of ConfigMaps whose watch the test ends while the follower handles an object. ConfigMaps
// are defined like custom resources here, whose definition can be removed.
type interrupted struct {
	*builtintest.Server
	client *client.Client // has the clock below
	clock  *clocktesting.FakeClock
	calls  calls
	// handling receives from the follower while it handles an object with n=wait, and continues delivers to it then.
	handling, continues chan struct{}
	definition          *resource.Definition
	progress            *follow.Progress
}

// newInterrupted returns a follower that runs until the test ends, and has handled objects a, b and c with n=1.
func newInterrupted(t *testing.T) *interrupted {
	t.Helper()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	match, _ := s.Catalog.Current().Find(configMaps)
	custom := *match.Definition
	custom.Source, custom.Revision = resource.Custom, "1"
	i := &interrupted{
		Server: s, clock: clocktesting.NewFakeClock(time.Unix(0, 0)), definition: &custom,
		handling: make(chan struct{}), continues: make(chan struct{}),
	}
	i.client = client.New(client.Options{Registry: s.Registry, Clock: i.clock, Logger: logr.Discard()})
	s.Catalog.Publish(resource.NewCatalog(i.definition))
	for _, name := range []string{"a", "b", "c"} {
		succeeds(t)(s.Create(t.Context(), keyOf(""), newConfigMap(name, "1"), resource.WriteOptions{}))
	}
	options := i.calls.recorded()
	options.Entries, options.Changed = nil, nil
	i.progress = options.Progress
	report := options.Objects
	options.Objects = func(key string, object runtime.Object) {
		report(key, object)
		if object != nil && strings.HasSuffix(describe(object), "=wait") {
			i.handling <- struct{}{}
			<-i.continues
		}
	}
	builtintest.Background(t, func(ctx context.Context) { _ = i.client.Follow(ctx, keyOf(""), options) })
	i.expect(t, "at the start", "object one/a 1, object one/b 1, object one/c 1, synced")
	return i
}

// expect waits until all changes have been handled, and checks the calls.
func (i *interrupted) expect(t *testing.T, when, want string) {
	t.Helper()
	if err := i.client.AwaitFollowed(t.Context(), configMaps, i.progress); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(i.calls.take(), ", "); got != want {
		t.Errorf("%s: got %s, want %s", when, got, want)
	}
}

// hold makes the follower handle an object until continues delivers.
func (i *interrupted) hold(t *testing.T) {
	t.Helper()
	succeeds(t)(i.Update(t.Context(), keyOf("a"), setN("wait"), resource.WriteOptions{}))
	<-i.handling
}

// change deletes an object, changes another one twice and adds one.
func (i *interrupted) change(t *testing.T) {
	t.Helper()
	if err := i.Delete(t.Context(), keyOf("b"), nil); err != nil {
		t.Fatal(err)
	}
	for _, n := range []string{"2", "3"} {
		succeeds(t)(i.Update(t.Context(), keyOf("c"), setN(n), resource.WriteOptions{}))
	}
	succeeds(t)(i.Create(t.Context(), keyOf(""), newConfigMap("d", "1"), resource.WriteOptions{}))
}

// TestFollowRestarts replaces the definition of the resource while objects change. The follower reports each object
// that changed in between once, objects that were deleted, and no unchanged object; it is synced only once.
func TestFollowRestarts(t *testing.T) {
	t.Parallel()
	i := newInterrupted(t)
	i.hold(t)
	i.change(t)
	next := *i.definition
	next.Revision = "2"
	i.Catalog.Publish(resource.NewCatalog(&next))
	i.Registry.Release(i.definition)
	i.continues <- struct{}{}
	builtintest.Eventually(t, "the follower pauses", i.clock.HasWaiters)
	i.clock.Step(time.Second)
	i.expect(t, "after the restart", "object one/a wait, object one/c 3, object one/d 1, deleted one/b")
	succeeds(t)(i.Update(t.Context(), keyOf("d"), setN("2"), resource.WriteOptions{}))
	i.expect(t, "after another change", "object one/d 2")
}

// TestFollowPauses removes the definition of the resource. The follower tries to watch at intervals until the
// definition exists again.
func TestFollowPauses(t *testing.T) {
	t.Parallel()
	i := newInterrupted(t)
	i.hold(t)
	i.Catalog.Publish(resource.NewCatalog())
	i.Registry.Release(i.definition)
	i.continues <- struct{}{}
	for range 3 {
		builtintest.Eventually(t, "the follower pauses", i.clock.HasWaiters)
		i.clock.Step(time.Second)
	}
	builtintest.Eventually(t, "the follower pauses", i.clock.HasWaiters)
	i.Catalog.Publish(resource.NewCatalog(i.definition))
	i.change(t)
	if got := i.calls.take(); !slices.Equal(got, []string{"object one/a wait"}) {
		t.Errorf("during the pause: got %q", got)
	}
	i.clock.Step(time.Second)
	i.expect(t, "after the pause", "object one/c 3, object one/d 1, deleted one/b")
}

// TestFollowEndsWithTheContext ends the context while the follower waits for events, and while it pauses.
func TestFollowEndsWithTheContext(t *testing.T) {
	t.Parallel()
	i := newInterrupted(t)
	ctx, cancel := context.WithCancel(t.Context())
	synced, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- i.client.Follow(ctx, keyOf("a"), follow.Options{Synced: func() { close(synced) }})
	}()
	<-synced
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("waiting for events: got the error %v", err)
	}
	i.hold(t)
	ctx, cancel = context.WithCancel(t.Context())
	defer cancel()
	synced = make(chan struct{})
	go func() {
		ended <- i.client.Follow(ctx, keyOf("a"), follow.Options{Synced: func() { close(synced) }})
	}()
	<-synced
	i.Catalog.Publish(resource.NewCatalog())
	i.Registry.Release(i.definition)
	builtintest.Eventually(t, "the follower pauses", i.clock.HasWaiters)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("pausing: got the error %v", err)
	}
	i.continues <- struct{}{}
}

// TestFollowUnknownResource follows a resource that is not served, and waits for followers of such a resource and for
// none.
func TestFollowUnknownResource(t *testing.T) {
	t.Parallel()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	unknown := schema.GroupResource{Group: "example.com", Resource: "widgets"}
	if err := s.Follow(t.Context(), resource.Key{GroupResource: unknown}, follow.Options{}); !apierrors.IsNotFound(err) {
		t.Errorf("Follow: got the error %v", err)
	}
	if err := s.AwaitFollowed(t.Context(), unknown, &follow.Progress{}); !apierrors.IsNotFound(err) {
		t.Errorf("AwaitFollowed: got the error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := s.AwaitFollowed(ctx, configMaps, &follow.Progress{}); err == nil {
		t.Error("AwaitFollowed returns without a follower")
	}
}
