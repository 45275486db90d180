package faults

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"quorate.dev/test/faults/disk"
	"quorate.dev/test/faults/network"
	"quorate.dev/test/faults/schedule"
	"quorate.dev/test/history/check"
)

// execution is a nemesis that runs.
type execution struct {
	schedule.Nemesis
	*cluster
	ctx     context.Context // ends when the run ends
	random  *rand.Rand
	targets []*replica
	end     context.Context // ends with the duration of the nemesis, or of the run
}

func (n *execution) note(format string, arguments ...any) {
	n.logf("#%d "+format, append([]any{n.ID}, arguments...)...)
}

// acts returns the function that runs each kind of nemesis. The function returns when the nemesis has ended and its
// effect is undone.
func acts() map[string]func(*execution) error {
	return map[string]func(*execution) error{
		"partition": (*execution).partition, "bridge": (*execution).bridge, "flap": (*execution).flap,
		"delay": (*execution).delay, "reset": (*execution).reset, "clients": (*execution).cutClients,
		"packets": (*execution).disturbPackets,
		"kill":    (*execution).kill, "stop": (*execution).freeze, "memory": (*execution).limitMemory,
		"memory-pressure": (*execution).pressMemory,
		"power-loss":      (*execution).losePower,
		"slow-sync": onDisk(func(n *execution, f *disk.Faults, on bool) {
			f.SyncDelay = 0
			if on {
				f.SyncDelay = n.Duration("by")
			}
		}),
		"fail-sync":  (*execution).failSync,
		"fail-write": onDisk(func(_ *execution, f *disk.Faults, on bool) { f.FailWrite = on }),
		"fail-read":  onDisk(func(_ *execution, f *disk.Faults, on bool) { f.FailRead = on }),
		"full": onDisk(func(n *execution, f *disk.Faults, on bool) {
			f.Filled = on
			f.Free, _ = strconv.ParseInt(n.Options["free"], 10, 64)
		}),
		"compact": (*execution).compact, "defragment": (*execution).defragment,
		"wipe": (*execution).wipe, "roll-back": (*execution).rollBack, "flip": (*execution).flip,
		"ignore-sync": (*execution).ignoreSync,
	}
}

