package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"quorate.dev/test/measure"
)

const (
	idleLimit   = 140 << 20
	loadedLimit = 320 << 20
	readyLimit  = 1200 * time.Millisecond
)

// Report holds the results of one or both servers, and of the floor.
type Report struct {
	Peer  *Results `json:"peer,omitempty"`
	Ours  *Results `json:"ours,omitempty"`
	Floor *Results `json:"floor,omitempty"`
}

// add returns the report's results of a server. If there are none yet, it adds the given ones.
func (r *Report) add(name string, results *Results) *Results {
	existing := map[string]**Results{measure.Peer: &r.Peer, measure.Ours: &r.Ours, bare: &r.Floor}[name]
	if *existing == nil {
		*existing = results
	}
	return *existing
}

// markdown returns the tables of the report in Markdown.
func (r Report) markdown() string {
	var text strings.Builder
	for _, t := range r.tables() {
		text.WriteString(t.Markdown() + "\n")
	}
	return text.String()
}

// tables returns the tables of a report that are not empty.
func (r Report) tables() []measure.Table {
	var all []measure.Table
	add := func(t measure.Table) {
		if len(t.Rows) > 0 {
			all = append(all, t)
		}
	}
	add(r.workTable("requests", "server CPU per request", allWorks()))
	for _, figures := range figureTables() {
		add(r.figureTable(figures))
	}
	add(r.workTable("encryption", "encryption at rest, server CPU", encryptions()))
	return all
}

func (r Report) workTable(name, title string, works []work) measure.Table {
	header := []string{title, "peer", "ours", "fraction", "promised", "median latency, peer", "ours"}
	t := measure.Table{Name: name, Header: header}
	floor := slices.ContainsFunc(works, func(w work) bool {
		_, did := r.Floor.measurement(w.name)
		return did
	})
	if floor {
		t.Header = slices.Insert(t.Header, floorColumn, "floor", "times the floor")
	}
	spread := slices.ContainsFunc(works, func(w work) bool { return r.spread(w) != "" })
	if spread {
		t.Header = slices.Insert(t.Header, spreadColumn, "spread")
	}
	for _, w := range r.peerFirst(works) {
		if !r.measured(w) {
			continue
		}
		cells := r.workCells(w)
		if floor {
			cells = slices.Insert(cells, floorColumn, r.floorCells(w)...)
		}
		if spread {
			cells = slices.Insert(cells, spreadColumn, r.spread(w))
		}
		t.Rows = append(t.Rows, cells)
	}
	return t
}

const (
	// floorColumn is the index of the first column about the floor, in tables of which a row was measured on it.
	floorColumn = 5
	// spreadColumn is the index of the column with the spread, in tables of which a row has several rounds. The column is
	// inserted after the columns about the floor.
	spreadColumn = 4
)

// spread returns the smallest and the largest fraction of a round as text: "1/6.3 to 1/5.9". It is empty if there are
// not several rounds.
func (r Report) spread(w work) string {
	fractions := r.workFractions(w)
	if len(fractions) < 2 {
		return ""
	}
	return part(slices.Min(fractions)) + " to " + part(slices.Max(fractions))
}

// floorCells returns the cost of a work on the floor, and our cost as a multiple of it.
func (r Report) floorCells(w work) []string {
	multiple, ok := r.floorMultiple(w)
	if !ok {
		return []string{"", ""}
	}
	least, _ := r.Floor.measurement(w.name)
	return []string{cost(least.CPU), fmt.Sprintf("%.1f", multiple)}
}

// floorMultiple returns our CPU time for a work as a multiple of the floor's: the median of the rounds.
func (r Report) floorMultiple(w work) (multiple float64, measured bool) {
	least, did := r.Floor.measurement(w.name)
	ours, oursDid := r.Ours.measurement(w.name)
	if !did || !oursDid {
		return 0, false
	}
	return medianOf(ratios(ours, least))
}

// medianOf returns the median of ratios, if there are any.
func medianOf(ratios []float64) (ratio float64, measured bool) {
	if len(ratios) == 0 {
		return 0, false
	}
	return median(ratios), true
}

