// Package check records the operations of concurrent clients of API servers, and checks that one order of writes
// explains all responses: each object is linearizable; watches neither miss, repeat nor reorder events; each list shows
// the state at exactly one revision. A seed determines the operations that the clients choose. Their timing and their
// results are not reproducible.
package check

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
	"time"

	"github.com/anishathalye/porcupine"
	"k8s.io/apimachinery/pkg/watch"
)

// searchLimit bounds the time in which porcupine searches an order of the operations on one object.
const searchLimit = time.Minute

// Check returns the observations that a correct store cannot produce. All clients and watchers must have ended.
func (h *Record) Check() []error {
	faults := append([]error{}, h.faults...)
	faults = append(faults, h.checkObjects()...)
	truth, inconsistent := h.merge()
	faults = append(faults, inconsistent...)
	for _, c := range h.chains {
		faults = append(faults, c.check(truth)...)
	}
	return append(faults, h.checkLists(truth)...)
}

// checkObjects searches an order of the operations on each object, and returns the objects without an order.
func (h *Record) checkObjects() (faults []error) {
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

// objectFault is the fault of an object whose operations are not linearizable.
type objectFault struct{ key string }

func (f *objectFault) Error() string { return f.key + ": its operations are not linearizable" }

// history returns the operations on an object. An operation with an unknown outcome may take effect at any later time,
// so it returns after all others.
func (h *Record) history(key string) []porcupine.Operation {
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

// truth holds every change that any client has observed, by revision.
type truth struct {
	changes   map[int64]event
	revisions []int64 // sorted
}

// merge combines the events of watches and the responses to writes. It returns a fault for each revision at which two
// observations differ.
func (h *Record) merge() (t truth, faults []error) {
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

// check compares a chain with all observed changes, and returns the events that the chain misses, repeats or reorders.
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

// checkLists compares each list with the state after all changes up to its revision.
func (h *Record) checkLists(t truth) (faults []error) {
	for _, l := range h.lists {
		switch {
		case l.Revision < l.AtLeast:
			faults = append(faults, fmt.Errorf("a list is of revision %d; a write at %d had been acknowledged before",
				l.Revision, l.AtLeast))
		case l.Exactly > 0 && l.Revision != l.Exactly:
			faults = append(faults, fmt.Errorf("a list of exactly revision %d is of revision %d", l.Exactly, l.Revision))
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

// covered returns the chain that starts first, and the revision up to which the chains together contain every change.
func (h *Record) covered() (first *chain, until int64) {
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

// Keep writes the history to files in a directory: the recorded operations, the faults, and a picture of each object
// that is not linearizable.
func (h *Record) Keep(directory string, faults []error) error {
	if err := os.MkdirAll(directory, 0o755); err != nil {
		return err
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
		"faults": texts, "operations": h.operations, "lists": h.lists, "watches": h.chains,
	}, "", " ")
	failures = append(failures, err, os.WriteFile(filepath.Join(directory, "history.json"), content, 0o644))
	return errors.Join(failures...)
}
