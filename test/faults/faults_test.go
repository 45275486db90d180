// Package faults runs replicas with embedded etcd members under faults that a seed chooses, and checks what clients have seen.
//
// Each replica is a process. Its data directory is a volume of the test, mounted through FUSE, which loses unsynced writes and
// fails on request (package disk). Members and clients are connected through proxies (package network). The faults of a run are
// a schedule (package schedule), which is printed. While the faults happen, clients read, write, list and watch
// (package test/history/check). At the end all faults cease, all replicas must become ready, and the checks run. The test plays
// the operator: it replaces a member that refuses to start with data that is not its own.
//
// To run the same faults again:
//
//	make faults SEEDS=17                                   # the schedule of this seed
//	QUORATE_FAULTS_SCHEDULE=file go test ./test/faults     # a schedule in a file, as printed
//
// A seed determines the faults and the choices of clients, but not the speed of processes: a violation may need several runs to
// appear again. A schedule with a violation is run several times with fewer and fewer nemeses, and the smallest one that still
// fails is printed.
//
// Where FUSE or mount namespaces are not permitted, the data directories are folders, and the faults that are left out are
// printed.
package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"quorate.dev/test/faults/disk"
	"quorate.dev/test/faults/schedule"
	"quorate.dev/test/history/check"
	"quorate.dev/test/upstream"
)

const (
	patience = 2 * time.Minute // for recovery after all faults
	// standardSeed is the seed of a run without options: a change must not fail because of a schedule that no earlier run has had.
	standardSeed = 2
	// shrinkCalls bounds the runs that look for a smaller schedule.
	shrinkCalls = 12
)

// plan is what a test runs.
type plan struct {
	seed     uint64
	setting  schedule.Setting
	schedule schedule.Schedule
	load     check.Load
	flags    []string
	drop     func() bool // whether a watcher loses an event
	patience time.Duration
}

func newPlan(seed uint64, setting schedule.Setting) plan {
	return plan{
		seed: seed, setting: setting, schedule: schedule.Generate(seed, setting), patience: patience,
		load: check.Load{Writers: 5, Readers: 4, Watchers: 4, LongestWatch: 4 * time.Second, Consistencies: true},
	}
}

// outcome is what a run has found.
type outcome struct {
	violations []error
	summary    check.Summary
	executed   int
	lies       int // executed nemeses in which a disk lied
	record     *check.Record
	logs       []string // files
}

// run runs a plan.
func (p plan) run(t *testing.T) outcome {
	t.Helper()
	c := startCluster(t, p.setting, p.flags...)
	defer c.stop()
	o := outcome{record: check.NewRecord()}
	site := &check.Site{Clients: c.clients, Objects: check.ConfigMaps("default"), Record: o.record, Drop: p.drop}
	working, endWork := context.WithTimeout(t.Context(), p.setting.Duration)
	defer endWork()
	watching, endWatches := context.WithCancel(t.Context())
	defer endWatches()
	c.begin = time.Now()
	watchers := site.Watch(watching, p.load, p.seed)
	work := site.Work(working, p.load, p.seed)
	executed := c.execute(working, p.schedule, p.seed)
	o.executed, o.lies = len(executed), count(executed, "ignore-sync")
	<-working.Done()
	c.calm()
	work.Wait()
	c.logf("all faults have ended")
	if err := c.settle(t.Context(), p.patience, site, watchers); err != nil {
		o.violations = append(o.violations, err)
	}
	endWatches()
	watchers.Finish()
	o.violations = append(o.violations, o.record.Check()...)
	o.summary = o.record.Summary()
	for _, r := range c.replicas {
		o.logs = append(o.logs, filepath.Join(r.folder(), "quorate.log"))
	}
	c.logf("%d of %d nemeses, %d members replaced; %s", o.executed, len(p.schedule), c.replaced.Load(), o.summary)
	return o
}

// count counts the nemeses of a kind.
func count(s schedule.Schedule, kind string) (n int) {
	for _, nemesis := range s {
		if nemesis.Kind == kind {
			n++
		}
	}
	return n
}

