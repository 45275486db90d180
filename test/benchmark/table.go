package main

import (
	"fmt"
	"strings"
	"time"
)

const (
	idleLimit   = 120 << 20
	loadedLimit = 260 << 20
	readyLimit  = 1200 * time.Millisecond
)

// Report holds the results of one or both servers.
type Report struct {
	Peer *Results `json:"peer,omitempty"`
	Ours *Results `json:"ours,omitempty"`
}

// add returns the results of a server, which are the given ones if it has none yet.
func (r *Report) add(name string, results *Results) *Results {
	existing := &r.Peer
	if name == ours {
		existing = &r.Ours
	}
	if *existing == nil {
		*existing = results
	}
	return *existing
}

// markdown renders the tables. Where a server did not run, or did not do a work, its cells say so.
func (r Report) markdown() string {
	var text strings.Builder
	row := func(cells ...string) { text.WriteString("| " + strings.Join(cells, " | ") + " |\n") }

	row("server CPU per request", "peer", "ours", "fraction", "target", "met?", "latency p50/p99, peer", "ours")
	row("---", "--:", "--:", "--:", "--:", "---", "--:", "--:")
	for _, w := range allWorks() {
		row(r.workCells(w)...)
	}
	for _, w := range encryptions() {
		if r.measured(w) {
			row(r.workCells(w)...)
		}
	}
	for _, table := range []struct {
		title string
		rows  []figure
	}{
		{"memory and start", figures()},
		{"1,000 CustomResourceDefinitions of 40 fields, unused", definitionFigures()},
		{"one client lists everything without pause", overloadFigures()},
	} {
		text.WriteString("\n")
		row(table.title, "peer", "ours", "fraction", "target of ours", "met?")
		row("---", "--:", "--:", "--:", "--:", "---")
		for _, f := range table.rows {
			row(r.figureCells(f)...)
		}
	}
	return text.String()
}

// measured reports whether a server did a work.
func (r Report) measured(w work) bool {
	_, peerDid := r.Peer.measurement(w.name)
	_, oursDid := r.Ours.measurement(w.name)
	return peerDid || oursDid
}

func allWorks() []work {
	var all []work
	for _, some := range [][]work{
		reads(), creations(), writes(), watches(), deletions(), extensions(), crowds(), selections(), audits(),
	} {
		all = append(all, some...)
	}
	return all
}

func (r Report) workCells(w work) []string {
	peer, peerDid := r.Peer.measurement(w.name)
	ours, oursDid := r.Ours.measurement(w.name)
	cells := []string{describe(w), cell(peerDid, cost(peer.CPU)), cell(oursDid, cost(ours.CPU)), "", "", ""}
	if w.target > 0 {
		cells[4] = part(w.target)
	}
	if w.latency > 0 {
		cells[4] += ", ≤ " + short(w.latency)
	}
	if peerDid && oursDid && peer.CPU > 0 && ours.CPU > 0 {
		fraction := float64(ours.CPU) / float64(peer.CPU)
		cells[3] = part(fraction)
		cells[5] = outcome(w.target, fraction)
		if w.latency > 0 && ours.P50 > w.latency {
			cells[5] = missed
		}
	}
	if base, ok := r.Ours.measurement(w.base); ok && oursDid {
		increase := float64(ours.CPU)/float64(base.CPU) - 1
		cells[4], cells[5] = fmt.Sprintf("≤ +%.0f %% of ours", 100*w.increase), fmt.Sprintf("%s, %+.1f %%", outcome(w.increase, increase), 100*increase)
	}
	return append(cells, latencies(peer), latencies(ours))
}

// measurement works without results, too.
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

const missed = "**no**"

func outcome(limit, value float64) string {
	switch {
	case limit == 0:
		return ""
	case value <= limit:
		return "yes"
	default:
		return missed
	}
}

func latencies(m Measurement) string {
	if m.P50 == 0 {
		return ""
	}
	return short(m.P50) + " / " + short(m.P99)
}

// figure is a row of the second table.
type figure struct {
	name   string
	value  func(*Results) float64
	format func(float64) string
	limit  float64 // 0: none

	unrelated bool // the fraction says nothing
	// measured reports whether a server did what the figure is of; nil: the works.
	measured func(*Results) bool
}

// known reports whether a server was measured.
func (f figure) known(r *Results) bool {
	if r == nil || f.measured == nil {
		return r != nil && len(r.Work) > 0
	}
	return f.measured(r)
}

func kibibytes(v float64) string { return fmt.Sprintf("%.0f KiB", v/(1<<10)) }
func mebibytes(v float64) string { return fmt.Sprintf("%.0f MiB", v/(1<<20)) }
func duration(v float64) string  { return short(time.Duration(v)) }

func figures() []figure {
	return []figure{
		{name: "resident, idle", value: func(r *Results) float64 { return float64(r.IdleMemory) }, format: mebibytes, limit: idleLimit},
		{name: "resident, 10,000 objects created", value: func(r *Results) float64 { return float64(r.CreatedMemory) }, format: mebibytes, limit: 0},
		{name: "resident, after the reads", value: func(r *Results) float64 { return float64(r.LoadedMemory) }, format: mebibytes, limit: loadedLimit},
		{name: "most ever resident", value: func(r *Results) float64 { return float64(r.PeakMemory) }, format: mebibytes, limit: 0},
		{name: "from exec to ready, new data directory", value: func(r *Results) float64 { return float64(r.Ready) }, format: duration, limit: float64(readyLimit)},
	}
}

func (r Report) figureCells(f figure) []string {
	cells := []string{f.name, cell(false, ""), cell(false, ""), "", "", ""}
	if f.limit > 0 {
		cells[4] = "≤ " + f.format(f.limit)
	}
	if f.known(r.Peer) {
		cells[1] = f.format(f.value(r.Peer))
	}
	if f.known(r.Ours) {
		cells[2] = f.format(f.value(r.Ours))
		cells[5] = outcome(f.limit, f.value(r.Ours))
	}
	if f.known(r.Peer) && f.known(r.Ours) && f.value(r.Peer) > 0 && f.value(r.Ours) > 0 && !f.unrelated {
		cells[3] = part(f.value(r.Ours) / f.value(r.Peer))
	}
	return cells
}

// part writes a fraction as 1/n, with n to one decimal unless it is whole.
func part(fraction float64) string {
	return "1/" + strings.TrimSuffix(fmt.Sprintf("%.1f", 1/fraction), ".0")
}

// cost is short for what may be noise.
func cost(d time.Duration) string {
	if d <= 0 {
		return "noise"
	}
	return short(d)
}

// short writes a duration with three digits that mean something.
func short(d time.Duration) string {
	switch {
	case d >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case d >= 100*time.Millisecond:
		return fmt.Sprintf("%.0f ms", d.Seconds()*1e3)
	case d >= time.Millisecond:
		return fmt.Sprintf("%.2f ms", d.Seconds()*1e3)
	default:
		return fmt.Sprintf("%.1f µs", d.Seconds()*1e6)
	}
}
