package watchcache

import (
	"errors"
	"fmt"
	"testing"

	"quorate.dev/apiserver/storage"
)

func TestDifference(t *testing.T) {
	c := filled(t, 3, 10)
	values := func(except string, changed string) (all []storage.Value) {
		c.now().Ascend("pods/", "", func(e *Entry) bool {
			v := storage.Value{Path: e.path, Revision: e.revision}
			if v.Path == changed {
				v.Revision++
			}
			if v.Path != except {
				all = append(all, v)
			}
			return true
		})
		return all
	}
	all, state := values("", ""), c.now()
	for i, v := range all {
		for name, c := range map[string]struct {
			stored []storage.Value
			want   inconsistency
		}{
			"lost":    {values(v.Path, ""), inconsistency{path: v.Path, cached: v.Revision}},
			"changed": {values("", v.Path), inconsistency{path: v.Path, cached: v.Revision, store: v.Revision + 1}},
		} {
			if found := state.difference("pods/", "", c.stored, false); found == nil || *found != c.want {
				t.Errorf("%d %s: got %v, want %v", i, name, found, c.want)
			}
		}
		added := append(append(append([]storage.Value{}, all[:i]...),
			storage.Value{Path: v.Path[:len(v.Path)-1], Revision: 9}), all[i:]...)
		if found := c.now().difference("pods/", "", added, false); found == nil || found.store != 9 || found.cached != 0 {
			t.Errorf("%d: an object that the cache lacks: %v", i, found)
		}
	}
	if found := c.now().difference("pods/", "", all, false); found != nil {
		t.Errorf("equal states: %v", found)
	}
	if found := c.now().difference("pods/", "", all[:2], true); found != nil {
		t.Errorf("the first page: %v", found)
	}
	if found := c.now().difference("pods/", all[1].Path+"\x00", all[2:], false); found != nil {
		t.Errorf("the last page: %v", found)
	}
}

// TestInconsistentCacheStartsOver removes an object from a cache, as a lost event would.
func TestInconsistentCacheStartsOver(t *testing.T) {
	w := newWorld(t, Options{})
	for i := range 3 {
		w.create(fmt.Sprintf("pods/a/%d", i), "x")
	}
	c := w.cache("pods")
	snapshot := w.latest(c)
	c.checkConsistency(t.Context())
	if c.stats.consistent.Load() != 1 || c.stats.inconsistent.Load() != 0 {
		t.Fatalf("a consistent cache: %d checks succeeded, %d failed", c.stats.consistent.Load(), c.stats.inconsistent.Load())
	}
	watcher, err := c.Watch(snapshot.Revision(), Scope{})
	if err != nil {
		t.Fatal(err)
	}
	defer watcher.Close()
	c.mu.Lock()
	c.tree.Delete(item{path: "pods/a/1"})
	c.publish()
	c.mu.Unlock()
	c.checkConsistency(t.Context())
	if c.stats.inconsistent.Load() != 1 {
		t.Error("the missing object is not noticed")
	}
	if got := w.latest(c).Count("pods/"); got != 3 {
		t.Errorf("the cache has %d objects afterwards", got)
	}
	if _, _, err := watcher.Next(t.Context()); !errors.Is(err, ErrExpired) {
		t.Errorf("a watcher that may have missed events gets %v", err)
	}
	c.checkConsistency(t.Context())
	if c.stats.consistent.Load() != 2 {
		t.Error("the cache is still inconsistent")
	}
}