// settle waits until all replicas have recovered and watchers have received everything, and compares the members.
func (c *cluster) settle(ctx context.Context, patience time.Duration, site *check.Site, watchers *check.Watchers) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := c.ready(ctx, patience); err != nil {
		return fmt.Errorf("no recovery: %w", err)
	}
	last, err := site.Finish(ctx)
	if err != nil {
		return err
	}
	if err := watchers.Reach(ctx, last); err != nil {
		return err
	}
	return c.compare(ctx)
}

// compare compares the data of all members at one revision.
func (c *cluster) compare(ctx context.Context) error {
	for {
		hashes := map[uint32][]int{}
		var failures error
		got, err := c.replicas[0].etcd.Get(ctx, "none")
		if err == nil {
			for _, r := range c.replicas {
				hash, err := r.etcd.HashKV(ctx, r.etcd.Endpoints()[0], got.Header.Revision)
				if err != nil {
					failures = errors.Join(failures, err)
					continue
				}
				hashes[hash.Hash] = append(hashes[hash.Hash], r.index)
			}
		}
		failures = errors.Join(failures, err)
		if failures == nil && len(hashes) == 1 {
			return nil
		}
		if !check.Pause(ctx, time.Second) {
			return fmt.Errorf("the data of members differs: replicas by hash %v, %w", hashes, failures)
		}
	}
}

// TestFaults runs the schedules of seeds: of standardSeed by default, of QUORATE_FAULTS_SEEDS, or of random ones until
// QUORATE_FAULTS has passed.
func TestFaults(t *testing.T) {
	upstream.NeedsProcesses(t)
	setting := chosenSetting(t)
	end := time.Now().Add(chosenDuration(t))
	seeds := chosenSeeds(t)
	if len(seeds) == 0 && os.Getenv("QUORATE_FAULTS") == "" {
		seeds = []uint64{standardSeed}
	}
	var total struct {
		runs, lies      int
		duration, lying time.Duration
	}
	for i := 0; i == 0 || i < len(seeds) || time.Now().Before(end); i++ {
		seed := rand.Uint64() % 1e9
		if i < len(seeds) {
			seed = seeds[i]
		}
		current := vary(setting, seed)
		p := newPlan(seed, current)
		if text := chosenSchedule(t); text != nil {
			p.schedule = text
			p.setting.Duration = max(p.setting.Duration, text.End()+time.Second)
		}
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) {
			o := p.mustHold(t)
			total.runs, total.duration = total.runs+1, total.duration+p.setting.Duration
			if o.lies > 0 {
				total.lying, total.lies = total.lying+p.setting.Duration, total.lies+o.lies
			}
			t.Logf("in total %d runs with faults for %v, of which %v with disks that lied %d times", total.runs, total.duration,
				total.lying, total.lies)
		})
	}
}

// vary chooses the number of replicas, and whether disks lie, by the seed.
func vary(s schedule.Setting, seed uint64) schedule.Setting {
	random := rand.New(rand.NewPCG(seed, 1))
	if s.Replicas == 0 {
		s.Replicas = []int{3, 3, 3, 3, 3, 3, 5, 1}[random.IntN(8)]
	}
	return s
}

// mustHold fails if there are violations, after it has looked for a smaller schedule.
func (p plan) mustHold(t *testing.T) outcome {
	possible, others := schedule.Kinds(p.setting)
	t.Logf("seed %d, %d replicas, faults: %s; not permitted here: %s\n%s", p.seed, p.setting.Replicas, possible, others, p.schedule)
	o := p.run(t)
	if len(o.violations) == 0 {
		if least := int(p.setting.Duration.Seconds()); o.summary.Known() < least || o.summary.Lists == 0 {
			t.Errorf("the run has shown nothing: only %s", o.summary)
		}
		return o
	}
	directory := filepath.Join(os.TempDir(), fmt.Sprintf("quorate-faults-%d", p.seed))
	if err := o.keep(directory); err != nil {
		t.Error(err)
	}
	for _, violation := range o.violations[:min(len(o.violations), 10)] {
		t.Error(violation)
	}
	t.Errorf("%d violations with seed %d; the history is in %s", len(o.violations), p.seed, directory)
	if calls := chosenNumber(t, "QUORATE_FAULTS_SHRINK", shrinkCalls); calls > 0 {
		t.Logf("the smallest schedule found that has a violation:\n%s", p.shrink(t, calls))
	}
	return o
}

