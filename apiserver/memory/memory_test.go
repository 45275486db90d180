package memory

import (
	"context"
	"os"
	"runtime/debug"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/go-logr/logr/funcr"
	"k8s.io/utils/clock"
	clocktesting "k8s.io/utils/clock/testing"
)

// files returns a file system.
func files(content map[string]string) fstest.MapFS {
	root := fstest.MapFS{}
	for name, text := range content {
		root[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return root
}

func TestCgroupLimit(t *testing.T) {
	for name, test := range map[string]struct {
		files map[string]string
		want  int64
	}{
		"no cgroups": {nil, Unlimited},
		"version 2, in a container": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "536870912\n",
		}, 512 << 20},
		"version 2, unlimited": {map[string]string{
			"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "max\n",
		}, Unlimited},
		"version 2, limited by an ancestor": {map[string]string{
			"proc/self/cgroup":                      "0::/kubepods/pod/container\n",
			"sys/fs/cgroup/kubepods/memory.max":     "max\n",
			"sys/fs/cgroup/kubepods/pod/memory.max": "1000\n", "sys/fs/cgroup/kubepods/pod/container/memory.max": "2000\n",
		}, 1000},
		"version 1": {map[string]string{
			"proc/self/cgroup":                                 "9:name=systemd:/\n4:cpuset,memory:/pod/container\n0::/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes":       "9223372036854771712\n",
			"sys/fs/cgroup/memory/pod/memory.limit_in_bytes":   "3000\n",
			"sys/fs/cgroup/cpuset/pod/memory.limit_in_bytes":   "1\n",
			"sys/fs/cgroup/memory/other/memory.limit_in_bytes": "2\n",
		}, 3000},
		"version 1, in a container with the path of the host": {map[string]string{
			"proc/self/cgroup": "4:memory:/kubepods/pod/container\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "4000\n",
		}, 4000},
		"version 1, unlimited": {map[string]string{
			"proc/self/cgroup": "4:memory:/\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "18446744073709551615\n",
		}, Unlimited},
		"both, version 2 without the controller": {map[string]string{
			"proc/self/cgroup": "4:memory:/a\n0::/b\n", "sys/fs/cgroup/memory/a/memory.limit_in_bytes": "5000\n",
		}, 5000},
		"lines that are no cgroup": {map[string]string{
			"proc/self/cgroup": "\nno cgroup\n0::/\n", "sys/fs/cgroup/memory.max": "6000\n",
		}, 6000},
		"a limit of nothing": {map[string]string{
			"proc/self/cgroup": "0::/a\n", "sys/fs/cgroup/memory.max": "7000\n", "sys/fs/cgroup/a/memory.max": "0\n",
		}, 7000},
		"unreadable": {map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "many\n"}, Unlimited},
	} {
		if got := CgroupLimit(files(test.files)); got != test.want {
			t.Errorf("%s: %d, want %d", name, got, test.want)
		}
	}
}

func TestReserve(t *testing.T) {
	const mebibyte, gibibyte = int64(1) << 20, int64(1) << 30
	for _, test := range []struct{ limit, database, want int64 }{
		{500 * mebibyte, 0, 50 * mebibyte},
		{500 * mebibyte, 2 * gibibyte, 150 * mebibyte},
		{20 * gibibyte, 2 * gibibyte, 3 * gibibyte},
		{64 * gibibyte, 8 * gibibyte, 9 * gibibyte},
	} {
		if got := Reserve(test.limit, test.database); got != test.want {
			t.Errorf("of %d MiB: %d MiB, want %d", test.limit/mebibyte, got/mebibyte, test.want/mebibyte)
		}
	}
}

// TestConfigure: Configure keeps the limit in GOMEMLIMIT. Without it, Configure sets the cgroup's limit minus the
// reserve, or changes nothing if the cgroup has no limit.
func TestConfigure(t *testing.T) {
	const own, database = 123 << 30, 1 << 30
	before := debug.SetMemoryLimit(own)
	t.Cleanup(func() { debug.SetMemoryLimit(before) })
	t.Setenv("GOMEMLIMIT", "123GiB")
	if got := Configure(database); got != own || Limit() != own {
		t.Errorf("with GOMEMLIMIT: got %d, in effect is %d, want %d", got, Limit(), own)
	}
	t.Setenv("GOMEMLIMIT", "")
	want := int64(own)
	if cgroup := CgroupLimit(os.DirFS("/")); cgroup != Unlimited {
		want = cgroup - Reserve(cgroup, database)
	}
	if got := Configure(database); got != want || Limit() != want {
		t.Errorf("without GOMEMLIMIT: got %d, in effect is %d, want %d", got, Limit(), want)
	}
}

