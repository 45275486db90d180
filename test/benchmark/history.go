package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
)

// history holds the recordings, the oldest first.
type history []entry

// entry is one recording. A row keeps the name that it had then.
type entry struct {
	Date   string              `json:"date"` // as 2006-01-02
	Commit string              `json:"commit,omitempty"`
	Rows   map[string]rowRatio `json:"rows"` // by name of the work
}

// rowRatio has our CPU time for a work relative to the other servers. A field is 0 if its server was not measured.
type rowRatio struct {
	Ratio float64 `json:"ratio,omitempty"` // fraction of kube-apiserver's CPU time
	Floor float64 `json:"floor,omitempty"` // multiple of the floor's CPU time
}

// historyRows returns the ratios of all rows that have one.
func (r Report) historyRows() map[string]rowRatio {
	rows := map[string]rowRatio{}
	if r.Ours == nil {
		return rows
	}
	for name := range r.Ours.Work {
		fraction, _ := r.workFraction(work{name: name})
		multiple, _ := r.floorMultiple(work{name: name})
		if row := (rowRatio{rounded(fraction), rounded(multiple)}); row != (rowRatio{}) {
			rows[name] = row
		}
	}
	return rows
}

// rounded returns a number with four significant digits.
func rounded(number float64) float64 {
	short, _ := strconv.ParseFloat(strconv.FormatFloat(number, 'g', 4, 64), 64)
	return short
}

// with returns the history with a further entry. An entry of the same date and commit, which a run of other works has
// added, gets its rows.
func (h history) with(e entry) history {
	all := slices.Clone(h)
	for i, old := range all {
		if old.Date == e.Date && old.Commit == e.Commit {
			all[i].Rows = maps.Clone(old.Rows)
			maps.Copy(all[i].Rows, e.Rows)
			return all
		}
	}
	all = append(all, e)
	slices.SortStableFunc(all, func(a, b entry) int { return cmp.Compare(a.Date, b.Date) })
	return all
}

// encode returns the history as JSON with one row in a line, so that a change of it can be read.
func (h history) encode() []byte {
	var text bytes.Buffer
	quote := func(v any) string {
		encoded, _ := json.Marshal(v) // strings and finite numbers have encodings
		return string(encoded)
	}
	text.WriteString("[")
	for i, e := range h {
		fmt.Fprintf(&text, "%s\n  {\n    \"date\": %s,\n    \"commit\": %s,\n    \"rows\": {",
			separator(i), quote(e.Date), quote(e.Commit))
		for j, name := range slices.Sorted(maps.Keys(e.Rows)) {
			fmt.Fprintf(&text, "%s\n      %s: %s", separator(j), quote(name), quote(e.Rows[name]))
		}
		text.WriteString("\n    }\n  }")
	}
	text.WriteString("\n]\n")
	return text.Bytes()
}

// separator returns what precedes the element i of a list in JSON.
func separator(i int) string {
	if i == 0 {
		return ""
	}
	return ","
}

// loadHistory reads a file that appendHistory has written.
func loadHistory(file string) (history, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var h history
	if err := json.Unmarshal(text, &h); err != nil {
		return nil, fmt.Errorf("decode %s: %w", file, err)
	}
	return h, nil
}

// appendHistory adds an entry to a file, which it creates if it does not exist.
func appendHistory(file string, e entry) error {
	h, err := loadHistory(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if len(e.Rows) == 0 {
		return nil // the run has measured no work on two servers
	}
	return os.WriteFile(file, h.with(e).encode(), 0o644)
}

// currentCommit returns the commit that is checked out, or "" if it is unknown.
func currentCommit(ctx context.Context) string {
	output, err := exec.CommandContext(ctx, "git", "rev-parse", "--short=8", "HEAD").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(output))
}
