package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"quorate.dev/test/measure"
)

// brokenPromises returns a line for each promise that the results break. It skips rows that were not measured on both
// servers.
func (r Report) brokenPromises() []string {
	var broken []string
	for _, w := range append(allWorks(), encryptions()...) {
		broken = append(broken, r.brokenWork(w)...)
	}
	for _, table := range figureTables() {
		for _, f := range table.rows {
			broken = append(broken, r.brokenFigure(f)...)
		}
	}
	return broken
}

func (r Report) brokenWork(w work) (broken []string) {
	peer, peerDid := r.Peer.measurement(w.name)
	ours, oursDid := r.Ours.measurement(w.name)
	if fraction, ok := r.workFraction(w); w.promise > 0 && peerDid && oursDid && (!ok || fraction > w.promise) {
		broken = append(broken, fmt.Sprintf("%s: %s of CPU time, the peer's is %s; promised is %s of it",
			w.name, cost(ours.CPU), cost(peer.CPU), part(w.promise)))
	}
	if w.promise > 0 && peerDid && oursDid && ours.P50 > peer.P50 {
		broken = append(broken,
			fmt.Sprintf("%s: the median latency is %s, the peer's is %s",
				w.name, measure.Short(ours.P50), measure.Short(peer.P50)))
	}
	if increase, ok := r.increase(w); ok && increase > w.increase {
		broken = append(broken,
			fmt.Sprintf("%s: %.1f %% more CPU time than %q, promised are %.0f %%", w.name, 100*increase, w.base, 100*w.increase))
	}
	return broken
}

func (r Report) brokenFigure(f figure) (broken []string) {
	if f.limit > 0 && f.known(r.Ours) && f.value(r.Ours) > f.limit {
		broken = append(broken, fmt.Sprintf("%s: %s, promised is %s", f.name, f.format(f.value(r.Ours)), f.format(f.limit)))
	}
	if f.zero && f.known(r.Ours) && f.value(r.Ours) != 0 {
		broken = append(broken, fmt.Sprintf("%s: %s, promised is %s", f.name, f.format(f.value(r.Ours)), f.format(0)))
	}
	if fraction, ok := r.figureFraction(f); ok && f.promise > 0 && fraction > f.promise {
		broken = append(broken, fmt.Sprintf("%s: %s, the peer's is %s; promised is %s of it",
			f.name, f.format(f.value(r.Ours)), f.format(f.value(r.Peer)), part(f.promise)))
	}
	return broken
}

// load reads a report that --record has written.
func load(file string) (Report, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return Report{}, err
	}
	var report Report
	return report, json.Unmarshal(text, &report)
}

// record replaces those rows in a file that were measured.
func (r Report) record(file string) error {
	all, err := load(file)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	all.Peer, all.Ours, all.Floor = all.Peer.merge(r.Peer), all.Ours.merge(r.Ours), all.Floor.merge(r.Floor)
	text, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		return err
	}
	return os.WriteFile(file, append(text, '\n'), 0o644)
}

// merge returns the results with the rows of newer in place of the same rows.
func (r *Results) merge(newer *Results) *Results {
	if r == nil || newer == nil {
		if r == nil {
			return newer
		}
		return r
	}
	merged := *r
	if newer.LoadedMemory > 0 {
		merged.Ready, merged.IdleMemory, merged.CreatedMemory = newer.Ready, newer.IdleMemory, newer.CreatedMemory
		merged.LoadedMemory, merged.PeakMemory = newer.LoadedMemory, newer.PeakMemory
	}
	merged.Work = map[string]Measurement{}
	for _, some := range []map[string]Measurement{r.Work, newer.Work} {
		for name, m := range some {
			merged.Work[name] = m
		}
	}
	if newer.Definitions != nil {
		merged.Definitions = newer.Definitions
	}
	if newer.Overload != nil {
		merged.Overload = newer.Overload
	}
	return &merged
}
