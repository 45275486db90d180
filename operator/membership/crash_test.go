package membership

import (
	"fmt"
	"math/rand"
	"strings"
	"testing"

	"quorate.dev/test/upstream"
)

// runLifecycle scales, repairs and updates a cluster. It calls pause before each step.
func runLifecycle(w *world, pause func()) {
	settle := func(changes ...string) {
		for _, change := range changes {
			w.execute(strings.Fields(change))
		}
		w.runWith(pause)
	}
	settle("want 1 1")
	settle("want 3 3")
	settle("database demo-0 400 100 2048", "database demo-1 400 100 2048")
	settle("want 6 5")
	settle("wipe demo-1", "kill demo-1")
	settle("outdate")
	settle("want 0 1")
	settle("want 3 3")
	settle("want 1 1")
}

// runWith is run with a callback before each step.
func (w *world) runWith(pause func()) {
	for quiet, i := 0, 0; quiet <= joinTimeout+2 && !w.t.Failed(); i++ {
		if i > 4000 {
			w.t.Fatalf("did not settle:\n%s", strings.Join(w.trace[len(w.trace)-40:], "\n"))
		}
		pause()
		quiet++
		if w.step() {
			quiet = 0
			continue
		}
		w.tick()
	}
}

// checkSettled fails the test unless the world matches the spec.
func (w *world) checkSettled() {
	w.t.Helper()
	voters, ready := 0, 0
	for _, m := range w.members {
		if m.Learner || !w.healthy(m) {
			w.t.Errorf("member %s is not a healthy voter", m.Name)
		}
		voters++
	}
	for _, p := range w.pods {
		if p.Ready && !p.Terminating && !p.Outdated {
			ready++
		}
	}
	if voters != w.voters || ready != w.replicas || len(w.pods) != w.replicas || len(w.claims) != w.voters ||
		w.intent.JoiningMember != "" {
		w.t.Errorf("%d of %d voters, %d of %d ready pods (%d pods), %d claims, joining member %q:\n%s",
			voters, w.voters, ready, w.replicas, len(w.pods), len(w.claims), w.intent.JoiningMember,
			strings.Join(w.trace[max(0, len(w.trace)-30):], "\n"))
	}
}

// TestCrashAndStaleViewAtEveryStep interrupts the operator before each step. A second operator executes one action that
// it planned from an observation delay steps old.
func TestCrashAndStaleViewAtEveryStep(t *testing.T) {
	upstream.NeedsTime(t)
	total := 0
	runLifecycle(newWorld(t), func() { total++ })
	for _, delay := range []int{1, 2, 5, 15} {
		for at := delay; at < total; at++ {
			t.Run(fmt.Sprintf("step %d, view %d steps old", at, delay), func(t *testing.T) {
				w := newWorld(t)
				var seen []snapshot
				runLifecycle(w, func() {
					seen = append(seen, w.observe())
					if len(seen) == at+1 {
						w.replay(seen[at-delay])
					}
				})
				w.checkSettled()
			})
		}
	}
}

// TestCrashAndStaleViewDuringRecovery does the same between the loss of the quorum and the end of the recovery.
func TestCrashAndStaleViewDuringRecovery(t *testing.T) {
	recovered := func(w *world, pause func()) {
		for _, line := range []string{
			"want 3 3", "run", "wipe demo-0", "kill demo-0", "wipe demo-1", "kill demo-1", "recover",
		} {
			w.execute(strings.Fields(line))
		}
		w.runWith(pause)
		if w.recovery.Stage != RecoveryRestoring || len(w.pods) > 0 {
			w.t.Fatalf("stage %q with %d pods:\n%s", w.recovery.Stage, len(w.pods), strings.Join(w.trace, "\n"))
		}
		w.execute([]string{"recovered"})
		w.runWith(pause)
		w.checkSettled()
	}
	total := 0
	recovered(newWorld(t), func() { total++ })
	for _, delay := range []int{1, 2, 5, 15} {
		for at := delay; at < total; at++ {
			t.Run(fmt.Sprintf("step %d, view %d steps old", at, delay), func(t *testing.T) {
				w := newWorld(t)
				var seen []snapshot
				recovered(w, func() {
					seen = append(seen, w.observe())
					if len(seen) == at+1 {
						w.replay(seen[at-delay])
					}
				})
			})
		}
	}
}

