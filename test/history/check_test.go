package history

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"k8s.io/apimachinery/pkg/watch"
)

// searchLimit bounds the search for an order of the operations of one object.
const searchLimit = time.Minute

// check returns the observations that a correct store cannot produce.
func (h *record) check() []error {
	faults := h.checkObjects()
	truth, inconsistent := h.merge()
	faults = append(faults, inconsistent...)
	for _, c := range h.chains {
		faults = append(faults, c.check(truth)...)
	}
	return append(faults, h.checkLists(truth)...)
}

// checkObjects looks for an order of the operations of each object.
func (h *record) checkObjects() (faults []error) {
	for _, key := range slices.Sorted(maps.Keys(h.operations)) {
		answer, _ := porcupine.CheckOperationsVerbose(model.ToModel(), h.history(key), searchLimit)
		switch answer {
		case porcupine.Illegal:
			faults = append(faults, &objectFault{key})
		case porcupine.Unknown:
			faults = append(faults, fmt.Errorf("%s: no order was found within %v", key, searchLimit))
		}
	}
	return faults
}

// objectFault is an object whose operations have no order.
type objectFault struct{ key string }

func (f *objectFault) Error() string { return f.key + ": its operations are not linearizable" }

// history has the operations on an object. One with an unknown outcome may take effect at any later time.
func (h *record) history(key string) []porcupine.Operation {
	var end time.Duration
	for _, o := range h.operations[key] {
		end = max(end, o.Return)
	}
	var all []porcupine.Operation
	for _, o := range h.operations[key] {
		returned := o.Return
		if o.Output.result == unknown {
			returned = end + 1
		}
		all = append(all, porcupine.Operation{
			ClientId: o.Client, Input: o.Input, Output: o.Output, Call: int64(o.Call), Return: int64(returned),
		})
	}
	return all
}

// truth has every change that any client observed, by revision.
type truth struct {
	changes   map[int64]event
	revisions []int64 // sorted
}

// merge combines the events of watches and the responses to writes.
func (h *record) merge() (t truth, faults []error) {
	t.changes = map[int64]event{}
	note := func(e event) {
		known, ok := t.changes[e.Revision]
		if ok && (known.Key != e.Key || known.Value != e.Value ||
			(known.Type == watch.Deleted) != (e.Type == watch.Deleted)) {
			faults = append(faults, fmt.Errorf("revision %d is %s %s=%s, and %s %s=%s", e.Revision, known.Type, known.Key,
				known.Value, e.Type, e.Key, e.Value))
		}
		t.changes[e.Revision] = e
	}
	for _, c := range h.chains {
		for _, e := range c.Events {
			if e.Type != watch.Bookmark {
				note(e)
			}
		}
	}
	for key, operations := range h.operations {
		for _, o := range operations {
			if o.Input.To != "" && o.Output.Revision > 0 {
				note(event{Type: watch.Modified, Key: key, Value: o.Input.To, Revision: o.Output.Revision})
			}
		}
	}
	t.revisions = slices.Sorted(maps.Keys(t.changes))
	return t, faults
}

// check compares a chain with the observations of others.
func (c *chain) check(t truth) (faults []error) {
	fault := func(format string, args ...any) {
		faults = append(faults, fmt.Errorf("watcher %d from revision %d: %w", c.Watcher, c.From, fmt.Errorf(format, args...)))
	}
	values := maps.Clone(c.Values)
	seen := map[int64]bool{}
	last := c.From
	for i, e := range c.Events {
		if e.Type == watch.Bookmark {
			if e.Revision < last {
				fault("a bookmark at %d after %d", e.Revision, last)
			}
			last = max(last, e.Revision)
			continue
		}
		if e.Revision <= last {
			fault("event %d, %s %s, is at revision %d after %d", i, e.Type, e.Key, e.Revision, last)
		}
		last = max(last, e.Revision)
		seen[e.Revision] = true
		if _, existed := values[e.Key]; existed != (e.Type != watch.Added) {
			fault("%s of %s at %d, which was there: %v", e.Type, e.Key, e.Revision, existed)
		}
		values[e.Key] = e.Value
		if e.Type == watch.Deleted {
			delete(values, e.Key)
		}
	}
	for _, revision := range t.revisions {
		if revision > c.From && revision <= last && !seen[revision] {
			fault("the change of %s at %d is missing", t.changes[revision].Key, revision)
		}
	}
	return faults
}