// peerFirst returns the works with those first for which our server needs more CPU time than kube-apiserver.
func (r Report) peerFirst(works []work) []work {
	ordered := slices.Clone(works)
	slices.SortStableFunc(ordered, func(a, b work) int { return r.lost(b) - r.lost(a) })
	return ordered
}

// lost returns 1 if our server needs more CPU time for a work than kube-apiserver, otherwise 0.
func (r Report) lost(w work) int {
	if fraction, ok := r.workFraction(w); ok && fraction > 1 {
		return 1
	}
	return 0
}

// figures are the rows of a table that do not measure works.
type figures struct {
	name, title string
	rows        []figure
}

func figureTables() []figures {
	return []figures{
		{"memory", "memory and start", memoryFigures()},
		{"definitions", "1,000 CustomResourceDefinitions of 40 fields, unused", definitionFigures()},
		{"overload", "one client lists everything without pause", overloadFigures()},
	}
}

func (r Report) figureTable(f figures) measure.Table {
	t := measure.Table{Name: f.name, Header: []string{f.title, "peer", "ours", "fraction", "promised"}}
	for _, row := range f.rows {
		if row.known(r.Peer) || row.known(r.Ours) {
			t.Rows = append(t.Rows, r.figureCells(row))
		}
	}
	return t
}

// measured reports whether a work was measured on at least one server.
func (r Report) measured(w work) bool {
	_, peerDid := r.Peer.measurement(w.name)
	_, oursDid := r.Ours.measurement(w.name)
	return peerDid || oursDid
}

func allWorks() []work {
	var all []work
	for _, some := range [][]work{
		reads(), creations(), writes(), watches(), {watchMean()}, deletions(), extensions(), crowds(), selections(), audits(),
		sharded(),
	} {
		all = append(all, some...)
	}
	return all
}

func (r Report) workCells(w work) []string {
	peer, peerDid := r.Peer.measurement(w.name)
	ours, oursDid := r.Ours.measurement(w.name)
	cells := []string{
		describe(w), cell(peerDid, cost(peer.CPU)), cell(oursDid, cost(ours.CPU)), "", "",
		medianLatency(peer), medianLatency(ours),
	}
	if fraction, ok := r.workFraction(w); ok {
		cells[3] = part(fraction)
	}
	if w.promise > 0 {
		cells[4] = "≤ " + part(w.promise)
	}
	if increase, ok := r.increase(w); ok {
		cells[4] = fmt.Sprintf("%+.0f %% of ours, ≤ %+.0f %%", 100*increase, 100*w.increase)
	}
	return cells
}

// workFraction returns our CPU time for a work as a fraction of kube-apiserver's: the median of the rounds.
func (r Report) workFraction(w work) (fraction float64, measured bool) {
	return medianOf(r.workFractions(w))
}

// workFractions returns our CPU time for a work as a fraction of kube-apiserver's in each round.
func (r Report) workFractions(w work) []float64 {
	peer, peerDid := r.Peer.measurement(w.name)
	ours, oursDid := r.Ours.measurement(w.name)
	if !peerDid || !oursDid {
		return nil
	}
	return ratios(ours, peer)
}

// increase returns by which fraction our CPU time for a work exceeds that for its base.
func (r Report) increase(w work) (increase float64, measured bool) {
	ours, did := r.Ours.measurement(w.name)
	base, ok := r.Ours.measurement(w.base)
	if !did || !ok {
		return 0, false
	}
	return float64(ours.CPU)/float64(base.CPU) - 1, true
}

// measurement returns the measurement of a work. r may be nil.
func (r *Results) measurement(name string) (Measurement, bool) {
	if r == nil {
		return Measurement{}, false
	}
	m, ok := r.Work[name]
	return m, ok
}

func describe(w work) string {
	if w.parallel > 1 && w.watchers == 0 {
		return fmt.Sprintf("%s (%d at a time)", w.name, w.parallel)
	}
	return w.name
}

