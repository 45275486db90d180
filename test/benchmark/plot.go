package main

import (
	"os"
	"path/filepath"
)

// historyFile is the name of the file in the directory of --plot from which the plots are generated.
const historyFile = "history.json"

// plot selects what one plot shows of the history.
type plot struct {
	file, title, axis string
	rows              []string
	value             func(rowRatio) float64 // 0: unknown
}

// plots returns the plots of the main rows.
func plots() []plot {
	cheaper := func(r rowRatio) float64 {
		if r.Ratio == 0 {
			return 0
		}
		return 1 / r.Ratio
	}
	const axis = "CPU time of kube-apiserver as a multiple of ours"
	return []plot{
		{"reads.svg", "Reads: how many times cheaper than kube-apiserver", axis, []string{
			"LIST 5,000 pods, JSON", "LIST 5,000 pods, protobuf", "LIST 5,000 pods, Table", "LIST limit=500, JSON",
			"LIST with a label selector matching 1 %", "LIST 50,000, a label selector matching 1 %", "GET a pod",
			"GET a configmap",
		}, cheaper},
		{"writes.svg", "Writes and watches: how many times cheaper than kube-apiserver", axis, []string{
			"create a configmap", "create a pod", "create a small configmap", "merge patch of a configmap",
			"server-side apply of a configmap", "delete a configmap", "delete a pod", watchMean().name,
		}, cheaper},
		{"floor.svg", "Distance to the floor", "our CPU time as a multiple of the floor's", []string{
			"LIST 5,000 pods, JSON", "LIST limit=500, JSON", "GET a pod", "GET a configmap", "create a configmap",
			"create a pod", "merge patch of a configmap", watchMean().name,
		}, func(r rowRatio) float64 { return r.Floor }},
	}
}

// line is one row in a plot.
type line struct {
	name   string
	values []float64 // by index of the entry; 0: unknown
}

// last returns the newest known value.
func (l line) last() (value float64) {
	for _, v := range l.values {
		if v > 0 {
			value = v
		}
	}
	return value
}

// lines returns the entries of a history that have values for the plot, and its rows with their values.
func (p plot) lines(h history) (shown history, lines []line) {
	for _, e := range h {
		for _, name := range p.rows {
			if p.value(e.Rows[name]) > 0 {
				shown = append(shown, e)
				break
			}
		}
	}
	for _, name := range p.rows {
		l := line{name: name}
		for _, e := range shown {
			l.values = append(l.values, p.value(e.Rows[name]))
		}
		lines = append(lines, l)
	}
	return shown, lines
}

// render returns the SVG of each plot, by file name.
func render(h history) map[string][]byte {
	all := map[string][]byte{}
	for _, p := range plots() {
		shown, lines := p.lines(h)
		all[p.file] = drawing{plot: p, entries: shown, lines: lines}.svg()
	}
	return all
}

// writePlots writes the plots of the history in a directory into the same directory.
func writePlots(directory string) error {
	h, err := loadHistory(filepath.Join(directory, historyFile))
	if err != nil {
		return err
	}
	for name, svg := range render(h) {
		if err := os.WriteFile(filepath.Join(directory, name), svg, 0o644); err != nil {
			return err
		}
	}
	return nil
}
