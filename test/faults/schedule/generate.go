package schedule

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"
)

// Setting is where a schedule runs.
type Setting struct {
	Replicas int
	Duration time.Duration
	Disks    bool // the data directories are volumes of the test
	Lying    bool // disks also lose what they have acknowledged
	Network  bool // replicas and clients are connected through proxies
}

// maker makes the options of a nemesis, and adjusts it.
type maker struct {
	kind   string
	weight int
	needs  func(Setting) bool // nil: always
	// destructive means that the data of a member is lost: no other nemesis of this sort may follow until the member is back.
	destructive bool
	make        func(n *Nemesis, s Setting, random *rand.Rand)
}

func onNetwork(s Setting) bool { return s.Network && s.Replicas > 1 }
func onClients(s Setting) bool { return s.Network }
func onDisks(s Setting) bool   { return s.Disks }

// onMembers is for faults after which a member must be replaced.
func onMembers(s Setting) bool { return s.Disks && s.Replicas > 1 }
func onLying(s Setting) bool   { return s.Lying && s.Disks && s.Replicas > 1 }

func set(name string, values ...string) func(*Nemesis, Setting, *rand.Rand) {
	return func(n *Nemesis, _ Setting, random *rand.Rand) { n.Options[name] = pick(random, values) }
}

func pick[T any](random *rand.Rand, values []T) T { return values[random.IntN(len(values))] }

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
		{kind: "kill", weight: 6},
		{kind: "stop", weight: 5},
		{kind: "memory", weight: 1, make: set("limit", "48MiB", "96MiB")},
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

// Generate returns the schedule of a seed.
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
	busy := time.Duration(0) // until when a destructive nemesis lasts
	for at := 500 * time.Millisecond; at < s.Duration; at += milliseconds(random, 100, 3000) {
		m := pick(random, possible)
		n := Nemesis{ID: len(schedule) + 1, At: at, For: milliseconds(random, 200, 4000), Kind: m.kind, Options: map[string]string{}}
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

// Kinds returns the names of the kinds of faults that a setting permits, and of those that it does not.
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
