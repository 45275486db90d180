// Package faults runs replicas with embedded etcd members under faults that a seed chooses, and checks what clients
// have seen.
//
// Each replica is a process. Its data directory is a volume of the test, mounted through FUSE, which loses unsynced
// writes and fails on request (package disk). It runs in a network namespace, whose packets the test forwards, loses,
// delays, repeats and reorders (package network), and in a cgroup, whose memory the test limits (package memory). The
// faults of a run are a schedule (package schedule), which is printed. While the faults happen, clients read, write,
// list and watch (package test/history/check), and workloads use other resources (package workload). At the end all
// faults cease, all replicas must become ready, and the checks run. Package test/faults/operator has the operator
// itself.
//
// The test plays the kubelet and the operator: each replica restarts, and a member whose data is damaged or not its own
// (exit codes 3 and 4) is replaced if the others have a quorum. The test also plays the administrator: when all faults
// have ended, it replaces a member that has stopped because the leader lacks acknowledged writes (exit code 5). Exit
// codes 3 and 4 are violations if no nemesis has damaged the data of the member; code 3 only if its disk works. Exit
// code 5 is a violation unless more than a minority of the members had damaged data at the same time, which no
// generated schedule causes: only then may a cluster lose acknowledged writes.
//
// The volumes replace etcd's gofail points, which need a rewritten source of etcd: a volume stops, fails or delays the
// binary that users run at any write or fsync, and a crash there leaves what a crash between two gofail points would.
//
// To run the same faults again:
//
//	make faults SEEDS=17 DURATION=45s                      # the schedule of this seed
//	QUORATE_FAULTS_SCHEDULE=file go test ./test/faults     # a schedule in a file, as printed
//
// A seed determines the faults and the choices of clients, but not the speed of processes: a violation may need several
// runs to appear again. A schedule with a violation is run several times with fewer and fewer nemeses, and the smallest
// one that still fails is printed.
//
// Where FUSE or mount namespaces are not permitted, the data directories are folders; without network namespaces, peers
// and clients are connected through proxies; without cgroups, memory is not limited. The faults that are left out are
// printed.
package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"quorate.dev/test/faults/schedule"
	"quorate.dev/test/faults/workload"
	"quorate.dev/test/history/check"
	"quorate.dev/test/upstream"
)

const (
	patience     = 2 * time.Minute // for recovery after all faults
	standardSeed = 2               // of a run without options
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
	// workloads are the names of the workloads that run in addition to the clients of ConfigMaps.
	workloads []string
	drop      int64 // a watcher loses the event of this number, and no other one; 0: none
	patience  time.Duration
}

func newPlan(seed uint64, setting schedule.Setting) plan {
	return plan{
		seed: seed, setting: setting, schedule: schedule.Generate(seed, setting), patience: patience,
		load:      check.Load{Writers: 5, Readers: 4, Watchers: 4, LongestWatch: 4 * time.Second, Consistencies: true},
		workloads: workload.Names(),
	}
}

// outcome is what a run has found.
type outcome struct {
	violations []error
	summary    check.Summary
	executed   int
	lies       int   // executed nemeses in which a disk lied
	exits      []int // exit codes of processes that no nemesis has killed
	record     *check.Record
	logs       []string // files
}

// fails reports whether there are violations.
func (o outcome) fails() bool { return len(o.violations) > 0 }

