package differential

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
)

// intended contains the intended differences.
type intended struct {
	differences []*intendedDifference
	headers     []string // response headers that only kube-apiserver sends
}

// intendedDifference is the intended difference of one case, or of several cases.
type intendedDifference struct {
	name   string // script/case; "*" at the end matches all cases with the prefix, of which some may be equal
	reason string
	// "- line of kube-apiserver", "+ line of Quorate", sorted; if empty, only the order of lines may differ.
	lines []string
	found atomic.Bool
}

func (d *intendedDifference) isGeneral() bool { return strings.HasSuffix(d.name, "*") }

func (d *intendedDifference) matches(name string) bool {
	if d.isGeneral() {
		return strings.HasPrefix(name, strings.TrimSuffix(d.name, "*"))
	}
	return name == d.name
}

// of returns the intended difference of a case, or nil.
func (i *intended) of(name string) *intendedDifference {
	for _, d := range i.differences {
		if d.matches(name) {
			d.found.Store(true)
			return d
		}
	}
	return nil
}

// allows reports whether two texts of a case differ exactly as intended.
func (i *intended) allows(name, theirs, ours string) bool {
	wanted := i.of(name)
	return wanted != nil && slices.Equal(difference(theirs, ours), wanted.lines)
}

// unmatched returns the names of intended differences that did not occur in any case.
func (i *intended) unmatched() []string {
	var names []string
	for _, d := range i.differences {
		if !d.found.Load() {
			names = append(names, d.name)
		}
	}
	return names
}

// difference returns the lines that only one of two texts contains, in the format of intendedDifference.
func difference(theirs, ours string) []string {
	counts := map[string]int{}
	for line := range strings.Lines(theirs) {
		counts[strings.TrimSpace(line)]++
	}
	for line := range strings.Lines(ours) {
		counts[strings.TrimSpace(line)]--
	}
	var lines []string
	for line, count := range counts {
		for ; count > 0; count-- {
			lines = append(lines, "- "+line)
		}
		for ; count < 0; count++ {
			lines = append(lines, "+ "+line)
		}
	}
	slices.Sort(lines)
	return lines
}

func loadIntended(file string) (*intended, error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return readIntended(f)
}

// readIntended parses lines of the form "script/case: reason", each followed by the lines that differ, and "header
// NAME: reason".
func readIntended(text io.Reader) (*intended, error) {
	read := &intended{}
	for lines := bufio.NewScanner(text); lines.Scan(); {
		line := strings.TrimSpace(lines.Text())
		switch {
		case line == "" || strings.HasPrefix(line, "#"):
			continue
		case strings.HasPrefix(line, "- ") || strings.HasPrefix(line, "+ "):
			if len(read.differences) == 0 {
				return nil, fmt.Errorf("of no case: %q", line)
			}
			last := read.differences[len(read.differences)-1]
			last.lines = append(last.lines, line)
			slices.Sort(last.lines)
			continue
		}
		name, reason, ok := strings.Cut(line, ": ")
		if !ok {
			return nil, fmt.Errorf("no reason: %q", line)
		}
		if header, ok := strings.CutPrefix(name, "header "); ok {
			read.headers = append(read.headers, header)
			continue
		}
		read.differences = append(read.differences, &intendedDifference{name: name, reason: reason})
	}
	return read, nil
}

func TestIntended(t *testing.T) {
	read, err :=
		readIntended(strings.NewReader("# A comment.\n\ns/a: because\n+ two\n- 404 Not Found\n\ns/b*: no order\ns/c: " +
			"gone\nheader X: none\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, check := range []struct {
		name, theirs, ours string
		wanted             bool
	}{
		{"s/a", "404 Not Found\n  one\n", "one\n two\n", true},
		{"s/a", "404 Not Found\n  one\n", "500 Internal Server Error\n one\n two\n", false},
		{"s/bcd", "one\ntwo\n", "two\none\n", true},
		{"s/bcd", "one\ntwo\n", "two\none\none\n", false},
	} {
		if got := read.allows(check.name, check.theirs, check.ours); got != check.wanted {
			t.Errorf("%s: %q and %q: %v", check.name, check.theirs, check.ours, got)
		}
	}
	if read.allows("s/other", "one\n", "one\n") || !slices.Equal(read.unmatched(), []string{"s/c"}) ||
		!slices.Equal(read.headers, []string{"X"}) {
		t.Errorf("got %+v, unmatched %q", read, read.unmatched())
	}
	for _, text := range []string{"s/a\n", "- line\n"} {
		if _, err := readIntended(strings.NewReader(text)); err == nil {
			t.Errorf("accepted %q", text)
		}
	}
}
