package membership

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// world simulates what the plans act upon: etcd, pods with their claims, and the written intent, each with the
// preconditions that the real ones have. Time passes in ticks.
type world struct {
	t         *testing.T
	replicas  int
	voters    int
	external  bool
	intent    Intent
	version   int // of the intent
	silence   int // ticks without a quorum
	waited    int // ticks since the intent's Joining was set
	formed    bool
	members   []Member
	pods      map[string]*worldPod
	claims    map[string]*Claim
	stuck     map[string]bool // its learner never catches up
	down      map[string]bool // its pod never gets ready
	lost      map[string]bool
	everUsed  map[string]bool   // names that have been members
	dataOf    map[string]uint64 // whose data a claim was made for
	nextID    uint64
	trace     []string
	revisions uint64
	stale     bool // what is done now was planned from an old observation; etcd's own checks are all that is left
}

type worldPod struct {
	Pod
	uid int
	age int // ticks
}

// patience is the number of ticks after which a joining member is overdue.
const patience = 20

func newWorld(t *testing.T) *world {
	return &world{t: t, pods: map[string]*worldPod{}, claims: map[string]*Claim{}, stuck: map[string]bool{},
		down: map[string]bool{}, lost: map[string]bool{}, everUsed: map[string]bool{}, dataOf: map[string]uint64{}, nextID: 100, revisions: 1000}
}

// snapshot is an observation with what preconditions need.
type snapshot struct {
	Observation
	version int
	uids    map[string]int
}

func (w *world) observe() snapshot {
	s := snapshot{version: w.version, uids: map[string]int{}}
	s.Observation = Observation{Cluster: "demo", External: w.external, Replicas: w.replicas, Voters: w.voters, Intent: w.intent, Reached: w.quorate()}
	s.Intent.Founders = slices.Clone(w.intent.Founders)
	s.Silent = !s.Reached && w.silence > 3
	s.Intent.Overdue = w.intent.Joining != "" && w.waited > patience
	if s.Reached {
		for _, m := range w.members {
			m.Healthy, m.Lost = w.healthy(m), w.lost[m.Name]
			if m.Learner && !w.stuck[m.Name] && m.Healthy {
				m.Applied = w.revisions
			}
			if m.Leader {
				m.Applied = w.revisions
			}
			s.Members = append(s.Members, m)
		}
	}
	for _, p := range w.pods {
		s.Pods = append(s.Pods, p.Pod)
		s.uids[p.Name] = p.uid
	}
	for _, c := range w.claims {
		s.Claims = append(s.Claims, *c)
	}
	return s
}

// running tells whether a member's process answers.
func (w *world) healthy(m Member) bool {
	p, ok := w.pods[m.Name]
	return ok && m.Started && p.age > 0 && !p.Failed && !p.Terminating && !w.down[m.Name]
}

func (w *world) quorate() bool {
	voters, healthy := 0, 0
	for _, m := range w.members {
		if !m.Learner {
			voters++
			if w.healthy(m) {
				healthy++
			}
		}
	}
	return w.formed && healthy >= Quorum(voters)
}

func (w *world) member(name string) *Member {
	for i := range w.members {
		if w.members[i].Name == name {
			return &w.members[i]
		}
	}
	return nil
}

// act does what an action says, in the world as it is now, with the preconditions of when it was planned.
func (w *world) act(a Action, seen snapshot) {
	switch a.Kind {
	case Found, Formed, Reserve, Settle:
		w.write(a, seen)
	case AddLearner, Promote, MoveLeader, RemoveMember:
		w.change(a)
	case CreateClaim:
		if w.claims[a.Name] == nil {
			w.claims[a.Name] = &Claim{Name: a.Name}
			if m := w.member(a.Name); m != nil {
				w.dataOf[a.Name] = m.ID
			}
		}
	case DeleteClaim:
		delete(w.claims, a.Name)
		delete(w.dataOf, a.Name)
	case CreatePod, CreateServer:
		if w.pods[a.Name] == nil {
			w.nextID++
			w.pods[a.Name] = &worldPod{Pod: Pod{Name: a.Name, Member: a.Kind == CreatePod}, uid: int(w.nextID)}
		}
	case DeletePod:
		if p := w.pods[a.Name]; p != nil && p.uid == seen.uids[a.Name] {
			w.terminate(a, p)
		}
	}
}

// terminate fails the test when a pod goes on which the quorum depends.
func (w *world) terminate(a Action, p *worldPod) {
	before := w.quorate()
	p.Terminating, p.Ready, p.age = true, false, 0
	voters := slices.DeleteFunc(slices.Clone(w.members), func(m Member) bool { return m.Learner })
	if before && !w.quorate() && len(voters) > 1 && !w.stale {
		w.t.Errorf("%s (%s) lost the quorum", describe(a), a.Reason)
	}
}

func (w *world) write(a Action, seen snapshot) {
	if seen.version != w.version {
		return // a conflict
	}
	w.version++
	switch a.Kind {
	case Found:
		w.intent.Founders = a.Names
		for _, name := range a.Names {
			w.intent.Next = max(w.intent.Next, Ordinal("demo", name)+1)
		}
	case Formed:
		w.intent.Formed, w.intent.Founders = true, nil
	case Reserve:
		w.intent.Joining, w.waited = a.Name, 0
		w.intent.Next = Ordinal("demo", a.Name) + 1
	case Settle:
		w.intent.Joining = ""
	}
}