// run runs a plan.
func (p plan) run(t *testing.T) outcome {
	t.Helper()
	c := p.start(t)
	defer c.stop()
	o := outcome{record: check.NewRecord()}
	site := &check.Site{Clients: c.clients, Objects: check.ConfigMaps("default"), Record: o.record}
	if p.drop > 0 {
		var events atomic.Int64
		site.Drop = func() bool { return events.Add(1) == p.drop }
	}
	working, endWork := context.WithCancel(t.Context())
	defer endWork()
	watching, endWatches := context.WithCancel(t.Context())
	defer endWatches()
	others, err := c.startWorkloads(working, p.workloads, p.seed)
	if err != nil {
		t.Fatal(err)
	}
	c.begin = time.Now()
	time.AfterFunc(p.setting.Duration, endWork)
	watchers := site.Watch(watching, p.load, p.seed)
	work := site.Work(working, p.load, p.seed)
	executed := c.execute(working, p.schedule, p.seed)
	o.executed, o.lies = len(executed), count(executed, "ignore-sync")
	<-working.Done()
	c.calm()
	work.Wait()
	others.stop()
	c.logf("all faults have ended")
	o.violations = c.settle(t.Context(), p.patience, site, watchers, others)
	endWatches()
	watchers.Finish()
	o.violations = append(o.violations, o.record.Check()...)
	o.summary = o.record.Summary()
	explained, refusals := c.damage.check(len(c.replicas))
	for _, err := range explained {
		c.logf("acknowledged writes are lost, which the schedule explains: %v", err)
	}
	o.violations = append(o.violations, refusals...)
	for _, r := range c.replicas {
		o.exits = append(o.exits, r.exitCodes()...)
		o.logs = append(o.logs, filepath.Join(r.folder(), "quorate.log"))
	}
	c.logf("%d of %d nemeses, %d members replaced; %s; workloads: %s", o.executed, len(p.schedule), c.replaced.Load(),
		o.summary, others)
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

// settle waits until all replicas have recovered and watchers have received everything, checks the workloads, and
// compares the members.
func (c *cluster) settle(ctx context.Context, patience time.Duration, site *check.Site, watchers *check.Watchers,
	others running) []error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if err := c.ready(ctx, patience); err != nil {
		cancel()
		c.describe()
		return append([]error{fmt.Errorf("no recovery: %w", err)}, others.check(ctx, c.logf)...) // what was noticed before
	}
	c.logf("all replicas are ready")
	violations := others.check(ctx, c.logf)
	c.logf("all workloads are checked")
	last, err := site.Finish(ctx)
	if err == nil {
		err = watchers.Reach(ctx, last)
	}
	if err == nil {
		err = c.compare(ctx)
	}
	if err != nil {
		violations = append(violations, err)
	}
	return violations
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

// standardSchedule is the schedule of a run without options. It has each sort of fault, and does not depend on the
// generator: a change must not fail because of a schedule that no earlier run has had.
const standardSchedule = `
	#1 +500ms 1500ms packets leader way=both lose=0.05 duplicate=0.1 reorder=0.3 by=20ms
	#2 +800ms 1500ms ignore-sync follower lose=scattered
	#3 +3s 1s slow-sync leader by=80ms
	#4 +5s 1500ms partition leader way=both
	#5 +5500ms 1s compact 1
	#6 +7s 1s kill follower
	#7 +8500ms 500ms power-loss all lose=last
	#8 +9500ms 500ms clients 1 way=in`

// slowWorkload is left out of the run with standardSchedule. Its check waits until the lease of the namespace
// controller has expired, which a killed replica held, and until the controller tries again: up to half a minute.
const slowWorkload = "namespaces"

// TestFaults runs standardSchedule by default, the schedules of QUORATE_FAULTS_SEEDS, which share the duration
// QUORATE_FAULTS, or the schedules of random seeds until QUORATE_FAULTS has passed.
func TestFaults(t *testing.T) {
	upstream.NeedsProcesses(t)
	seeds := chosenSeeds(t)
	setting := chosenSetting(t, len(seeds))
	given, skipped := chosenSchedule(t), ""
	if len(seeds) == 0 && os.Getenv("QUORATE_FAULTS") == "" {
		seeds = []uint64{standardSeed}
		if given == nil {
			given, skipped = standard(t, &setting), slowWorkload
		}
	}
	end := time.Now().Add(chosenDuration(t))
	var total totals
	for i := 0; i < len(seeds) || len(seeds) == 0 && (i == 0 || time.Now().Before(end)); i++ {
		seed := rand.Uint64() % 1e9
		if i < len(seeds) {
			seed = seeds[i]
		}
		p := newPlan(seed, vary(setting, seed))
		p.workloads = slices.DeleteFunc(p.workloads, func(name string) bool { return name == skipped })
		if given != nil {
			p.schedule = given
			p.setting.Duration = max(p.setting.Duration, given.End()+time.Second)
		}
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { total.add(t, p, p.mustHold(t)) })
	}
}

