package failover

import (
	"fmt"
	"slices"
	"sync"
	"testing"

	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// answers are the acknowledged writes: the revision of each object's last write, 0 for a deletion. An object whose last
// write failed is not among them, because its state is unknown.
type answers struct {
	sync.Mutex
	at map[string]int64
}

func newAnswers() *answers { return &answers{at: map[string]int64{}} }

func key(object meta.Object) string { return object.GetNamespace() + "/" + object.GetName() }

func (a *answers) written(object meta.Object, revision int64) {
	a.Lock()
	defer a.Unlock()
	a.at[key(object)] = revision
}

func (a *answers) deleted(object meta.Object) { a.written(object, 0) }

func (a *answers) unknown(object meta.Object) {
	a.Lock()
	defer a.Unlock()
	delete(a.at, key(object))
}

// has reports whether the object's last write was acknowledged and not a deletion.
func (a *answers) has(object meta.Object) bool {
	a.Lock()
	defer a.Unlock()
	return a.at[key(object)] > 0
}

// broken returns the acknowledged writes that are not stored.
func (a *answers) broken(stored map[string]int64) (broken []string) {
	a.Lock()
	defer a.Unlock()
	for name, at := range a.at {
		if stored[name] != at {
			broken = append(broken, fmt.Sprintf("%s: acknowledged %d, stored %d", name, at, stored[name]))
		}
	}
	slices.Sort(broken)
	return broken
}

// mustBeStored compares the acknowledged writes with etcd, after all writers have stopped.
func (a *answers) mustBeStored(r *replicas) {
	r.Helper()
	if broken := a.broken(r.stored()); len(broken) > 0 {
		r.Errorf("%d of %d acknowledged writes are not what is stored: %q", len(broken), len(a.at),
			broken[:min(5, len(broken))])
	}
}

func TestBrokenAnswers(t *testing.T) {
	object := func(name string) *meta.ObjectMeta { return &meta.ObjectMeta{Namespace: "n", Name: name} }
	a := newAnswers()
	for i, name := range []string{"kept", "lost", "overwritten", "deleted", "back", "perhaps"} {
		a.written(object(name), int64(i+1))
	}
	a.deleted(object("deleted"))
	a.deleted(object("back"))
	a.unknown(object("perhaps"))
	got := a.broken(map[string]int64{"n/kept": 1, "n/overwritten": 2, "n/back": 5, "n/perhaps": 9, "n/unknown": 7})
	want := []string{
		"n/back: acknowledged 0, stored 5", "n/lost: acknowledged 2, stored 0", "n/overwritten: acknowledged 3, stored 2",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
	if !a.has(object("kept")) || a.has(object("deleted")) || a.has(object("perhaps")) {
		t.Error("it does not know what is there")
	}
}
