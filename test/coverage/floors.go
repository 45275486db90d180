package main

import (
	"fmt"
	"math"
	"path"
	"strconv"
	"strings"
)

// floor is the lowest permitted coverage of a package, in percent of its statements.
type floor struct {
	// target is the floor of a package in the end.
	target float64
	// recorded is the floor of a package that has not reached its target yet, if isBelow is set.
	recorded float64
	isBelow  bool
}

// limit returns the coverage below which the package fails.
func (f floor) limit() float64 {
	if f.isBelow {
		return f.recorded
	}
	return f.target
}

// floors maps folders, relative to the root of the module, to their floors.
type floors map[string]floor

// of returns the floor of the package in a folder: its own, or the target of the nearest folder above. The recorded
// floor of a folder applies to that folder alone. of reports whether the package has a floor.
func (f floors) of(folder string) (floor, bool) {
	if own, ok := f[folder]; ok {
		return own, true
	}
	for folder != "." {
		folder = path.Dir(folder)
		if above, ok := f[folder]; ok {
			return floor{target: above.target}, true
		}
	}
	return floor{}, false
}

// parseFloors parses the text of floors.txt.
func parseFloors(text string) (floors, error) {
	parsed := floors{}
	number := 0
	for line := range strings.Lines(text) {
		number++
		folder, value, err := parseLine(line)
		if err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
		if folder == "" {
			continue
		}
		if _, ok := parsed[folder]; ok {
			return nil, fmt.Errorf("line %d: %s has two lines", number, folder)
		}
		parsed[folder] = value
	}
	return parsed, nil
}

// parseLine parses a line: a folder, its target and optionally its recorded floor. The folder of a comment and of an
// empty line is empty.
func parseLine(line string) (folder string, value floor, err error) {
	line, _, _ = strings.Cut(line, "#")
	fields := strings.Fields(line)
	switch len(fields) {
	case 0:
		return "", floor{}, nil
	case 2, 3:
	default:
		return "", floor{}, fmt.Errorf("want a folder, its target and optionally its recorded floor, got %q", line)
	}
	if value.target, err = parsePercentage(fields[1]); err != nil {
		return "", floor{}, err
	}
	if len(fields) == 3 {
		if value.recorded, err = parsePercentage(fields[2]); err != nil {
			return "", floor{}, err
		}
		value.isBelow = true
		if value.recorded >= value.target {
			return "", floor{}, fmt.Errorf("the recorded floor of %s is not below its target", fields[0])
		}
	}
	return fields[0], value, nil
}

func parsePercentage(text string) (float64, error) {
	value, err := strconv.ParseFloat(text, 64)
	if err != nil || value < 0 || value > 100 {
		return 0, fmt.Errorf("%q is no percentage", text)
	}
	return value, nil
}

// slack is how many points a recorded floor is below the measured coverage: branches that depend on timing are covered
// in some runs and not in others.
const slack = 1

// raised returns the floor to record after a coverage was measured. It is never below the former floor.
func raised(former floor, coverage float64) floor {
	next := math.Floor(coverage - slack)
	switch {
	case !former.isBelow || next <= former.recorded:
		return former
	case next >= former.target:
		return floor{target: former.target}
	}
	return floor{target: former.target, recorded: next, isBelow: true}
}

// raise returns the text of floors.txt with the recorded floors raised to the measured coverage. A line that says no
// more than the line of a folder above is removed.
func raise(text string, f floors, measured map[string]float64) string {
	var raisedText strings.Builder
	for line := range strings.Lines(text) {
		folder, former, err := parseLine(line)
		coverage, ok := measured[folder]
		next := raised(former, coverage)
		if err != nil || !ok || next == former {
			raisedText.WriteString(line)
			continue
		}
		if above, ok := f.of(path.Dir(folder)); !next.isBelow && ok && above.target == next.target {
			continue
		}
		raisedText.WriteString(formatLine(folder, next))
	}
	return raisedText.String()
}

func formatLine(folder string, value floor) string {
	line := fmt.Sprintf("%-40s %g", folder, value.target)
	if value.isBelow {
		line += fmt.Sprintf(" %g", value.recorded)
	}
	return line + "\n"
}
