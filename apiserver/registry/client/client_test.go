package client_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apiserver/pkg/endpoints/request"
	"k8s.io/kubernetes/pkg/apis/core"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"

	"quorate.dev/apiserver/admission"
	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/registry/client"
	"quorate.dev/apiserver/resource"
	"quorate.dev/writelimit"
)

// keyOf returns the key of a ConfigMap in the namespace "one", or of the namespace's ConfigMaps.
func keyOf(name string) resource.Key {
	return resource.Key{GroupResource: configMaps, Namespace: "one", Name: name}
}

// newConfigMap returns a ConfigMap in the namespace "one", whose key "n" has a value.
func newConfigMap(name, n string) *core.ConfigMap {
	return &core.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Namespace: "one", Name: name}, Data: map[string]string{"n": n},
	}
}

// configuration returns the configuration of a ConfigMap for Apply, whose key "n" has a value.
func configuration(name, n string) any {
	return map[string]any{
		"apiVersion": "v1", "kind": "ConfigMap", "metadata": map[string]string{"name": name},
		"data": map[string]string{"n": n},
	}
}

// setN returns a function for Update that changes the key "n".
func setN(n string) func(runtime.Object) error {
	return func(object runtime.Object) error {
		object.(*core.ConfigMap).Data = map[string]string{"n": n}
		return nil
	}
}

// describe returns the name and the key "n" of a ConfigMap.
func describe(object runtime.Object) string {
	c := object.(*core.ConfigMap)
	return c.Name + "=" + c.Data["n"]
}