// change is a request to etcd. What etcd itself refuses does nothing; what would lose the quorum fails the test.
func (w *world) change(a Action) {
	if !w.quorate() {
		return
	}
	switch a.Kind {
	case AddLearner:
		if w.member(a.Name) != nil {
			return // the peer URL exists
		}
		if w.everUsed[a.Name] && w.claims[a.Name] != nil && !w.stale {
			w.t.Errorf("%s joins again and finds old data", a.Name)
		}
		w.everUsed[a.Name] = true
		w.nextID++
		w.members = append(w.members, Member{ID: w.nextID, Name: a.Name, Learner: true})
	case Promote:
		if m := w.member(a.Name); m != nil && m.ID == a.ID && !w.stuck[a.Name] {
			m.Learner = false
		}
	case MoveLeader:
		if from, to := w.member(a.Name), w.member(a.To); from != nil && to != nil && from.Leader && w.healthy(*to) {
			from.Leader, to.Leader = false, true
		}
	case RemoveMember:
		before := slices.Clone(w.members)
		defer func() {
			if w.stale && !w.quorate() {
				w.members = before // etcd refuses
			}
		}()
		w.members = slices.DeleteFunc(w.members, func(m Member) bool { return m.ID == a.ID && m.Name == a.Name })
	}
	if !w.quorate() && !w.stale {
		w.t.Errorf("%s lost the quorum", describe(a))
	}
}

// tick lets everybody do what they do by themselves.
func (w *world) tick() {
	w.waited++
	w.silence++
	if w.quorate() {
		w.silence = 0
	}
	for name, p := range w.pods {
		if p.Terminating {
			delete(w.pods, name)
			continue
		}
		p.age++
		m := w.member(name)
		if p.Member && m != nil && !p.Failed {
			// With the data of another member it ends again and again.
			m.Started = m.Started || w.claims[name] != nil && w.dataOf[name] == m.ID
		}
		p.Ready = !p.Failed && !w.down[name] && (!p.Member || m != nil && !m.Learner && w.healthy(*m))
	}
	w.form()
	w.elect()
}

// form: founders that see a quorum of themselves make a cluster.
func (w *world) form() {
	started := 0
	for _, name := range w.intent.Founders {
		if p := w.pods[name]; p != nil && p.age > 0 && !w.down[name] {
			started++
		}
	}
	if w.formed || len(w.intent.Founders) == 0 || started < Quorum(len(w.intent.Founders)) {
		return
	}
	w.formed = true
	for _, name := range w.intent.Founders {
		w.nextID++
		w.everUsed[name] = true
		w.dataOf[name] = w.nextID
		w.members = append(w.members, Member{ID: w.nextID, Name: name, Started: w.pods[name] != nil})
	}
}

func (w *world) elect() {
	if !w.quorate() {
		return
	}
	for _, m := range w.members {
		if m.Leader && w.healthy(m) {
			return
		}
	}
	elected := false
	for i := range w.members {
		m := &w.members[i]
		m.Leader = !elected && !m.Learner && w.healthy(*m)
		elected = elected || m.Leader
	}
}

// step plans once and acts. It returns false when there is nothing to do but wait.
func (w *world) step() bool {
	seen := w.observe()
	a := Plan(seen.Observation)
	if a.Kind == Wait {
		line := "wait: " + a.Reason
		if a.Reason != "" && (len(w.trace) == 0 || w.trace[len(w.trace)-1] != line) {
			w.trace = append(w.trace, line)
		}
		return false
	}
	w.trace = append(w.trace, describe(a))
	w.act(a, seen)
	return true
}

// run plans, acts and lets time pass until nothing happens any more.
func (w *world) run() {
	quiet := 0
	for i := 0; quiet <= patience+2; i++ {
		if i > 2000 {
			w.t.Fatalf("does not come to rest:\n%s", strings.Join(w.trace[len(w.trace)-40:], "\n"))
		}
		quiet++
		if w.step() {
			quiet = 0
			continue
		}
		w.tick()
	}
}

func describe(a Action) string {
	subject := a.Name
	if len(a.Names) > 0 {
		subject = strings.Join(a.Names, " ")
	}
	if a.To != "" {
		subject += " to " + a.To
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s", a.Kind, subject))
}

// state in one line per replica, for scripts.
func (w *world) state() []string {
	s := w.observe()
	v := newView(s.Observation)
	var lines []string
	for _, m := range v.Members {
		role := "voter"
		if m.Learner {
			role = "learner"
		}
		if m.Leader {
			role = "leader"
		}
		lines = append(lines, fmt.Sprintf("%s %s%s", m.Name, role, map[bool]string{false: " unhealthy"}[m.Healthy]))
	}
	for _, p := range v.Pods {
		if _, ok := v.member(p.Name); !ok {
			lines = append(lines, p.Name+map[bool]string{true: " member pod", false: " server"}[p.Member])
		}
	}
	for _, c := range v.Claims {
		if _, ok := v.member(c.Name); !ok {
			lines = append(lines, c.Name+" claim")
		}
	}
	return lines
}
