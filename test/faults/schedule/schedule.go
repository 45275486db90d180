// Package schedule represents the faults of a run as a value that a seed determines, and that can be printed, parsed
// and shrunk.
//
// A schedule is a text with one nemesis per line:
//
//	#3 +2.1s 1.5s power-loss leader lose=scattered
//
// The number is the identity of the nemesis, from which its own random choices derive, so that they stay the same when
// other lines are removed. Then come the time since the start, the duration, the kind, and the target: replicas by
// their numbers, "leader" and "follower", which are looked up when the nemesis begins, several of these with commas, or
// "all". Empty lines and lines that begin with // are ignored.
package schedule

import (
	"bufio"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Nemesis is one fault.
type Nemesis struct {
	ID      int
	At, For time.Duration
	Kind    string
	Target  string
	Options map[string]string
}

func (n Nemesis) String() string {
	text := fmt.Sprintf("#%d +%v %v %s %s", n.ID, n.At, n.For, n.Kind, n.Target)
	for _, name := range slices.Sorted(maps.Keys(n.Options)) {
		text += " " + name + "=" + n.Options[name]
	}
	return text
}

// Duration returns the value of an option that is a duration, or 0 if the option is not set.
func (n Nemesis) Duration(name string) time.Duration {
	duration, _ := time.ParseDuration(n.Options[name]) // Parse has checked it
	return duration
}

// Number returns the value of an option that is a number, or 0 if the option is not set.
func (n Nemesis) Number(name string) float64 {
	number, _ := strconv.ParseFloat(n.Options[name], 64)
	return number
}

// Random returns the source of a nemesis's own random choices.
func (n Nemesis) Random(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, uint64(n.ID))) }

// Schedule is a list of nemeses, ordered by the time at which they begin.
type Schedule []Nemesis

func (s Schedule) String() string {
	var text strings.Builder
	for _, n := range s {
		text.WriteString(n.String() + "\n")
	}
	return text.String()
}

// End returns when the last nemesis ends.
func (s Schedule) End() (end time.Duration) {
	for _, n := range s {
		end = max(end, n.At+n.For)
	}
	return end
}

// Stretch returns the schedule with all times and durations multiplied by a factor.
func (s Schedule) Stretch(factor int) Schedule {
	slower := slices.Clone(s)
	for i := range slower {
		slower[i].At *= time.Duration(factor)
		slower[i].For *= time.Duration(factor)
	}
	return slower
}

// Seeds reads numbers that are separated by commas or spaces.
func Seeds(text string) (seeds []uint64, err error) {
	for number := range strings.FieldsFuncSeq(text, func(r rune) bool { return r == ',' || r == ' ' }) {
		seed, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("a seed is a number: %w", err)
		}
		seeds = append(seeds, seed)
	}
	return seeds, nil
}

// Parse reads what String has written.
func Parse(text string) (s Schedule, err error) {
	lines := bufio.NewScanner(strings.NewReader(text))
	for number := 1; lines.Scan(); number++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || strings.HasPrefix(line, "//") {
			continue
		}
		n, err := parseLine(line)
		if err != nil {
			return nil, fmt.Errorf("line %d, %q: %w", number, line, err)
		}
		s = append(s, n)
	}
	return s, lines.Err()
}

func parseLine(line string) (n Nemesis, err error) {
	fields := strings.Fields(line)
	if len(fields) < 5 || !strings.HasPrefix(fields[0], "#") || !strings.HasPrefix(fields[1], "+") {
		return n, fmt.Errorf("want #NUMBER +TIME DURATION KIND TARGET [OPTION=VALUE]...")
	}
	if n.ID, err = strconv.Atoi(fields[0][1:]); err != nil {
		return n, err
	}
	if n.At, err = time.ParseDuration(fields[1][1:]); err != nil {
		return n, err
	}
	if n.For, err = time.ParseDuration(fields[2]); err != nil {
		return n, err
	}
	n.Kind, n.Target = fields[3], fields[4]
	for _, option := range fields[5:] {
		name, value, ok := strings.Cut(option, "=")
		if !ok {
			return n, fmt.Errorf("%q is not OPTION=VALUE", option)
		}
		if n.Options == nil {
			n.Options = map[string]string{}
		}
		n.Options[name] = value
	}
	return n, nil
}

// Shrink returns a smaller schedule for which fails still returns true. It removes halves, quarters and so on down to
// single nemeses, and calls fails at most calls times. With enough calls, no nemesis of the result can be removed.
func Shrink(s Schedule, calls int, fails func(Schedule) bool) Schedule {
	for parts := 1; calls > 0; {
		size := (len(s) + parts - 1) / parts
		removed := false
		for begin := 0; begin < len(s) && calls > 0; begin += size {
			smaller := slices.Concat(s[:begin], s[min(len(s), begin+size):])
			calls--
			if fails(smaller) {
				s, removed = smaller, true
				break
			}
		}
		switch {
		case len(s) == 0 || !removed && size <= 1:
			return s
		case removed:
			parts = max(1, parts-1)
		default:
			parts = min(2*parts, len(s))
		}
	}
	return s
}
