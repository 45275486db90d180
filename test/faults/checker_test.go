package faults

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
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
	drop     int64  // a watcher loses each event of this number; 0: none
	finds    string // in the violations
	smallest string // kinds of nemeses in the smallest schedule
	disks    bool   // it needs volumes
}

func defects() []defect {
	return []defect{
		{
			name: "fsync without an effect", disks: true,
			schedule: `
				#1 +500ms 500ms delay follower by=20ms
				#2 +1s 1500ms ignore-sync all lose=all record=lost force=yes
				#3 +1200ms 300ms clients 1 way=in`,
			finds: "", smallest: "ignore-sync",
		},
		{
			// A voter forgets what it has acknowledged: 0 lags, 1 acknowledges and gets an earlier volume, 2 is not there.
			name: "no check of the identity", disks: true,
			schedule: `
				#1 +600ms 2400ms kill 0
				#2 +700ms 200ms reset 1 every=50ms
				#3 +2900ms 5s kill 2
				#4 +800ms 2100ms roll-back 1 record=lost force=yes
				#5 +4s 500ms delay 0 by=20ms`,
			finds: "", smallest: "kill, kill, roll-back",
		},
		{
			name: "a watch that loses events", drop: 100,
			schedule: `
				#1 +500ms 500ms kill follower
				#2 +1s 1s delay leader by=20ms`,
			finds: "is missing", smallest: "",
		},
	}
}

// TestChecker breaks something on purpose. The checks must find it. With QUORATE_FAULTS_CHECKER=full, its schedule must also shrink
// to the nemeses that it needs.
func TestChecker(t *testing.T) {
	upstream.NeedsProcesses(t)
	unusable := usable(t)
	for _, d := range defects() {
		t.Run(d.name, func(t *testing.T) {
			if d.disks && unusable != nil {
				t.Skip("volumes cannot be mounted: ", unusable)
			}
			d.mustBeFound(t, d.plan(t, unusable == nil))
		})
	}
}

func (d defect) plan(t *testing.T, disks bool) plan {
	t.Helper()
	s, err := schedule.Parse(d.schedule)
	if err != nil {
		t.Fatal(err)
	}
	p := plan{
		seed: 1, schedule: s, patience: 20 * time.Second,
		setting: schedule.Setting{Replicas: 3, Duration: s.End() + 2*time.Second, Network: true, Disks: disks, Lying: true},
		load:    check.Load{Writers: 5, Readers: 4, Watchers: 2, LongestWatch: 4 * time.Second, Consistencies: true},
	}
	if d.drop > 0 {
		var events atomic.Int64
		p.drop = func() bool { return events.Add(1)%d.drop == 0 }
	}
	return p
}

func (d defect) mustBeFound(t *testing.T, p plan) {
	t.Helper()
	o := p.run(t)
	err := errors.Join(o.violations...)
	if err == nil || !lostData(err) && d.finds == "" || !strings.Contains(err.Error(), d.finds) {
		directory := filepath.Join(os.TempDir(), "quorate-faults-checker")
		t.Fatalf("the checks have found %v; what they have seen is in %s (%v)", err, directory, o.keep(directory))
	}
	t.Logf("found, with %d others: %v", len(o.violations)-1, o.violations[0])
	if os.Getenv("QUORATE_FAULTS_CHECKER") == "" {
		return
	}
	smallest := p.shrink(t, 4*shrinkCalls)
	var kinds []string
	for _, n := range smallest {
		kinds = append(kinds, n.Kind)
	}
	if got := strings.Join(kinds, ", "); got != d.smallest {
		t.Errorf("the smallest schedule is %q, want %q:\n%s", got, d.smallest, smallest)
	}
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
