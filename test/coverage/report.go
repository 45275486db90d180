package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"regexp"
	"slices"
	"text/tabwriter"
)

const module = "quorate.dev"

// tested matches the line of go test about a package whose tests ran or were not built.
var tested = regexp.MustCompile(`^(ok  |FAIL)\t(\S+)`)

// covered matches the line of go test about a package with statements, whether it has tests or not. A package whose
// tests failed or were not built has no such line.
var covered = regexp.MustCompile(`^(?:ok  )?\t` + regexp.QuoteMeta(module) +
	`/(\S+)\t.*\bcoverage: ([0-9.]+)% of statements`)

// parseOutput returns the coverage of each package in the output of `go test -cover`, by the folder of the package, and
// whether a test failed. If the output has several results of a package, the last one counts.
func parseOutput(output io.Reader) (measured map[string]float64, failed bool, err error) {
	measured = map[string]float64{}
	failures := map[string]bool{}
	lines := bufio.NewReader(output)
	for err == nil {
		var line string
		line, err = lines.ReadString('\n')
		if match := tested.FindStringSubmatch(line); match != nil {
			failures[match[2]] = match[1] == "FAIL"
		}
		match := covered.FindStringSubmatch(line)
		if match == nil {
			continue
		}
		coverage, invalid := parsePercentage(match[2])
		if invalid != nil {
			return nil, false, invalid
		}
		measured[match[1]] = coverage
	}
	if err != io.EOF {
		return nil, false, err
	}
	return measured, slices.Contains(slices.Collect(maps.Values(failures)), true), nil
}

// row is the coverage of a package next to its floor.
type row struct {
	folder   string
	coverage float64
	floor    floor
}

func (r row) below() bool { return r.coverage < r.floor.limit() }

// remark says what to do about a row, or is empty.
func (r row) remark() string {
	next := raised(r.floor, r.coverage)
	switch {
	case r.below():
		return "below its floor"
	case next == r.floor && r.floor.isBelow:
		return "below its target"
	case next == r.floor:
		return ""
	}
	return fmt.Sprintf("the floor can rise to %g", next.limit())
}

// compare returns a row for each measured package that has a floor, sorted by folder.
func compare(f floors, measured map[string]float64) []row {
	var rows []row
	for _, folder := range slices.Sorted(maps.Keys(measured)) {
		if value, ok := f.of(folder); ok {
			rows = append(rows, row{folder, measured[folder], value})
		}
	}
	return rows
}

// printReport prints the rows as a table and returns how many packages are below their floors.
func printReport(out io.Writer, rows []row) (below int) {
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "\nPACKAGE\tCOVERAGE\tFLOOR\tTARGET\t")
	rises := false
	for _, r := range rows {
		fmt.Fprintf(table, "%s\t%.1f %%\t%g\t%g\t%s\n", r.folder, r.coverage, r.floor.limit(), r.floor.target, r.remark())
		if r.below() {
			below++
		}
		rises = rises || raised(r.floor, r.coverage) != r.floor
	}
	table.Flush()
	if rises {
		fmt.Fprintln(out, "Floors can rise: `go run ./test/coverage --record` with the same input records them.")
	}
	return below
}
