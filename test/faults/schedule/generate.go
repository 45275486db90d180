package schedule

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Setting describes the test environment in which a schedule runs. It determines the kinds of faults that are possible.
type Setting struct {
	Replicas int
	Duration time.Duration
	Disks    bool // the data directories are volumes of the test
	Lying    bool // a crash also loses data that was synced
	Network  bool // paths between replicas and clients can be cut
	Packets  bool // the network is a Switch, so faults of single packets are possible
	Memory   bool // the memory of processes can be limited
}

// maker describes a kind of nemesis: whether it is possible, and how Generate chooses its options.
type maker struct {
	kind   string
	weight int
	needs  func(Setting) bool // nil: always
	// destructive is set if the nemesis destroys the data of a member. No other destructive nemesis may begin until the
	// member has been replaced.
	destructive bool
	make        func(n *Nemesis, s Setting, random *rand.Rand)
}

func onNetwork(s Setting) bool { return s.Network && s.Replicas > 1 }
func onClients(s Setting) bool { return s.Network }
func onPackets(s Setting) bool { return s.Packets }
func onMemory(s Setting) bool  { return s.Memory }
func onDisks(s Setting) bool   { return s.Disks }

// onMembers reports whether a fault that destroys a member's data is possible: the member is then replaced by another
// one, which needs a remaining replica.
func onMembers(s Setting) bool { return s.Disks && s.Replicas > 1 }
func onLying(s Setting) bool   { return s.Lying && s.Disks && s.Replicas > 1 }

func set(name string, values ...string) func(*Nemesis, Setting, *rand.Rand) {
	return func(n *Nemesis, _ Setting, random *rand.Rand) { n.Options[name] = pick(random, values) }
}

func pick[T any](random *rand.Rand, values []T) T { return values[random.IntN(len(values))] }

// disturbPackets chooses the probabilities with which packets are lost, repeated, and delayed behind later ones.
func disturbPackets(n *Nemesis, _ Setting, random *rand.Rand) {
	n.Options["way"] = pick(random, []string{"both", "both", "in", "out"})
	n.Options["lose"] = pick(random, []string{"0", "0.02", "0.1", "0.4"})
	n.Options["duplicate"] = pick(random, []string{"0", "0.1", "0.5"})
	n.Options["reorder"] = pick(random, []string{"0.05", "0.3"})
	n.Options["by"] = pick(random, []string{"2ms", "20ms", "200ms"})
}

var losses = []string{"nothing", "all", "last", "scattered"}

func makers() []maker {
	return []maker{
		{kind: "partition", weight: 8, needs: onNetwork, make: func(n *Nemesis, s Setting, random *rand.Rand) {
			n.Options["way"] = pick(random, []string{"both", "both", "in", "out"})
			if s.Replicas == 5 && random.IntN(2) == 0 {
				first := random.IntN(5)
				n.Target = fmt.Sprintf("%d,%d", first, (first+1+random.IntN(4))%5)
			}
		}},
		{kind: "bridge", weight: 3, needs: onNetwork},
		{kind: "flap", weight: 3, needs: onNetwork, make: set("every", "100ms", "400ms", "1200ms")},
		{kind: "delay", weight: 3, needs: onNetwork, make: set("by", "20ms", "150ms", "600ms")},
		{kind: "reset", weight: 3, needs: onNetwork, make: set("every", "50ms", "300ms", "1s")},
		{kind: "clients", weight: 3, needs: onClients, make: set("way", "both", "in", "out")},
		{kind: "packets", weight: 8, needs: onPackets, make: disturbPackets},
		{kind: "kill", weight: 6},
		{kind: "stop", weight: 5},
		{kind: "memory", weight: 1, make: set("limit", "48MiB", "96MiB")},
		{kind: "memory-pressure", weight: 4, needs: onMemory, make: set("to", "0.3", "0.7", "0.9")},
		{kind: "power-loss", weight: 8, needs: onDisks, make: func(n *Nemesis, _ Setting, random *rand.Rand) {
			n.Options["lose"] = pick(random, losses)
			if random.IntN(4) == 0 {
				n.Target = "all"
			}
		}},
		{kind: "slow-sync", weight: 5, needs: onDisks, make: func(n *Nemesis, _ Setting, random *rand.Rand) {
			n.Options["by"] = pick(random, []string{"10ms", "80ms", "400ms", "1500ms", "5s"})
			if random.IntN(4) == 0 {
				n.Target = "all"
			}
		}},
		{kind: "fail-sync", weight: 4, needs: onMembers, destructive: true, make: set("lose", "all", "last", "scattered")},
		{kind: "fail-write", weight: 2, needs: onDisks},
		{kind: "fail-read", weight: 1, needs: onDisks},
		{kind: "full", weight: 3, needs: onDisks, make: set("free", "0", "1000000", "60000000")},
		{kind: "compact", weight: 2},
		{kind: "defragment", weight: 2},
		{kind: "wipe", weight: 5, needs: onMembers, destructive: true},
		{kind: "roll-back", weight: 5, needs: onMembers, destructive: true},
		{kind: "flip", weight: 2, needs: onMembers, destructive: true, make: set("file", "/wal/")},
		{kind: "ignore-sync", weight: 14, needs: onLying, destructive: true, make: set("lose", "all", "last", "scattered")},
	}
}

// Generate returns the schedule that a seed determines.
func Generate(seed uint64, s Setting) (schedule Schedule) {
	random := rand.New(rand.NewPCG(seed, 0))
	var possible []maker
	for _, m := range makers() {
		if m.needs == nil || m.needs(s) {
			for range m.weight {
				possible = append(possible, m)
			}
		}
	}
	busy := time.Duration(0) // time at which the effect of the last destructive nemesis ends
	for at := 500 * time.Millisecond; at < s.Duration; at += milliseconds(random, 100, 3000) {
		m := pick(random, possible)
		n := Nemesis{
			ID: len(schedule) + 1, At: at, For: milliseconds(random, 200, 4000), Kind: m.kind, Options: map[string]string{},
		}
		n.Target = pick(random, []string{"leader", "leader", "follower", strconv.Itoa(random.IntN(s.Replicas))})
		if m.make != nil {
			m.make(&n, s, random)
		}
		if m.destructive && at < busy {
			continue
		}
		if m.destructive {
			busy = at + n.For + 4*time.Second
		}
		n.For = min(n.For, s.Duration-at)
		schedule = append(schedule, n)
	}
	return schedule
}

func milliseconds(random *rand.Rand, from, to int) time.Duration {
	return time.Duration(from+random.IntN(to-from)) * time.Millisecond
}

// Within returns the nemeses of a schedule that a setting permits.
func (s Schedule) Within(setting Setting) (permitted Schedule) {
	for _, m := range makers() {
		if m.needs == nil || m.needs(setting) {
			for _, n := range s {
				if n.Kind == m.kind {
					permitted = append(permitted, n)
				}
			}
		}
	}
	slices.SortStableFunc(permitted, func(a, b Nemesis) int { return cmp.Compare(a.At, b.At) })
	return permitted
}

// Kinds returns two lists, separated by commas: the kinds of faults that a setting permits, and the other kinds.
func Kinds(s Setting) (possible, others string) {
	var with, without []string
	for _, m := range makers() {
		if m.needs == nil || m.needs(s) {
			with = append(with, m.kind)
		} else {
			without = append(without, m.kind)
		}
	}
	return strings.Join(with, ", "), strings.Join(without, ", ")
}