// keep writes the history, and copies the logs of the replicas, to a directory.
func (o outcome) keep(directory string) error {
	failures := []error{o.record.Keep(directory, o.violations)}
	for i, log := range o.logs {
		text, err := os.ReadFile(log)
		failures = append(failures, err, os.WriteFile(filepath.Join(directory, fmt.Sprintf("replica-%d.log", i)), text, 0o644))
	}
	return errors.Join(failures...)
}

// shrink returns a smaller schedule that has a violation.
func (p plan) shrink(t *testing.T, calls int) schedule.Schedule {
	return schedule.Shrink(p.schedule, calls, func(s schedule.Schedule) bool {
		smaller := p
		smaller.schedule = s
		violations := smaller.run(t).violations
		t.Logf("%d violations with\n%s", len(violations), s)
		return len(violations) > 0
	})
}

// chosenSetting returns what this user permits, as QUORATE_FAULTS_REPLICAS and QUORATE_FAULTS_DISKS=honest restrict it.
func chosenSetting(t *testing.T) schedule.Setting {
	t.Helper()
	err := usable(t)
	if err != nil {
		t.Logf("data directories are folders, without faults of disks, because volumes cannot be mounted: %v", err)
	}
	return schedule.Setting{
		Replicas: chosenNumber(t, "QUORATE_FAULTS_REPLICAS", 0), Duration: runDuration(t), Network: true, Disks: err == nil,
		Lying: os.Getenv("QUORATE_FAULTS_DISKS") != "honest",
	}
}

// usable reports whether a volume can be mounted.
func usable(t *testing.T) error {
	t.Helper()
	if os.Getenv(namespaceVariable) == "" {
		return errors.New("there is no mount namespace")
	}
	if err := hideMounts(); err != nil {
		return err
	}
	unmount, err := disk.New(capacity).Mount(filepath.Join(t.TempDir(), "volume"))
	if err != nil {
		return err
	}
	return unmount()
}

// chosenDuration is the duration of all runs of `make faults`.
func chosenDuration(t *testing.T) time.Duration {
	t.Helper()
	return durationOf(t, "QUORATE_FAULTS", 0)
}

// runDuration is how long the faults of one run last.
func runDuration(t *testing.T) time.Duration {
	t.Helper()
	standard := 20 * time.Second
	if os.Getenv("QUORATE_FAULTS") != "" {
		standard = 45 * time.Second
	}
	return durationOf(t, "QUORATE_FAULTS_RUN", standard)
}

func durationOf(t *testing.T, variable string, standard time.Duration) time.Duration {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return standard
	}
	duration, err := time.ParseDuration(text)
	if err != nil {
		t.Fatalf("%s is a duration: %v", variable, err)
	}
	return duration
}

func chosenNumber(t *testing.T, variable string, standard int) int {
	t.Helper()
	text := os.Getenv(variable)
	if text == "" {
		return standard
	}
	number, err := strconv.Atoi(text)
	if err != nil {
		t.Fatalf("%s is a number: %v", variable, err)
	}
	return number
}

// chosenSeeds are the seeds of QUORATE_FAULTS_SEEDS.
func chosenSeeds(t *testing.T) (seeds []uint64) {
	t.Helper()
	for text := range strings.FieldsFuncSeq(os.Getenv("QUORATE_FAULTS_SEEDS"), func(r rune) bool { return r == ',' || r == ' ' }) {
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatalf("QUORATE_FAULTS_SEEDS has numbers: %v", err)
		}
		seeds = append(seeds, seed)
	}
	return seeds
}

// chosenSchedule is the schedule in the file of QUORATE_FAULTS_SCHEDULE.
func chosenSchedule(t *testing.T) schedule.Schedule {
	t.Helper()
	file := os.Getenv("QUORATE_FAULTS_SCHEDULE")
	if file == "" {
		return nil
	}
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := schedule.Parse(string(text))
	if err != nil {
		t.Fatal(err)
	}
	return s
}
