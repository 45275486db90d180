package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"quorate.dev/test/faults/schedule"
	"quorate.dev/test/history/check"
	"quorate.dev/test/upstream"
)

// defect is something that is broken on purpose, in a schedule with nemeses that have nothing to do with it.
type defect struct {
	name     string
	schedule string
	drop     int64    // a watcher loses the event of this number, and no other one; 0: none
	finds    string   // in the violations
	smallest []string // kinds of nemeses in the schedules that may be the smallest one
	disks    bool     // it needs volumes
}

func defects() []defect {
	return []defect{
		{
			name: "fsync without an effect", disks: true,
			schedule: `
				#1 +500ms 500ms delay follower by=20ms
				#2 +1s 1500ms ignore-sync all lose=all record=lost force=yes
				#3 +1200ms 300ms clients 1 way=in`,
			finds: "", smallest: []string{"ignore-sync"},
		},
		{
			// A voter forgets what it has acknowledged: 0 lags, 1 acknowledges and gets an earlier volume, 2 is not
			// there.
			name: "no check of the identity", disks: true,
			schedule: `
				#1 +600ms 2400ms kill 0
				#2 +700ms 200ms reset 1 every=50ms
				#3 +2900ms 4s kill 2
				#4 +800ms 2100ms roll-back 1 record=lost force=yes
				#5 +4s 500ms delay 0 by=20ms`,
			// Replica 2 may also lose the leadership to the others without being killed.
			finds: "", smallest: []string{"kill, kill, roll-back", "kill, roll-back"},
		},
		{
			name: "a watch that loses one event", drop: 100,
			schedule: `
				#1 +500ms 500ms kill follower
				#2 +1s 1s delay leader by=20ms`,
			finds: "is missing", smallest: []string{""},
		},
	}
}

// TestChecker breaks something on purpose. The checks must find it. With QUORATE_FAULTS_CHECKER=full, its schedule must
// also shrink to the nemeses that it needs.
func TestChecker(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	setting := permitted(t, schedule.Setting{Replicas: 3, Lying: true})
	for _, d := range defects() {
		t.Run(d.name, func(t *testing.T) {
			if d.disks && !setting.Disks {
				t.Skip("volumes cannot be mounted")
			}
			d.mustBeFound(t, setting)
		})
	}
}

// slowest bounds the stretching of schedules: a slow machine needs more time than a schedule has for a replica to
// start.
const slowest = 4

// plan returns a plan with the schedule, stretched by a factor.
func (d defect) plan(t *testing.T, setting schedule.Setting, factor int) plan {
	t.Helper()
	s, err := schedule.Parse(d.schedule)
	if err != nil {
		t.Fatal(err)
	}
	s = s.Stretch(factor)
	setting.Duration = s.End() + time.Second
	return plan{
		seed: 1, schedule: s, drop: d.drop,
		patience: time.Duration(factor) * 6 * time.Second, // a cluster with a defect may never recover
		setting:  setting,
		load:     check.Load{Writers: 5, Readers: 4, Watchers: 2, LongestWatch: 4 * time.Second, Consistencies: true},
	}
}

func (d defect) mustBeFound(t *testing.T, setting schedule.Setting) {
	t.Helper()
	factor := 1
	p := d.plan(t, setting, factor)
	o := p.run(t)
	for !d.foundIn(o) && factor < slowest {
		factor *= 2
		t.Logf("the checks have found %v; trying again %d times slower", errors.Join(o.violations...), factor)
		p = d.plan(t, setting, factor)
		o = p.run(t)
	}
	if !d.foundIn(o) {
		directory := filepath.Join(os.TempDir(), "quorate-faults-checker")
		t.Fatalf("the checks have found %v; what they have seen is in %s (%v)", errors.Join(o.violations...), directory,
			o.keep(directory, p.schedule))
	}
	if slices.Contains(o.exits, 1) {
		t.Errorf("processes have exited with %v: 1 does not say why", o.exits)
	}
	t.Logf("found, with %d others: %v", len(o.violations)-1, o.violations[0])
	if os.Getenv("QUORATE_FAULTS_CHECKER") == "" {
		return
	}
	smallest := p.shrink(t, 4*shrinkCalls, 2, d.foundIn)
	var kinds []string
	for _, n := range smallest {
		kinds = append(kinds, n.Kind)
	}
	if got := strings.Join(kinds, ", "); !slices.Contains(d.smallest, got) {
		t.Errorf("the smallest schedule is %q, want one of %q:\n%s", got, d.smallest, smallest)
	}
}

// foundIn reports whether the violations of a run include the violation that the planted defect causes.
func (d defect) foundIn(o outcome) bool {
	err := errors.Join(o.violations...)
	return err != nil && (lostData(err) || d.finds != "") && strings.Contains(err.Error(), d.finds)
}

// lostData reports whether violations say that something acknowledged is gone.
func lostData(err error) bool {
	text := fmt.Sprint(err)
	for _, words := range []string{"not linearizable", "had been acknowledged before", "is missing"} {
		if strings.Contains(text, words) {
			return true
		}
	}
	return false
}
