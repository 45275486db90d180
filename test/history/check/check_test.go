package check

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/watch"
)

// sound returns a history without faults, to which tests add one.
func sound() *Record {
	h := NewRecord()
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
		spoil func(h *Record)
		want  string // empty: no fault
	}{
		"no fault": {func(*Record) {}, ""},
		"an operation": {func(h *Record) { h.operations["a"][1].Input.From = "0" },
			"a: its operations are not linearizable"},
		"a missing event": {func(h *Record) { h.chains[0].Events = slices.Delete(h.chains[0].Events, 2, 3) },
			"the change of b at 12 is missing"},
		"missing at all watches": {func(h *Record) {
			h.chains = h.chains[:1]
			h.chains[0].Events = slices.Delete(h.chains[0].Events, 1, 2)
		}, "the change of a at 11 is missing"},
		"a repeated event": {func(h *Record) {
			h.chains[0].Events = append(h.chains[0].Events,
				h.chains[0].Events[3])
		}, "is at revision 13 after 13"},
		"an event out of order": {func(h *Record) { e := h.chains[0].Events; e[0], e[1] = e[1], e[0] },
			"is at revision 10 after 11"},
		"an event from before":   {func(h *Record) { h.chains[1].From = 11 }, "is at revision 11 after 11"},
		"a bookmark from before": {func(h *Record) { h.chains[1].Events[3].Revision = 12 }, "a bookmark at 12 after 13"},
		"an event after bookmarks": {func(h *Record) { e := h.chains[1].Events; e[2], e[3] = e[3], e[2] },
			"is at revision 13 after 14"},
		"a wrong type": {
			func(h *Record) { h.chains[0].Events[0].Type = watch.Modified }, "MODIFIED of a at 10",
		},
		"another value":              {func(h *Record) { h.chains[0].Events[1].Value = "7" }, "revision 11 is"},
		"a list of another revision": {func(h *Record) { h.lists[1].Exactly = 11 }, "a list of exactly revision 11"},
		"an old list": {func(h *Record) { h.lists[1].AtLeast = 13 },
			"a write at 13 had been acknowledged before"},
		"a list of another state": {func(h *Record) { h.lists[1].Values["a"] = "1" },
			`the list at revision 12: a is "1", want "2"`},
		"a list with too much": {func(h *Record) { h.lists[0].Values["a"] = "1" },
			`the list at revision 9: a is "1", want nothing`},
	} {
		t.Run(name, func(t *testing.T) {
			h := sound()
			test.spoil(h)
			faults := h.Check()
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
	directory := t.TempDir()
	h := sound()
	h.operations["a"][1].Input.From = "0"
	if err := h.Keep(directory, h.Check()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"history.json", "a.html"} {
		if content, err := os.ReadFile(filepath.Join(directory, name)); err != nil || len(content) == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}