func cell(known bool, text string) string {
	if !known {
		return "not run"
	}
	return text
}

func medianLatency(m Measurement) string {
	if m.P50 == 0 {
		return ""
	}
	return measure.Short(m.P50)
}

// figure is a row of a table of figures.
type figure struct {
	name   string
	value  func(*Results) float64
	format func(float64) string
	limit  float64 // largest permitted value of ours; 0: none
	zero   bool    // our value must be 0
	// promise is the largest permitted fraction of kube-apiserver's value; 0: none.
	promise float64

	unrelated bool // a fraction of the two values is meaningless
	// measured reports whether the figure was measured on a server; nil: the figure is measured together with the
	// works.
	measured func(*Results) bool
}

// known reports whether the figure was measured on a server.
func (f figure) known(r *Results) bool {
	if r == nil || f.measured == nil {
		return r != nil && len(r.Work) > 0
	}
	return f.measured(r)
}

func kibibytes(v float64) string { return fmt.Sprintf("%.0f KiB", v/(1<<10)) }
func mebibytes(v float64) string { return fmt.Sprintf("%.0f MiB", v/(1<<20)) }
func duration(v float64) string  { return measure.Short(time.Duration(v)) }

func memoryFigures() []figure {
	return []figure{
		{name: "resident, idle", value: func(r *Results) float64 { return float64(r.IdleMemory) }, format: mebibytes,
			limit: idleLimit, promise: 1.0 / 2},
		{name: "resident, 10,000 objects created", value: func(r *Results) float64 {
			return float64(r.CreatedMemory)
		}, format: mebibytes,
			promise: 1.0 / 2},
		{name: "resident, after the reads", value: func(r *Results) float64 {
			return float64(r.LoadedMemory)
		}, format: mebibytes,
			limit: loadedLimit, promise: 1.0 / 2},
		{
			name: "most ever resident", value: func(r *Results) float64 { return float64(r.PeakMemory) },
			format: mebibytes, promise: 1.0 / 1.5,
		},
		{name: "from exec to ready, new data directory", value: func(r *Results) float64 { return float64(r.Ready) },
			format: duration, limit: float64(readyLimit), promise: 1.0 / 2},
	}
}

func (r Report) figureCells(f figure) []string {
	cells := []string{f.name, cell(false, ""), cell(false, ""), "", strings.Join(f.promised(), ", ")}
	if f.known(r.Peer) {
		cells[1] = f.format(f.value(r.Peer))
	}
	if f.known(r.Ours) {
		cells[2] = f.format(f.value(r.Ours))
	}
	if fraction, ok := r.figureFraction(f); ok && !f.unrelated {
		cells[3] = part(fraction)
	}
	return cells
}

// promised returns the limits of a figure as text.
func (f figure) promised() (limits []string) {
	if f.limit > 0 {
		limits = append(limits, "≤ "+f.format(f.limit))
	}
	if f.zero {
		limits = append(limits, f.format(0))
	}
	if f.promise > 0 {
		limits = append(limits, "≤ "+part(f.promise))
	}
	return limits
}

// figureFraction returns our value as a fraction of kube-apiserver's.
func (r Report) figureFraction(f figure) (fraction float64, measured bool) {
	if !f.known(r.Peer) || !f.known(r.Ours) || f.value(r.Peer) <= 0 || f.value(r.Ours) <= 0 {
		return 0, false
	}
	return f.value(r.Ours) / f.value(r.Peer), true
}

// part formats a fraction as 1/n, with one decimal unless n is an integer, and a number greater than 1 as a multiple.
func part(fraction float64) string {
	if fraction > 0.99 {
		return strings.TrimRight(strings.TrimRight(fmt.Sprintf("%.2f", fraction), "0"), ".")
	}
	return "1/" + strings.TrimSuffix(fmt.Sprintf("%.1f", 1/fraction), ".0")
}

// cost formats a duration that may be noise.
func cost(d time.Duration) string {
	if d <= 0 {
		return "noise"
	}
	return measure.Short(d)
}
