package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"quorate.dev/test/measure"
	"quorate.dev/test/scale/hollow"
)

// Units of figures. A figure without a unit is a number.
const (
	seconds   = "s"
	bytesUnit = "B"
)

// slowest is the service level objective for the 99th percentile of writes, of GETs of one object, and of the delay of
// events.
const slowest = time.Second

// Report holds the results of one or both servers.
type Report struct {
	Options string  `json:"options"`
	Peer    *Result `json:"peer,omitempty"`
	Ours    *Result `json:"ours,omitempty"`
}

// Result has the figures of one server, and the objectives that the server has missed.
type Result struct {
	Figures    []Figure `json:"figures"`
	Violations []string `json:"violations,omitempty"` // service level objectives that were missed
	Problems   []string `json:"problems,omitempty"`   // the first few errors of clients
}

// Figure is a measured value.
type Figure struct {
	Phase string  `json:"phase"`
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
}

func (r *Result) add(phase, name string, value float64, unit string) {
	r.Figures = append(r.Figures, Figure{phase, name, value, unit})
}

// addTimes adds quantiles of durations, if there are any.
func (r *Result) addTimes(phase, name string, times *hollow.Histogram) {
	if times.Count() == 0 {
		return
	}
	r.add(phase, name+" p50", times.Quantile(0.5).Seconds(), seconds)
	r.add(phase, name+" p99", times.Quantile(0.99).Seconds(), seconds)
	r.add(phase, name+" max", times.Max().Seconds(), seconds)
}

// limit notes a violation if a duration is not below the objective.
func (r *Result) limit(what string, d time.Duration) {
	if d >= slowest {
		r.Violations = append(r.Violations, fmt.Sprintf("%s: %s, want less than %s", what, measure.Short(d), slowest))
	}
}

// none notes a violation if a count is not 0.
func (r *Result) none(what string, count int64) {
	if count != 0 {
		r.Violations = append(r.Violations, fmt.Sprintf("%s: %d, want none", what, count))
	}
}

// find returns a figure. r may be nil.
func (r *Result) find(phase, name string) (Figure, bool) {
	if r == nil {
		return Figure{}, false
	}
	i := slices.IndexFunc(r.Figures, func(f Figure) bool { return f.Phase == phase && f.Name == name })
	if i < 0 {
		return Figure{}, false
	}
	return r.Figures[i], true
}

func (f Figure) text() string {
	switch f.Unit {
	case seconds:
		return measure.Short(time.Duration(f.Value * float64(time.Second)))
	case bytesUnit:
		if f.Value < 10<<20 {
			return fmt.Sprintf("%.0f KiB", f.Value/(1<<10))
		}
		return fmt.Sprintf("%.0f MiB", f.Value/(1<<20))
	}
	if f.Value != float64(int64(f.Value)) {
		return fmt.Sprintf("%.2f", f.Value)
	}
	return fmt.Sprintf("%.0f", f.Value)
}

// markdown returns a table for each phase, with a column for each server.
func (r Report) markdown() (text string) {
	var table measure.Table
	flush := func() {
		if len(table.Rows) > 0 {
			text += table.Markdown() + "\n"
		}
	}
	for _, f := range r.union() {
		if len(table.Header) == 0 || table.Header[0] != f.Phase {
			flush()
			table = measure.Table{Header: []string{f.Phase, "peer", "ours"}}
		}
		table.Rows = append(table.Rows, []string{f.Name, r.Peer.cell(f), r.Ours.cell(f)})
	}
	flush()
	for _, problem := range r.problems() {
		text += problem + "\n"
	}
	return text
}

func (r *Result) cell(f Figure) string {
	found, ok := r.find(f.Phase, f.Name)
	if !ok {
		return "not run"
	}
	return found.text()
}

// union returns the figures of both servers, each once.
func (r Report) union() (all []Figure) {
	if r.Ours != nil {
		all = slices.Clone(r.Ours.Figures)
	}
	if r.Peer == nil {
		return all
	}
	for _, f := range r.Peer.Figures {
		if _, ok := r.Ours.find(f.Phase, f.Name); !ok {
			all = append(all, f)
		}
	}
	return all
}

// problems returns the missed objectives and the errors of both servers.
func (r Report) problems() (lines []string) {
	for _, side := range []struct {
		name   string
		result *Result
	}{{"peer", r.Peer}, {"ours", r.Ours}} {
		if side.result == nil {
			continue
		}
		for _, violation := range side.result.Violations {
			lines = append(lines, side.name+" misses an objective: "+violation)
		}
		for _, problem := range side.result.Problems {
			lines = append(lines, side.name+" caused an error: "+problem)
		}
	}
	return lines
}

// record writes the report to a file, and keeps the recorded result of a server that was not measured.
func (r Report) record(file string) error {
	data, err := os.ReadFile(file)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	var recorded Report
	if err == nil {
		if err := json.Unmarshal(data, &recorded); err != nil {
			return fmt.Errorf("read recorded results: %w", err)
		}
	}
	if r.Peer == nil {
		r.Peer = recorded.Peer
	}
	if r.Ours == nil {
		r.Ours = recorded.Ours
	}
	data, err = json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(data, '\n'), 0o600)
}