// checkLists compares lists with the state after all changes up to their revisions.
func (h *record) checkLists(t truth) (faults []error) {
	for _, l := range h.lists {
		if l.Revision < l.AtLeast {
			faults = append(faults, fmt.Errorf("a list is of revision %d; a write at %d had been acknowledged before",
				l.Revision, l.AtLeast))
		}
	}
	first, until := h.covered()
	lists := slices.SortedFunc(slices.Values(h.lists), func(a, b list) int { return cmp.Compare(a.Revision, b.Revision) })
	if first == nil {
		return faults
	}
	values, applied := maps.Clone(first.Values), 0
	for _, l := range lists {
		if l.Revision < first.From || l.Revision > until {
			continue
		}
		for ; applied < len(t.revisions) && t.revisions[applied] <= l.Revision; applied++ {
			e := t.changes[t.revisions[applied]]
			switch {
			case e.Revision <= first.From:
			case e.Type == watch.Deleted:
				delete(values, e.Key)
			default:
				values[e.Key] = e.Value
			}
		}
		if !maps.Equal(values, l.Values) {
			faults = append(faults, fmt.Errorf("the list at revision %d: %s", l.Revision, difference(values, l.Values)))
		}
	}
	return faults
}

// covered returns the chain that starts first, and the revision up to which chains have every change.
func (h *record) covered() (first *chain, until int64) {
	chains := slices.SortedFunc(slices.Values(h.chains), func(a, b *chain) int { return cmp.Compare(a.From, b.From) })
	for _, c := range chains {
		if first == nil {
			first, until = c, c.From
		}
		if c.From <= until {
			until = max(until, c.Reached)
		}
	}
	return first, until
}

func difference(want, got map[string]string) string {
	var all []string
	for key, value := range want {
		if got[key] != value {
			all = append(all, fmt.Sprintf("%s is %q, want %q", key, got[key], value))
		}
	}
	for key, value := range got {
		if _, ok := want[key]; !ok {
			all = append(all, fmt.Sprintf("%s is %q, want nothing", key, value))
		}
	}
	slices.Sort(all)
	return strings.Join(all, "; ")
}

// keep writes the history to files: what was recorded, the faults, and a picture of each object without an order.
func (h *record) keep(faults []error) (string, error) {
	directory := filepath.Join(os.TempDir(), fmt.Sprintf("quorate-history-%d", h.seed))
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return directory, err
	}
	texts := []string{}
	var failures []error
	for _, fault := range faults {
		texts = append(texts, fault.Error())
		var object *objectFault
		if errors.As(fault, &object) {
			_, info := porcupine.CheckOperationsVerbose(model.ToModel(), h.history(object.key), searchLimit)
			failures = append(failures, porcupine.VisualizePath(model.ToModel(), info,
				filepath.Join(directory, object.key+".html")))
		}
	}
	content, err := json.MarshalIndent(map[string]any{
		"seed": h.seed, "faults": texts, "operations": h.operations, "lists": h.lists, "watches": h.chains,
	}, "", " ")
	failures = append(failures, err, os.WriteFile(filepath.Join(directory, "history.json"), content, 0o644))
	return directory, errors.Join(failures...)
}