// standard returns the part of standardSchedule that a setting permits, to which it adds the number of replicas.
func standard(t *testing.T, setting *schedule.Setting) schedule.Schedule {
	t.Helper()
	if setting.Replicas == 0 {
		setting.Replicas = 3
	}
	s, err := schedule.Parse(standardSchedule)
	if err != nil {
		t.Fatal(err)
	}
	return s.Within(*setting)
}

// totals are the sums over all runs.
type totals struct {
	runs, lies      int
	duration, lying time.Duration
}

func (s *totals) add(t *testing.T, p plan, o outcome) {
	s.runs, s.duration = s.runs+1, s.duration+p.setting.Duration
	if o.lies > 0 {
		s.lying, s.lies = s.lying+p.setting.Duration, s.lies+o.lies
	}
	t.Logf("in total %d runs with faults for %v, of which %v with disks that lied %d times", s.runs, s.duration,
		s.lying, s.lies)
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
	t.Logf("seed %d, %d replicas, faults: %s; not permitted here: %s\n%s", p.seed, p.setting.Replicas, possible,
		others, p.schedule)
	o := p.run(t)
	if len(o.violations) == 0 {
		if least := int(p.setting.Duration.Seconds()); o.summary.Known() < least || o.summary.Lists == 0 {
			t.Errorf("the run has shown nothing: only %s", o.summary)
		}
		return o
	}
	directory := filepath.Join(os.TempDir(), fmt.Sprintf("quorate-faults-%d", p.seed))
	if err := o.keep(directory, p.schedule); err != nil {
		t.Error(err)
	}
	for _, violation := range o.violations[:min(len(o.violations), 10)] {
		t.Error(violation)
	}
	t.Errorf("%d violations with seed %d; the history and the logs are in %s. To run the same faults again:\n%s",
		len(o.violations), p.seed, directory, p.replay(directory))
	if calls := chosenNumber(t, "QUORATE_FAULTS_SHRINK", shrinkCalls); calls > 0 {
		t.Logf("the smallest schedule found that has a violation:\n%s", p.shrink(t, calls, 1, outcome.fails))
	}
	return o
}

// scheduleFile is the name of the file with the schedule among what keep keeps.
const scheduleFile = "schedule"

// replay returns the command that runs the plan again.
func (p plan) replay(directory string) string {
	return fmt.Sprintf("QUORATE_FAULTS_SEEDS=%d QUORATE_FAULTS_REPLICAS=%d QUORATE_FAULTS_RUN=%v "+
		"QUORATE_FAULTS_SCHEDULE=%s go test -count=1 -v -run 'TestFaults$' ./test/faults", p.seed,
		p.setting.Replicas, p.setting.Duration, filepath.Join(directory, scheduleFile))
}

// keep writes the history and the schedule, and copies the logs of the replicas, to a directory.
func (o outcome) keep(directory string, s schedule.Schedule) error {
	failures := []error{
		o.record.Keep(directory, o.violations),
		os.WriteFile(filepath.Join(directory, scheduleFile), []byte(s.String()), 0o644),
	}
	for i, log := range o.logs {
		text, err := os.ReadFile(log)
		failures = append(failures, err,
			os.WriteFile(filepath.Join(directory, fmt.Sprintf("replica-%d.log", i)), text, 0o644))
	}
	return errors.Join(failures...)
}

// shrink returns a smaller schedule whose run fails, in one of a number of attempts.
func (p plan) shrink(t *testing.T, calls, attempts int, fails func(outcome) bool) schedule.Schedule {
	return schedule.Shrink(p.schedule, calls, func(s schedule.Schedule) bool {
		smaller := p
		smaller.schedule = s
		for range attempts {
			o := smaller.run(t)
			t.Logf("%d violations with\n%s", len(o.violations), s)
			if fails(o) {
				return true
			}
		}
		return false
	})
}