// succeeds returns a function that fails the test if a write failed.
func succeeds(t *testing.T) func(runtime.Object, error) {
	return func(_ runtime.Object, err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
}

// list returns the descriptions of the objects that a key selects.
func list(t *testing.T, c resource.Reader, key resource.Key, options resource.ReadOptions) string {
	t.Helper()
	var found []string
	for _, object := range builtintest.Must[[]runtime.Object](t)(c.List(t.Context(), key, options)) {
		found = append(found, describe(object))
	}
	return strings.Join(found, " ")
}

// TestReads reads objects while the watch cache is stale: only Cached returns its state.
func TestReads(t *testing.T) {
	t.Parallel()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	succeeds(t)(s.Create(t.Context(), keyOf(""), newConfigMap("a", "1"), resource.WriteOptions{}))
	other := newConfigMap("a", "other")
	other.Namespace = "two"
	two := resource.Key{GroupResource: configMaps, Namespace: "two"}
	succeeds(t)(s.Create(t.Context(), two, other, resource.WriteOptions{}))
	all := resource.Key{GroupResource: configMaps}
	for key, want := range map[resource.Key]string{
		all: "a=1 a=other", keyOf(""): "a=1", two: "a=other", {GroupResource: configMaps, Namespace: "three"}: "",
	} {
		if got := list(t, s, key, resource.ReadOptions{}); got != want {
			t.Errorf("namespace %q: got %q, want %q", key.Namespace, got, want)
		}
	}
	s.Freeze()
	succeeds(t)(s.Update(t.Context(), keyOf("a"), setN("2"), resource.WriteOptions{}))
	succeeds(t)(s.Create(t.Context(), keyOf(""), newConfigMap("b", "1"), resource.WriteOptions{}))
	cached := resource.ReadOptions{Cached: true}
	for options, want := range map[resource.ReadOptions]string{{}: "a=2", cached: "a=1"} {
		got, err := s.Get(t.Context(), keyOf("a"), options)
		if err != nil || describe(got) != want {
			t.Errorf("%+v: got %v, %v, want %s", options, got, err, want)
		}
	}
	if got := list(t, s, keyOf(""), cached); got != "a=1" {
		t.Errorf("a list from the stale cache: got %s", got)
	}
	if _, err := s.Get(t.Context(), keyOf("b"), cached); !apierrors.IsNotFound(err) {
		t.Errorf("an object that the stale cache does not have: %v", err)
	}
	if got, err := s.Get(t.Context(), keyOf("b"), resource.ReadOptions{}); err != nil || describe(got) != "b=1" {
		t.Errorf("got %v, %v", got, err)
	}
}

// TestReadsOfUndecodableObjects reads an object that cannot be decoded, and lists it with others.
func TestReadsOfUndecodableObjects(t *testing.T) {
	t.Parallel()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	succeeds(t)(s.Create(t.Context(), keyOf(""), newConfigMap("a", "1"), resource.WriteOptions{}))
	if _, err := s.Etcd.Put(t.Context(), "/registry/configmaps/one/broken", "no object"); err != nil {
		t.Fatal(err)
	}
	if got := list(t, s, resource.Key{GroupResource: configMaps, Namespace: "two"}, resource.ReadOptions{}); got != "" {
		t.Errorf("another namespace has %s", got) // the cache includes the object now
	}
	for _, options := range []resource.ReadOptions{{}, {Cached: true}} {
		if object, err := s.Get(t.Context(), keyOf("broken"), options); err == nil {
			t.Errorf("%+v: got %v", options, object)
		}
		if objects, err := s.List(t.Context(), keyOf(""), options); err == nil {
			t.Errorf("%+v: got the list %v", options, objects)
		}
		if got, err := s.Get(t.Context(), keyOf("a"), options); err != nil || describe(got) != "a=1" {
			t.Errorf("%+v: got %v, %v", options, got, err)
		}
	}
}

// TestWrites writes one after another. The error of each step is an API status error as clients get it.
func TestWrites(t *testing.T) {
	t.Parallel()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx, dry := t.Context(), resource.WriteOptions{DryRun: true}
	refused := errors.New("the edit refuses")
	create := func(c *core.ConfigMap, options resource.WriteOptions) func() (runtime.Object, error) {
		// The name of the key is ignored.
		return func() (runtime.Object, error) { return s.Create(ctx, keyOf("ignored"), c, options) }
	}
	update := func(name string, edit func(runtime.Object) error, options resource.WriteOptions) func() (runtime.Object,
		error) {
		return func() (runtime.Object, error) { return s.Update(ctx, keyOf(name), edit, options) }
	}
	apply := func(configuration any, options resource.WriteOptions) func() (runtime.Object, error) {
		return func() (runtime.Object, error) { return s.Apply(ctx, keyOf("b"), configuration, options) }
	}
	remove := func(name string, options *metav1.DeleteOptions) func() (runtime.Object, error) {
		return func() (runtime.Object, error) { return nil, s.Delete(ctx, keyOf(name), options) }
	}
	fail := func(err error) func(runtime.Object) error { return func(runtime.Object) error { return err } }
	is := func(kind func(error) bool, texts ...string) func(error) bool {
		return func(err error) bool {
			return kind(err) && !slices.ContainsFunc(texts, func(s string) bool { return !strings.Contains(err.Error(), s) })
		}
	}
	for _, step := range []struct {
		name   string
		do     func() (runtime.Object, error)
		want   string // the returned object; empty: none
		fails  func(error) bool
		stored string // all objects after the step
	}{
		{"dry run of a create", create(newConfigMap("a", "1"), dry), "a=1", nil, ""},
		{"create", create(newConfigMap("a", "1"), resource.WriteOptions{}), "a=1", nil, "a=1"},
		{"create again", create(newConfigMap("a", "2"), resource.WriteOptions{}), "", apierrors.IsAlreadyExists, "a=1"},
		{"create without a name", create(newConfigMap("", "2"), resource.WriteOptions{}), "", apierrors.IsInvalid, "a=1"},

		{"dry run of an update", update("a", setN("2"), dry), "a=2", nil, "a=1"},
		{"update", update("a", setN("2"), resource.WriteOptions{}), "a=2", nil, "a=2"},
		{"update without a change", update("a", fail(nil), resource.WriteOptions{}), "a=2", nil, "a=2"},
		{"update of a missing object", update("x", setN("2"), resource.WriteOptions{}), "", apierrors.IsNotFound, "a=2"},
		{
			"edit that fails", update("a", fail(refused), resource.WriteOptions{}), "",
			func(err error) bool { return err == refused }, "a=2", //nolint:errorlint // returned unwrapped
		},
		{
			"edit with a failed precondition", update("a", fail(&resource.PreconditionError{
				What: "UID", Wanted: "w", Actual: "v",
			}), resource.WriteOptions{}), "", is(apierrors.IsConflict, "Key: /registry/configmaps/one/a,",
				"Precondition failed: UID in precondition: w, UID in object meta: v"), "a=2",
		},
		{
			"dry run with a failed precondition", update("a", fail(&resource.PreconditionError{What: "UID"}), dry), "",
			is(apierrors.IsConflict, "Key: /configmaps/one/a,"), "a=2",
		},

		{"dry run of an apply that creates", apply(configuration("b", "1"), dry), "b=1", nil, "a=2"},
		{"apply that creates", apply(configuration("b", "1"), resource.WriteOptions{}), "b=1", nil, "a=2 b=1"},
		{"update of an applied field", update("b", setN("2"), resource.WriteOptions{}), "b=2", nil, "a=2 b=2"},
		{"apply that overwrites it", apply(configuration("b", "3"), resource.WriteOptions{}), "b=3", nil, "a=2 b=3"},
		{
			"apply without a name", apply(map[string]string{"apiVersion": "v1", "kind": "ConfigMap"}, dry), "b=", nil,
			"a=2 b=3",
		},
		{"apply of a list", apply([]string{"x"}, resource.WriteOptions{}), "", apierrors.IsBadRequest, "a=2 b=3"},
		{
			"apply of what is no JSON", apply(func() {}, resource.WriteOptions{}), "",
			func(err error) bool { return err != nil }, "a=2 b=3",
		},

		{"dry run of a deletion", remove("a", &metav1.DeleteOptions{DryRun: []string{"All"}}), "", nil, "a=2 b=3"},
		{"deletion of another object with the name", remove("a", &metav1.DeleteOptions{
			Preconditions: &metav1.Preconditions{UID: ptr.To(types.UID("another"))},
		}), "", apierrors.IsConflict, "a=2 b=3"},
		{"deletion", remove("a", &metav1.DeleteOptions{}), "", nil, "b=3"},
		{"deletion without options", remove("b", nil), "", nil, ""},
		{"deletion of a missing object", remove("a", nil), "", apierrors.IsNotFound, ""},
	} {
		object, err := step.do()
		if step.fails != nil && !step.fails(err) || step.fails == nil && err != nil {
			t.Errorf("%s: got the error %v", step.name, err)
		}
		got := ""
		if object != nil {
			got = describe(object)
		}
		if stored := list(t, s, keyOf(""), resource.ReadOptions{}); got != step.want || stored != step.stored {
			t.Errorf("%s: got %q and stored %q, want %q and %q", step.name, got, stored, step.want, step.stored)
		}
	}
}

// TestPermit makes writes that are not permitted. Reads and the objects are not affected.
func TestPermit(t *testing.T) {
	t.Parallel()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	ctx, options, refused := t.Context(), resource.WriteOptions{}, errors.New("refused")
	succeeds(t)(s.Create(ctx, keyOf(""), newConfigMap("a", "1"), options))
	var asked []string
	c := client.New(client.Options{
		Registry: s.Registry, Clock: clock.RealClock{}, Permit: func(t resource.Target, verb string) error {
			asked = append(asked, verb+" "+t.Namespace+"/"+t.Plural)
			return refused
		},
	}).Named("writer")
	_, created := c.Create(ctx, keyOf(""), newConfigMap("b", "1"), options)
	_, updated := c.Update(ctx, keyOf("a"), setN("2"), options)
	_, applied := c.Apply(ctx, keyOf("a"), configuration("a", "3"), options)
	for i, err := range []error{created, updated, applied, c.Delete(ctx, keyOf("a"), nil)} {
		if !errors.Is(err, refused) {
			t.Errorf("write %d: got the error %v", i, err)
		}
	}
	if got := list(t, c, keyOf(""), resource.ReadOptions{}); got != "a=1" {
		t.Errorf("stored %s", got)
	}
	want := []string{"create one/configmaps", "update one/configmaps", "patch one/configmaps", "delete one/configmaps"}
	if !slices.Equal(asked, want) {
		t.Errorf("asked for %q, want %q", asked, want)
	}
}

// TestUpdateRepeatsAfterAConflict updates an object that another client changes during the edit. The edit is called
// again with the new object, and may fail then.
func TestUpdateRepeatsAfterAConflict(t *testing.T) {
	t.Parallel()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	succeeds(t)(s.Create(t.Context(), keyOf(""), newConfigMap("a", "1"), resource.WriteOptions{}))
	var seen []string
	appending := func(object runtime.Object) error {
		seen = append(seen, describe(object))
		if len(seen) == 1 {
			succeeds(t)(s.Update(t.Context(), keyOf("a"), setN("2"), resource.WriteOptions{}))
		}
		return setN(object.(*core.ConfigMap).Data["n"] + "+")(object)
	}
	updated, err := s.Update(t.Context(), keyOf("a"), appending, resource.WriteOptions{})
	if err != nil || describe(updated) != "a=2+" || !slices.Equal(seen, []string{"a=1", "a=2"}) {
		t.Errorf("got %v, %v after edits of %v", updated, err, seen)
	}
	count, changed := 0, errors.New("the object has changed")
	_, err = s.Update(t.Context(), keyOf("a"), func(object runtime.Object) error {
		if count++; count > 1 {
			return changed
		}
		succeeds(t)(s.Update(t.Context(), keyOf("a"), setN("3"), resource.WriteOptions{}))
		return setN("lost")(object)
	}, resource.WriteOptions{})
	if got := list(t, s, keyOf(""), resource.ReadOptions{}); !errors.Is(err, changed) || got != "a=3" {
		t.Errorf("the second edit failed: got the error %v and stored %s", err, got)
	}
}

// TestConcurrentUpdates increments one number in several goroutines. No increment is lost.
func TestConcurrentUpdates(t *testing.T) {
	t.Parallel()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	succeeds(t)(s.Create(t.Context(), keyOf(""), newConfigMap("a", ""), resource.WriteOptions{}))
	const writers, increments = 4, 5
	failures := make(chan error, writers)
	for range writers {
		go func() {
			var err error
			for range increments {
				_, failed := s.Update(t.Context(), keyOf("a"), func(object runtime.Object) error {
					return setN(object.(*core.ConfigMap).Data["n"] + "+")(object)
				}, resource.WriteOptions{})
				err = errors.Join(err, failed)
			}
			failures <- err
		}()
	}
	for range writers {
		if err := <-failures; err != nil {
			t.Error(err)
		}
	}
	want := "a=" + strings.Repeat("+", writers*increments)
	if got := list(t, s, keyOf(""), resource.ReadOptions{}); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// calling returns a call of each method of a client, by its name.
func calling(c *client.Client) map[string]func(context.Context, resource.Key) error {
	return map[string]func(context.Context, resource.Key) error{
		"Get": func(ctx context.Context, key resource.Key) error {
			_, err := c.Get(ctx, key, resource.ReadOptions{})
			return err
		},
		"List": func(ctx context.Context, key resource.Key) error {
			_, err := c.List(ctx, key, resource.ReadOptions{})
			return err
		},
		"Create": func(ctx context.Context, key resource.Key) error {
			_, err := c.Create(ctx, key, newConfigMap("new", "1"), resource.WriteOptions{})
			return err
		},
		"Update": func(ctx context.Context, key resource.Key) error {
			_, err := c.Update(ctx, key, setN("2"), resource.WriteOptions{})
			return err
		},
		"Apply": func(ctx context.Context, key resource.Key) error {
			_, err := c.Apply(ctx, key, configuration("a", "2"), resource.WriteOptions{})
			return err
		},
		"Delete": func(ctx context.Context, key resource.Key) error { return c.Delete(ctx, key, nil) },
	}
}

// TestUnknownResource calls all methods with resources and subresources that are not served.
func TestUnknownResource(t *testing.T) {
	t.Parallel()
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	for name, call := range calling(s.Client) {
		for _, key := range []resource.Key{
			{GroupResource: schema.GroupResource{Group: "example.com", Resource: "widgets"}, Namespace: "one", Name: "a"},
			{GroupResource: configMaps, Namespace: "one", Name: "a", Subresource: "status"},
		} {
			if err := call(t.Context(), key); !apierrors.IsNotFound(err) {
				t.Errorf("%s of %s %s: got the error %v", name, key.GroupResource, key.Subresource, err)
			}
		}
	}
}

// witness records what admission sees of each write.
type witness struct{ seen []string }

// Admit implements admission.Mutator.
func (w *witness) Admit(ctx context.Context, a *admission.Attributes) error {
	info, _ := request.RequestInfoFrom(ctx)
	w.seen = append(w.seen, fmt.Sprintf("%s %s/%s %s %q internal=%v writer=%q", info.Verb, info.APIVersion, info.Resource,
		info.Namespace, info.Name, a.Internal, writelimit.Writer(ctx)))
	return nil
}

// TestContextOfWrites writes with and without the name of a controller. The context of a write has the RequestInfo of a
// client's request and the name, and its managed fields have the manager of the context.
func TestContextOfWrites(t *testing.T) {
	t.Parallel()
	w := &witness{}
	s := builtintest.NewServer(t, builtin.Options{}, &admission.Chain{Plugins: []admission.Plugin{{
		Operations: []admission.Operation{admission.Create, admission.Update}, Mutator: w, Internal: true,
	}}})
	ctx := resource.WithManager(t.Context(), "manager")
	for writer, c := range map[string]*client.Client{"": s.Client, "controller": s.Named("controller")} {
		w.seen = nil
		succeeds(t)(c.Create(ctx, keyOf(""), newConfigMap("a", "1"), resource.WriteOptions{}))
		succeeds(t)(c.Update(ctx, keyOf("a"), setN("2"), resource.WriteOptions{}))
		applied, err := c.Apply(ctx, keyOf("a"), configuration("a", "3"), resource.WriteOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Delete(ctx, keyOf("a"), nil); err != nil {
			t.Fatal(err)
		}
		want := []string{
			`create v1/configmaps one "" internal=true writer="` + writer + `"`,
			`update v1/configmaps one "a" internal=true writer="` + writer + `"`,
			`patch v1/configmaps one "a" internal=true writer="` + writer + `"`,
		}
		// An attempt that starts from a stale state is repeated.
		if w.seen = slices.Compact(w.seen); !slices.Equal(w.seen, want) {
			t.Errorf("admission sees %q, want %q", w.seen, want)
		}
		for _, managed := range applied.(*core.ConfigMap).ManagedFields {
			if managed.Manager != "manager" {
				t.Errorf("writer %q: fields are managed by %s", writer, managed.Manager)
			}
		}
	}
}