// sound returns a history without faults, to which tests add one.
func sound() *record {
	h := newRecord(1)
	write := func(k kind, key, from, to string, revision int64, at time.Duration) operation {
		return operation{Input: input{Kind: k, Key: key, From: from, To: to},
			Output: output{result: done, Revision: revision}, Call: at, Return: at + 1}
	}
	h.operations["a"] = []operation{write(create, "a", "", "1", 10, 1), write(update, "a", "1", "2", 11, 3)}
	h.operations["b"] = []operation{write(create, "b", "", "3", 12, 5), write(remove, "b", "", "", 0, 7)}
	events := []event{{watch.Added, "a", "1", 10}, {watch.Modified, "a", "2", 11}, {watch.Added, "b", "3", 12},
		{watch.Deleted, "b", "3", 13}}
	h.chains = []*chain{
		{Watcher: 0, From: 9, Values: map[string]string{}, Events: slices.Clone(events), Reached: 13},
		{Watcher: 1, From: 10, Values: map[string]string{"a": "1"}, Reached: 14,
			Events: append(slices.Clone(events[1:]), event{Type: watch.Bookmark, Revision: 14})},
	}
	h.lists = []list{{AtLeast: 9, Revision: 9, Values: map[string]string{}},
		{AtLeast: 11, Revision: 12, Values: map[string]string{"a": "2", "b": "3"}}}
	return h
}

// TestCheck: the checks find each kind of fault.
func TestCheck(t *testing.T) {
	for name, test := range map[string]struct {
		spoil func(h *record)
		want  string // empty: no fault
	}{
		"no fault": {func(*record) {}, ""},
		"an operation": {func(h *record) { h.operations["a"][1].Input.From = "0" },
			"a: its operations are not linearizable"},
		"a missing event": {func(h *record) { h.chains[0].Events = slices.Delete(h.chains[0].Events, 2, 3) },
			"the change of b at 12 is missing"},
		"missing at all watches": {func(h *record) {
			h.chains = h.chains[:1]
			h.chains[0].Events = slices.Delete(h.chains[0].Events, 1, 2)
		}, "the change of a at 11 is missing"},
		"a repeated event": {func(h *record) {
			h.chains[0].Events = append(h.chains[0].Events,
				h.chains[0].Events[3])
		}, "is at revision 13 after 13"},
		"an event out of order": {func(h *record) { e := h.chains[0].Events; e[0], e[1] = e[1], e[0] },
			"is at revision 10 after 11"},
		"an event from before":   {func(h *record) { h.chains[1].From = 11 }, "is at revision 11 after 11"},
		"a bookmark from before": {func(h *record) { h.chains[1].Events[3].Revision = 12 }, "a bookmark at 12 after 13"},
		"an event after bookmarks": {func(h *record) { e := h.chains[1].Events; e[2], e[3] = e[3], e[2] },
			"is at revision 13 after 14"},
		"a wrong type":  {func(h *record) { h.chains[0].Events[0].Type = watch.Modified }, "MODIFIED of a at 10"},
		"another value": {func(h *record) { h.chains[0].Events[1].Value = "7" }, "revision 11 is"},
		"an old list": {func(h *record) { h.lists[1].AtLeast = 13 },
			"a write at 13 had been acknowledged before"},
		"a list of another state": {func(h *record) { h.lists[1].Values["a"] = "1" },
			`the list at revision 12: a is "1", want "2"`},
		"a list with too much": {func(h *record) { h.lists[0].Values["a"] = "1" },
			`the list at revision 9: a is "1", want nothing`},
	} {
		t.Run(name, func(t *testing.T) {
			h := sound()
			test.spoil(h)
			faults := h.check()
			if test.want == "" && len(faults) > 0 {
				t.Errorf("%v", faults)
			}
			if test.want != "" && !strings.Contains(fmt.Sprint(errors.Join(faults...)), test.want) {
				t.Errorf("got %v, want %q", faults, test.want)
			}
		})
	}
}

// TestKeep: a history with faults is kept, with a picture.
func TestKeep(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	h := sound()
	h.operations["a"][1].Input.From = "0"
	directory, err := h.keep(h.check())
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"history.json", "a.html"} {
		if content, err := os.ReadFile(filepath.Join(directory, name)); err != nil || len(content) == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