// TestPressure observes the heap of the test, with limits that are far below it or far above it.
func TestPressure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const below, above = int64(1000), int64(1) << 50
		var logged []string
		p := NewPressure(below, funcr.New(func(_, line string) { logged = append(logged, line) }, funcr.Options{}))
		ctx, cancel := context.WithCancel(t.Context())
		fake := clocktesting.NewFakeClock(time.Unix(0, 0))
		go p.Run(ctx, fake)
		synctest.Wait() // until Run waits for the first tick
		if p.Level() != Normal {
			t.Errorf("the level is %v before the first sample", p.Level())
		}
		for i, step := range []struct {
			limit int64
			after time.Duration
			level Level
			lines int // that have been logged so far
		}{
			{below, sampleInterval, Critical, 1},
			{below, hold, Critical, 1},
			{above, sampleInterval, Critical, 1}, // a level is held for a second
			{above, hold, Normal, 1},
			{below, sampleInterval, Critical, 1}, // at most one line in a minute
			{above, logInterval, Normal, 1},
			{below, sampleInterval, Critical, 2},
		} {
			p.limit = step.limit // Run waits for a tick
			fake.Step(step.after)
			synctest.Wait()
			if p.Level() != step.level || len(logged) != step.lines {
				t.Errorf("step %d: the level is %v, logged %q, want %v and %d lines", i, p.Level(), logged, step.level, step.lines)
			}
		}
		if len(logged) > 0 && !strings.Contains(logged[0], `"level"="critical"`) {
			t.Errorf("logged %s", logged[0])
		}
		cancel()
	})
}

// TestNoPressureWithoutALimit: Run returns, and all requests are served.
func TestNoPressureWithoutALimit(t *testing.T) {
	p := NewPressure(Unlimited, logr.Discard())
	p.Run(t.Context(), clock.RealClock{})
	if p.Level() != Normal {
		t.Errorf("the level is %v", p.Level())
	}
}

// TestNext follows a heap with a limit of 1,000,000 bytes, with a sample every 100 ms.
func TestNext(t *testing.T) {
	const limit = 1_000_000
	type step struct {
		live, inUse int64
		collected   bool
		want        Level
	}
	for name, steps := range map[string][]step{
		"far below":               {{500_000, 900_000, true, Normal}, {700_000, 1_000_000, true, Normal}},
		"growing":                 {{790_000, 0, true, Normal}, {820_000, 0, true, High}, {910_000, 0, true, Critical}},
		"full, but not growing":   {{700_000, 0, true, Normal}, {700_000, 0, false, Normal}, {704_000, 0, true, Normal}},
		"beyond the limit":        {{100_000, 1_060_000, false, Critical}},
		"garbage below the limit": {{100_000, 1_040_000, false, Normal}},
		"a level is held for a second": {
			{950_000, 0, true, Critical}, {950_000, 0, true, Critical}, {600_000, 0, true, Critical},
			{600_000, 0, false, Critical}, {600_000, 0, false, Critical}, {600_000, 0, false, Critical},
			{600_000, 0, false, Critical}, {600_000, 0, false, Critical}, {600_000, 0, false, Critical},
			{600_000, 0, false, Critical}, {600_000, 0, false, Normal},
		},
		"full for long": {
			{950_000, 0, true, Critical}, {950_000, 0, true, Critical}, {950_000, 0, true, Critical},
			{950_000, 0, true, Critical}, {950_000, 0, true, Critical}, {950_000, 0, true, Critical},
			{950_000, 0, true, Critical}, {950_000, 0, true, Critical}, {950_000, 0, true, Critical},
			{950_000, 0, true, Critical}, {950_000, 0, true, Normal}, {960_000, 0, true, Critical},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var state State
			cycle, now := int64(0), time.Unix(0, 0)
			for i, one := range steps {
				now = now.Add(sampleInterval)
				if one.collected {
					cycle++
				}
				state = Next(state, Sample{Live: one.live, InUse: one.inUse, Cycle: cycle}, limit, now)
				if state.Level != one.want {
					t.Errorf("step %d: %v, want %v", i, state.Level, one.want)
				}
			}
		})
	}
}