// execute runs a schedule and returns, when it has ended, what took place.
func (c *cluster) execute(ctx context.Context, s schedule.Schedule, seed uint64) (done schedule.Schedule) {
	var running sync.WaitGroup
	var mu sync.Mutex
	for _, nemesis := range s {
		running.Go(func() {
			if !check.Pause(ctx, nemesis.At-time.Since(c.begin)) {
				return
			}
			end, cancel := context.WithTimeout(ctx, nemesis.For)
			defer cancel()
			n := &execution{Nemesis: nemesis, cluster: c, ctx: ctx, random: nemesis.Random(seed), end: end}
			act := acts()[n.Kind]
			err := errors.New("there is no such nemesis")
			if act != nil {
				n.targets, err = n.resolve()
			}
			if err == nil {
				n.note("%s %s (%s) for %v %v", n.Kind, n.Target, n.names(), n.For, n.Options)
				err = act(n)
			}
			if err != nil {
				n.note("%s did not take place: %v", n.Kind, err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			done = append(done, nemesis)
		})
	}
	running.Wait()
	return done
}

// resolve returns the replicas that the target names.
func (n *execution) resolve() (targets []*replica, err error) {
	for name := range strings.SplitSeq(n.Target, ",") {
		switch name {
		case "all":
			targets = append(targets, n.replicas...)
		case "leader":
			targets = append(targets, n.replicas[n.leader(n.ctx)])
		case "follower":
			follower := n.leader(n.ctx)
			if len(n.replicas) > 1 {
				follower = (follower + 1 + n.random.IntN(len(n.replicas)-1)) % len(n.replicas)
			}
			targets = append(targets, n.replicas[follower])
		default:
			i, err := strconv.Atoi(name)
			if err != nil || i < 0 || i >= len(n.replicas) {
				return nil, fmt.Errorf("%q is no replica", name)
			}
			targets = append(targets, n.replicas[i])
		}
	}
	return targets, nil
}

func (n *execution) names() string {
	var all []string
	for _, r := range n.targets {
		all = append(all, strconv.Itoa(r.index))
	}
	return strings.Join(all, ",")
}

// others returns the numbers of the replicas that are not targets.
func (n *execution) others() (all []int) {
	for i, r := range n.replicas {
		if !slices.Contains(n.targets, r) {
			all = append(all, i)
		}
	}
	return all
}

// between changes the rules between targets and nodes: of what targets get, send, or both, as the option "way" says.
func (n *execution) between(nodes []int, change func(*network.Rule)) {
	way := n.Options["way"]
	for _, r := range n.targets {
		for _, node := range nodes {
			if way != "out" {
				n.network.Set(node, r.index, change)
			}
			if way != "in" {
				n.network.Set(r.index, node, change)
			}
		}
	}
}

func (n *execution) wait() { <-n.end.Done() }

func (n *execution) partition() error {
	n.between(n.others(), func(r *network.Rule) { r.Cut = true })
	n.wait()
	n.between(n.others(), func(r *network.Rule) { r.Cut = false })
	return nil
}

// bridge leaves the target as the only one that all others reach.
func (n *execution) bridge() error {
	cut := func(cut bool) {
		for _, a := range n.others() {
			for _, b := range n.others() {
				if a != b {
					n.network.Set(a, b, func(r *network.Rule) { r.Cut = cut })
				}
			}
		}
	}
	cut(true)
	n.wait()
	cut(false)
	return nil
}

func (n *execution) flap() error {
	for cut := true; ; cut = !cut {
		n.between(n.others(), func(r *network.Rule) { r.Cut = cut })
		if !check.Pause(n.end, n.Duration("every")) {
			break
		}
	}
	n.between(n.others(), func(r *network.Rule) { r.Cut = false })
	return nil
}

func (n *execution) delay() error {
	nodes := append(n.others(), clients)
	n.between(nodes, func(r *network.Rule) { r.Delay = n.Duration("by") })
	n.wait()
	n.between(nodes, func(r *network.Rule) { r.Delay = 0 })
	return nil
}

// disturbPackets loses, repeats and reorders packets.
func (n *execution) disturbPackets() error {
	nodes := append(n.others(), clients)
	n.between(nodes, func(r *network.Rule) {
		r.Lose, r.Duplicate, r.Reorder = n.Number("lose"), n.Number("duplicate"), n.Number("reorder")
		r.Lag = n.Duration("by")
	})
	n.wait()
	n.between(nodes, func(r *network.Rule) { r.Lose, r.Duplicate, r.Reorder, r.Lag = 0, 0, 0, 0 })
	return nil
}

func (n *execution) reset() error {
	for check.Pause(n.end, n.Duration("every")) {
		for _, r := range n.targets {
			for _, other := range append(n.others(), clients) {
				n.network.Reset(r.index, other)
			}
		}
	}
	return nil
}

func (n *execution) cutClients() error {
	n.between([]int{clients}, func(r *network.Rule) { r.Cut = true })
	n.wait()
	n.between([]int{clients}, func(r *network.Rule) { r.Cut = false })
	return nil
}

// down keeps the targets from running after a change of each, as long as the nemesis lasts.
func (n *execution) down(change func(*replica) error) (err error) {
	for _, r := range n.targets {
		err = errors.Join(err, change(r))
	}
	n.wait()
	for _, r := range n.targets {
		r.release()
	}
	return err
}

func (n *execution) kill() error { return n.down(func(r *replica) error { return r.hold(nil) }) }

func (n *execution) freeze() error {
	stopped := map[*replica]int{}
	for _, r := range n.targets {
		stopped[r] = r.signal(syscall.SIGSTOP)
	}
	n.wait()
	for r, pid := range stopped {
		if pid != 0 && r.pid() == pid {
			r.signal(syscall.SIGCONT)
		}
	}
	return nil
}

// limitMemory restarts the targets with a soft limit of memory.
func (n *execution) limitMemory() error {
	restart := func(limit string) {
		for _, r := range n.targets {
			_ = r.hold(func() error { r.softLimit = limit; return nil }) // the change does not fail
			r.release()
		}
	}
	restart(n.Options["limit"])
	n.wait()
	restart("")
	return nil
}

// pressMemory limits the memory of the targets to a part of what they use. The kernel takes their pages of files away,
// and may kill them again and again.
func (n *execution) pressMemory() (err error) {
	for _, r := range n.targets {
		usage, failure := r.group.Usage()
		if failure == nil {
			usage, failure = r.group.Limit(int64(float64(usage) * n.Number("to")))
		}
		n.note("replica %d may use %d MiB", r.index, usage>>20)
		err = errors.Join(err, failure)
	}
	n.wait()
	for _, r := range n.targets {
		err = errors.Join(err, r.group.Unlimit())
	}
	return err
}

func (n *execution) losePower() error {
	for _, r := range n.targets {
		r.volume.Halt()
	}
	return n.down(func(r *replica) error { return errors.Join(r.cutPower(disk.Loss(n.Options["lose"]), n), n.forget(r)) })
}

// forget removes what is known about a member outside its volume if the option "record" says so, as if its identity was
// not checked.
func (n *execution) forget(r *replica) error {
	if n.Options["record"] != "lost" {
		return nil
	}
	return r.forget()
}

// onDisk returns a nemesis that sets faults of volumes.
func onDisk(set func(n *execution, f *disk.Faults, on bool)) func(*execution) error {
	return func(n *execution) error {
		for _, r := range n.targets {
			r.volume.Set(func(f *disk.Faults) { set(n, f, true) })
		}
		n.wait()
		for _, r := range n.targets {
			r.volume.Set(func(f *disk.Faults) { set(n, f, false) })
		}
		return nil
	}
}

func (n *execution) compact() error {
	for _, r := range n.targets {
		ctx, cancel := context.WithTimeout(n.ctx, callTimeout)
		defer cancel()
		got, err := r.etcd.Get(ctx, "none", clientv3.WithCountOnly())
		if err != nil {
			return err
		}
		if _, err := r.etcd.Compact(
			ctx, got.Header.Revision-n.random.Int64N(20), clientv3.WithCompactPhysical(),
		); err != nil {
			return err
		}
	}
	return nil
}

func (n *execution) defragment() error {
	for _, r := range n.targets {
		if _, err := r.etcd.Defragment(n.end, r.etcd.Endpoints()[0]); err != nil {
			return err
		}
	}
	return nil
}

// mayDestroy permits to destroy the data of a member if all members are there, or with the option "force". Two members
// whose data is destroyed would lose the quorum.
func (n *execution) mayDestroy() error {
	if n.Options["force"] != "" {
		return nil
	}
	return n.whole(n.ctx)
}

// destroy changes the data of a member while it does not run.
func (n *execution) destroy(change func(*replica) error) error {
	if err := n.mayDestroy(); err != nil {
		return err
	}
	return n.down(func(r *replica) error {
		r.damage.begin(r)
		return r.hold(func() error { return change(r) })
	})
}

// wipe empties a volume.
func (n *execution) wipe() error {
	return n.destroy(func(r *replica) error {
		r.volume.Restore(disk.Image{})
		return n.forget(r)
	})
}

// rollBack replaces a volume by a copy of it from the beginning of the nemesis.
func (n *execution) rollBack() error {
	images := map[*replica]disk.Image{}
	for _, r := range n.targets {
		images[r] = r.volume.Image()
	}
	n.wait()
	end, cancel := context.WithTimeout(n.ctx, time.Second/2)
	defer cancel()
	n.end = end
	return n.destroy(func(r *replica) error {
		r.volume.Restore(images[r])
		return n.forget(r)
	})
}

// flip inverts a bit of a file.
func (n *execution) flip() error {
	return n.destroy(func(r *replica) error {
		where, err := r.volume.Flip(n.Options["file"], n.random)
		n.note("flipped a bit of %s of replica %d", where, r.index)
		return err
	})
}

// ignoreSync acknowledges syncs without an effect, and then loses the power.
func (n *execution) ignoreSync() error {
	return n.unsynced(func(f *disk.Faults) { f.IgnoreSync = true })
}

// failSync makes every fsync fail. A restarted process still reads the unwritten data from the page cache; only the
// loss of power at the end of the nemesis shows that the disk does not have the data.
func (n *execution) failSync() error {
	return n.unsynced(func(f *disk.Faults) { f.FailSync = true })
}

func (n *execution) unsynced(set func(*disk.Faults)) error {
	if err := n.mayDestroy(); err != nil {
		return err
	}
	for _, r := range n.targets {
		r.damage.begin(r)
		r.volume.Set(set)
	}
	n.wait()
	end, cancel := context.WithTimeout(n.ctx, time.Second/2)
	defer cancel()
	n.end = end
	return n.losePower()
}

// calm ends all faults, also those of nemeses that the end of the run has interrupted.
func (c *cluster) calm() {
	c.calmed.Store(true)
	c.network.Heal()
	for _, r := range c.replicas {
		if r.volume != nil {
			r.volume.Set(func(f *disk.Faults) { *f = disk.Faults{} })
		}
		r.signal(syscall.SIGCONT)
	}
}