func (w *world) replay(old snapshot) {
	w.stale = true
	defer func() { w.stale = false }()
	a := Plan(old.Observation)
	w.trace = append(w.trace, "stale: "+describe(a))
	w.act(a, old)
}

// TestNoActionLosesTheQuorum disturbs the cluster at random. No planned action loses the quorum, and once the
// disturbances end, the cluster matches the spec.
func TestNoActionLosesTheQuorum(t *testing.T) {
	for seed := range int64(400) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			random := rand.New(rand.NewSource(seed))
			w := newWorld(t)
			w.replicas, w.voters = 3, 3
			var old []snapshot
			for range 150 {
				w.disturbRandomly(random)
				old = append(old, w.observe())
				if random.Intn(10) == 0 {
					w.replay(old[max(0, len(old)-1-random.Intn(6))])
				}
				if !w.step() || random.Intn(3) == 0 {
					w.tick()
				}
				if t.Failed() {
					t.Fatal(strings.Join(w.trace, "\n"))
				}
			}
			w.down, w.stuck, w.lost = map[string]bool{}, map[string]bool{}, map[string]bool{}
			if w.run(); w.replicas == 0 {
				w.replicas, w.voters = 3, 3 // the cluster scales up from hibernation
				w.run()
			}
			if w.hasQuorum() {
				w.checkSettled()
			}
		})
	}
}

// disturbRandomly breaks a replica or changes the spec from time to time. It never loses the quorum by itself.
func (w *world) disturbRandomly(random *rand.Rand) {
	if random.Intn(4) != 0 || len(w.members) == 0 {
		return
	}
	name := w.members[random.Intn(len(w.members))].Name
	switch random.Intn(14) {
	case 13:
		w.unproven[name] = true
	case 10:
		w.replicas, w.voters = 0, 1
	case 11:
		w.databases[name] = Database{Size: 2000 << 20, InUse: 100 << 20, Quota: 2000 << 20, NoSpace: random.Intn(2) == 0}
	case 12:
		w.request = "" // the operator restarts
	case 0:
		w.voters = []int{1, 3, 5}[random.Intn(3)]
		w.replicas = w.voters + random.Intn(2)
	case 1:
		w.undoIfQuorumLost(func() { w.down[name] = true }, func() { delete(w.down, name) })
	case 2:
		w.down = map[string]bool{}
	case 3:
		if claim := w.claims[name]; claim != nil {
			w.undoIfQuorumLost(func() { delete(w.claims, name); delete(w.pods, name) }, func() {})
		}
	case 4:
		w.stuck[Name("demo", w.intent.NextOrdinal)] = true
	case 5:
		w.lost[name] = w.down[name]
	case 6:
		w.execute([]string{"outdate"})
	case 7:
		if w.hasQuorum() {
			w.execute([]string{"orphan", Name("demo", w.intent.NextOrdinal+20)})
		}
	case 8:
		w.execute([]string{"lead", name})
	case 9:
		delete(w.claims, name) // the process still responds, from deleted files
	}
}

// undoIfQuorumLost executes do, and reverts it if the quorum is lost.
func (w *world) undoIfQuorumLost(do, undo func()) {
	pods, claims := w.pods, w.claims
	w.pods, w.claims = map[string]*worldPod{}, map[string]*Claim{}
	for name, pod := range pods {
		w.pods[name] = pod
	}
	for name, claim := range claims {
		w.claims[name] = claim
	}
	do()
	if !w.hasQuorum() {
		undo()
		w.pods, w.claims = pods, claims
	}
}
