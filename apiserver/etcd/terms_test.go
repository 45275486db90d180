package etcd

import (
	"slices"
	"testing"
)

// historyOf returns the history of a log whose first entry has an index, from the terms of its entries.
func historyOf(first uint64, terms ...uint64) termHistory {
	var h termHistory
	for i, term := range terms {
		h.append(first+uint64(i), term, []byte("data"))
	}
	return h
}

func TestTermHistory(t *testing.T) {
	h := historyOf(5, 2, 2, 3, 7, 7)
	for index, want := range map[uint64]uint64{4: 0, 5: 2, 6: 2, 7: 3, 8: 7, 9: 7, 10: 0} {
		if got := h.term(index); got != want {
			t.Errorf("the term of entry %d is %d, want %d", index, got, want)
		}
	}
	replaced := h.upTo(h.Last)
	replaced.append(7, 8, nil)
	if replaced.term(6) != 2 || replaced.term(7) != 8 || replaced.Last != 7 || h.term(7) != 3 {
		t.Errorf("entries were replaced: %+v, formerly %+v", replaced, h)
	}
	replaced.append(20, 9, nil)
	if replaced.term(7) != 0 || replaced.term(20) != 9 || replaced.lastTerm() != 9 {
		t.Errorf("a snapshot has replaced the log: %+v", replaced)
	}
	older := historyOf(1, 1, 1, 1, 2, 2, 2, 3)
	if got := h.extendedBy(older); got.term(1) != 1 || got.term(4) != 2 || got.term(9) != 7 ||
		got.Last != 9 || len(got.Starts) != 4 {
		t.Errorf("extended by older entries: %+v", got)
	}
	if other := historyOf(1, 1, 1, 1, 1, 1); !slices.Equal(h.extendedBy(other).Starts, h.Starts) {
		t.Error("extended by another log")
	}
}

// TestConfirm checks which entries count as committed if the database or the ledger, and not the log, shows that an
// entry is committed.
func TestConfirm(t *testing.T) {
	own := historyOf(1, 1, 1, 2, 2)
	for _, c := range []struct {
		name      string
		committed uint64 // according to the log
		known     termHistory
		want      uint64
		terms     termHistory
	}{
		{"the log shows more", 4, historyOf(1, 1, 1, 2), 4, own},
		{"the log has the entry", 2, historyOf(1, 1, 1, 2, 2), 4, own},
		{"the log has another entry", 2, historyOf(1, 1, 1, 3, 3), 4, historyOf(1, 1, 1, 3, 3)},
		{"the log ends before the entry", 2, historyOf(6, 3), 6, historyOf(6, 3)},
		{"the log ends before the entry, in its term", 2, historyOf(6, 2), 6, historyOf(1, 1, 1, 2, 2, 2, 2)},
		{"the log shows another entry to be committed", 4, historyOf(4, 3), 4, own},
		{"the term is unknown", 2, termHistory{Last: 3}, 3, own},
		{"nothing is known", 2, termHistory{}, 2, own},
	} {
		log := logTerms{history: own.upTo(own.Last), committed: c.committed}
		log.confirm(c.known)
		if log.committed != c.want || log.history.Last != c.terms.Last || !slices.Equal(log.history.Starts, c.terms.Starts) {
			t.Errorf("%s: got %+v, want %d, %+v", c.name, log, c.want, c.terms)
		}
	}
}

func TestLogLacksAppliedEntry(t *testing.T) {
	log := logTerms{history: historyOf(3, 1, 1, 2, 2)}
	for applied, want := range map[progress]bool{
		{}: false, {Index: 6, Term: 2}: false, {Index: 7, Term: 2}: true, {Index: 6, Term: 3}: true,
		{Index: 6, Term: 1}: true, {Index: 4, Term: 1}: false, {Index: 2, Term: 1}: false, {Index: 9}: false,
	} {
		if got := log.lacks(applied); got != want {
			t.Errorf("%+v: got %v, want %v", applied, got, want)
		}
	}
}

func TestCommonEntries(t *testing.T) {
	own := historyOf(1, 1, 1, 2, 2, 3, 3)
	for _, c := range []struct {
		name  string
		other termHistory
		want  uint64
	}{
		{"the same", own, 6},
		{"shorter", own.upTo(4), 4},
		{"other last entry", historyOf(1, 1, 1, 2, 2, 3, 4), 5},
		{"other entries since a term", historyOf(1, 1, 1, 2, 4, 4, 4, 4), 3},
		{"nothing in common", historyOf(1, 5, 5), 0},
		{"unknown beginning", historyOf(6, 3, 4), 6},
		{"no known entry in common", historyOf(7, 3, 4), 0},
	} {
		if got := own.common(c.other); got != c.want {
			t.Errorf("%s: the last common entry is %d, want %d", c.name, got, c.want)
		}
	}
}

func TestReportLacks(t *testing.T) {
	leader := historyOf(5, 2, 2, 2, 4, 4, 4, 4, 4)
	sameTerms := historyOf(5, 2, 2, 2)
	for _, data := range []string{"", "other", "data", "data", "data"} { // two leaders had term 4
		sameTerms.append(sameTerms.Last+1, 4, []byte(data))
	}
	unidentified := leader.upTo(leader.Last)
	unidentified.Starts[1].NextSum = 0
	report := termReport{Applied: 12, Terms: leader}
	for _, c := range []struct {
		name      string
		committed uint64
		own       termHistory
		want      bool
	}{
		{"nothing committed", 0, termHistory{}, false},
		{"an earlier entry", 6, leader.upTo(6), false},
		{"the last entry", 12, leader, false},
		{"an entry that is not committed", 12, historyOf(5, 2, 2, 2, 4, 4, 4, 4, 4, 5), false},
		{"a later entry", 13, historyOf(5, 2, 2, 2, 4, 4, 4, 4, 4, 4), true},
		{"another term at the index", 8, historyOf(5, 2, 2, 2, 3), true},
		{"another term before the index", 12, historyOf(5, 2, 2, 3, 4, 4, 4, 4, 4), true},
		{"another term that is not committed", 7, historyOf(5, 2, 2, 2, 3), false},
		{"another leader of the term", 12, sameTerms, true},
		{"another leader whose entries are not committed", 8, sameTerms, false},
		{"an unknown leader of the term", 12, unidentified, false},
		{"unknown terms", 12, termHistory{}, false},
		{"before the known entries", 4, historyOf(1, 1, 1, 1, 1), false},
		{"before the known entries, with a newer term", 4, historyOf(1, 1, 1, 1, 3), true},
		{"begins later", 12, historyOf(10, 4, 4, 4), false},
	} {
		if got := report.lacks(c.committed, c.own); got != c.want {
			t.Errorf("%s: %v, want %v", c.name, got, c.want)
		}
	}
}
