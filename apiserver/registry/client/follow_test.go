package client_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/kubernetes/pkg/apis/core"

	"quorate.dev/apiserver/builtin"
	"quorate.dev/apiserver/builtin/builtintest"
	"quorate.dev/apiserver/registry/follow"
	"quorate.dev/apiserver/resource"
	"quorate.dev/apiserver/watchcache"
)

var configMaps = schema.GroupResource{Resource: "configmaps"}

// calls records the calls of the functions of follow.Options.
type calls struct {
	lock sync.Mutex
	all  []string
}

func (c *calls) add(format string, arguments ...any) {
	c.lock.Lock()
	defer c.lock.Unlock()
	c.all = append(c.all, fmt.Sprintf(format, arguments...))
}

// take returns the calls since the last take.
func (c *calls) take() []string {
	c.lock.Lock()
	defer c.lock.Unlock()
	taken := c.all
	c.all = nil
	return taken
}

// recorded returns options that record all calls, and the progress.
func (c *calls) recorded() follow.Options {
	return follow.Options{
		Objects: func(key string, object runtime.Object) {
			if object == nil {
				c.add("deleted %s", key)
				return
			}
			c.add("object %s %s", key, object.(*core.ConfigMap).Data["n"])
		},
		Undecodable: func(key string) { c.add("undecodable %s", key) },
		Entries:     func(before, after *watchcache.Entry) { c.add("entry %t %t", before != nil, after != nil) },
		Changed:     func() { c.add("changed") },
		Synced:      func() { c.add("synced") },
		Progress:    &follow.Progress{},
	}
}

// TestFollow follows the objects of a namespace and one object, with all options.
func TestFollow(t *testing.T) {
	s := builtintest.NewServer(t, builtin.Options{}, nil)
	key := func(namespace, name string) resource.Key {
		return resource.Key{GroupResource: configMaps, Namespace: namespace, Name: name}
	}
	create := func(namespace, name string) {
		t.Helper()
		object := &core.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}, Data: map[string]string{"n": "1"},
		}
		builtintest.Must[runtime.Object](t)(s.Create(t.Context(), key(namespace, ""), object, resource.WriteOptions{}))
	}
	create("one", "a")
	create("one", "b")
	create("two", "a")
	if _, err := s.Etcd.Put(t.Context(), "/registry/configmaps/one/broken", "no object"); err != nil {
		t.Fatal(err)
	}
	var namespace, object calls
	all, one := namespace.recorded(), object.recorded()
	one.Objects, one.Entries, one.Undecodable = nil, nil, nil
	builtintest.Background(t, func(ctx context.Context) { _ = s.Follow(ctx, key("one", ""), all) })
	builtintest.Background(t, func(ctx context.Context) { _ = s.Follow(ctx, key("one", "b"), one) })
	check := func(what string, wantAll, wantOne string) {
		t.Helper()
		for _, progress := range []*follow.Progress{all.Progress, one.Progress} {
			if err := s.AwaitFollowed(t.Context(), configMaps, progress); err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Join(namespace.take(), ", "); got != wantAll {
			t.Errorf("%s, all objects of a namespace: got %s, want %s", what, got, wantAll)
		}
		if got := strings.Join(slices.Compact(object.take()), ", "); got != wantOne {
			t.Errorf("%s, one object: got %s, want %s", what, got, wantOne)
		}
	}
	check("at the start", "entry false true, changed, object one/a 1, entry false true, changed, object one/b 1, "+
		"entry false true, changed, undecodable one/broken, changed, synced", "changed, synced")
	change := func(object runtime.Object) error {
		object.(*core.ConfigMap).Data = map[string]string{"n": "2"}
		return nil
	}
	for _, k := range []resource.Key{key("one", "a"), key("two", "a")} {
		builtintest.Must[runtime.Object](t)(s.Update(t.Context(), k, change, resource.WriteOptions{}))
	}
	check("after an update", "entry true true, changed, object one/a 2", "")
	if err := s.Delete(t.Context(), key("one", "b"), metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	check("after a deletion", "entry true false, changed, deleted one/b", "changed")
}
