package membership

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"
)

// world simulates etcd, pods, claims and the persisted intent, with the preconditions of the real APIs. Time is in
// ticks.
type world struct {
	t                   *testing.T
	replicas            int
	voters              int
	external            bool
	restoring           bool
	recovery            Recovery
	intent              Intent
	version             int // resource version of the intent
	noQuorum            int // ticks without a quorum
	joining             int // ticks since the intent's JoiningMember was set
	bootstrapped        bool
	members             []Member
	pods                map[string]*worldPod
	claims              map[string]*Claim
	stuck               map[string]bool // members that never catch up as learners
	down                map[string]bool // members whose pods never become ready
	lost                map[string]bool
	kept                map[string]bool   // members that have acknowledged writes which the others lack
	unproven            map[string]bool   // members that may have them
	soleCopies          map[string]bool   // members that were removed then
	released            []string          // names of released claims
	refuses             map[string]bool   // members whose volumes do not have their data
	usedNames           map[string]bool   // names that have been members
	dataOf              map[string]uint64 // claim name to ID of the member that wrote the data
	revisionOf          map[string]int64
	nextID              uint64
	trace               []string
	now                 time.Time
	databases           map[string]Database
	defragmented        map[string]time.Time
	defragging          map[string]int  // ticks until etcd has finished, by member
	defragmentingMember string          // member of the persisted defragmentation
	request             string          // member whose response the operator waits for
	failure             string          // of the next response
	failures            int             // of defragmentations since the last success
	full                map[string]bool // members whose defragmentations fail
	retryAfter          time.Time
	revisions           uint64
	held                string
	upgradeHeld         string
	// stale is set while the current action was planned from a stale observation, so that only etcd's own checks protect
	// the quorum.
	stale bool
}

type worldPod struct {
	Pod
	uid int
	age int // ticks
}

// Timeouts, in ticks.
const (
	joinTimeout       = 20
	quorumLossTimeout = 3

	defragmentationTime = 5
)

func newWorld(t *testing.T) *world {
	return &world{t: t, pods: map[string]*worldPod{}, claims: map[string]*Claim{}, stuck: map[string]bool{},
		down: map[string]bool{}, lost: map[string]bool{}, kept: map[string]bool{}, refuses: map[string]bool{},
		unproven: map[string]bool{}, soleCopies: map[string]bool{}, usedNames: map[string]bool{}, dataOf: map[string]uint64{},
		revisionOf: map[string]int64{},
		nextID:     100, revisions: 1000, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), databases: map[string]Database{},
		defragmented: map[string]time.Time{}, defragging: map[string]int{}, full: map[string]bool{}}
}

// snapshot is an observation with the versions that preconditions compare.
type snapshot struct {
	Observation
	version int
	uids    map[string]int
}

func (w *world) observe() snapshot {
	s := snapshot{version: w.version, uids: map[string]int{}}
	s.Observation = Observation{
		Cluster: "demo", External: w.external, Restoring: w.restoring, Replicas: w.replicas, Voters: w.voters,
		Intent: w.intent, HasQuorum: w.hasQuorum(), ReleasedNames: slices.Clone(w.released), Recovery: w.recovery,
		RolloutHeld: w.held, UpgradeHeld: w.upgradeHeld, Defragmentation: w.defragmentation(),
	}
	s.Recovery.Survivors = w.survivors()
	s.Intent.InitialMembers = slices.Clone(w.intent.InitialMembers)
	s.QuorumLost = !s.HasQuorum && w.noQuorum > quorumLossTimeout
	s.Intent.JoinTimedOut = w.intent.JoiningMember != "" && w.joining > joinTimeout
	if s.HasQuorum {
		for _, m := range w.members {
			m.Healthy, m.Lost, m.Refuses, m.Kept = w.healthy(m), w.lost[m.Name] &&
				!w.healthy(m), w.refuses[m.Name], w.kept[m.Name]
			m.Unproven = w.unprovenReason(m)
			m.Database, m.Defragmented = w.databases[m.Name], w.defragmented[m.Name]
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

func (w *world) defragmentation() Defragmentation {
	return Defragmentation{
		Enabled: true, FreePercent: 50, MinFree: 100 << 20, Interval: time.Hour, Now: w.now,
		RetryAfter: w.retryAfter, Held: w.held, Failures: w.failures, Member: w.defragmentingMember,
		Running:  w.request != "" && w.defragging[w.request] > 0,
		Finished: w.request != "" && w.defragging[w.request] == 0, Failure: w.failure,
	}
}

// requestDefragmentation fails the test if another member is being defragmented, or if etcd has no quorum without the
// member.
func (w *world) requestDefragmentation(a Action) {
	w.request = a.Name
	w.defragging[a.Name] = defragmentationTime
	if len(w.defragging) > 1 {
		w.t.Errorf("%d members are defragmented at the same time", len(w.defragging))
	}
	w.mustServe(a)
}

// mustServe fails the test unless the voters that are not being defragmented form a quorum.
func (w *world) mustServe(a Action) {
	voters, serving := 0, 0
	for _, m := range w.members {
		if !m.Learner {
			voters++
			if w.healthy(m) && w.defragging[m.Name] == 0 {
				serving++
			}
		}
	}
	if serving < Quorum(voters) && voters > 1 && !w.stale && w.replicas > 0 && w.hasQuorum() {
		w.t.Errorf("%s (%s) leaves %d of %d voters while one is being defragmented", describe(a), a.Reason, serving, voters)
	}
}

// healthy reports whether a member's process responds.
func (w *world) healthy(m Member) bool {
	p, ok := w.pods[m.Name]
	return ok && m.Started && p.age > 0 && !p.Failed && !p.Terminating && !w.down[m.Name] &&
		!w.refuses[m.Name] && !w.kept[m.Name]
}

func (w *world) hasQuorum() bool {
	voters, healthy := 0, 0
	for _, m := range w.members {
		if !m.Learner {
			voters++
			if w.healthy(m) {
				healthy++
			}
		}
	}
	return w.bootstrapped && healthy >= Quorum(voters)
}

func (w *world) member(name string) *Member {
	for i := range w.members {
		if w.members[i].Name == name {
			return &w.members[i]
		}
	}
	return nil
}

// act executes an action on the present state, with the preconditions of the observation that it was planned from.
func (w *world) act(a Action, seen snapshot) {
	switch a.Kind {
	case Bootstrap, Bootstrapped, StartJoin, FinishJoin, StartRecovery, RestoreQuorum, DeclineRecovery:
		w.write(a, seen)
	case AddLearner, Promote, MoveLeader, RemoveMember:
		w.change(a)
	case StartDefragmentation, ResumeDefragmentation, FinishDefragmentation:
		w.write(a, seen)
	case CreateClaim:
		if w.claims[a.Name] == nil {
			w.claims[a.Name] = &Claim{Name: a.Name}
			if m := w.member(a.Name); m != nil {
				w.dataOf[a.Name] = m.ID
			}
		}
	case DeleteClaim, KeepClaim, ReleaseClaim:
		w.changeClaim(a, seen)
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

// terminate fails the test if deleting the pod loses the quorum.
func (w *world) terminate(a Action, p *worldPod) {
	before := w.hasQuorum()
	p.Terminating, p.Ready, p.age = true, false, 0
	voters := slices.DeleteFunc(slices.Clone(w.members), func(m Member) bool { return m.Learner })
	if before && !w.hasQuorum() && len(voters) > 1 && !w.stale && w.replicas > 0 {
		w.t.Errorf("%s (%s) lost the quorum", describe(a), a.Reason)
	}
	if before {
		w.mustServe(a)
	}
}

func (w *world) write(a Action, seen snapshot) {
	if seen.version != w.version {
		return // a conflict
	}
	w.version++
	switch a.Kind {
	case Bootstrap:
		w.intent.InitialMembers = a.Names
		for _, name := range a.Names {
			w.intent.NextOrdinal = max(w.intent.NextOrdinal, Ordinal("demo", name)+1)
		}
	case Bootstrapped:
		w.intent.Bootstrapped, w.intent.InitialMembers = true, nil
	case StartJoin:
		w.intent.JoiningMember, w.joining = a.Name, 0
		w.intent.NextOrdinal = Ordinal("demo", a.Name) + 1
	case FinishJoin:
		w.intent.JoiningMember = ""
	case DeclineRecovery:
		w.recovery.Stage = NoRecovery
	case StartRecovery:
		w.recovery.Stage, w.recovery.SelectedName = RecoveryStopping, a.Name
	case RestoreQuorum:
		w.restoreQuorum(a)
	case StartDefragmentation, ResumeDefragmentation:
		w.defragmentingMember = a.Name
		w.requestDefragmentation(a)
		if w.full[a.Name] {
			w.failure = "no space left on device"
		}
	case FinishDefragmentation:
		w.defragmentingMember, w.request, w.failure = "", "", ""
		w.retryAfter = time.Time{}
		if a.Reason != "" {
			w.failures++
			w.retryAfter = w.now.Add(time.Minute)
			return
		}
		w.failures = 0
		w.defragmented[a.Name] = w.now
		db := w.databases[a.Name]
		db.Size = db.InUse
		db.NoSpace = false
		w.databases[a.Name] = db
	}
}

// restoreQuorum fails the test if a member still runs: it may belong to the old quorum.
func (w *world) restoreQuorum(a Action) {
	if len(w.pods) > 0 {
		w.t.Errorf("recovering while %d pods exist", len(w.pods))
	}
	w.recovery.Stage, w.restoring = RecoveryRestoring, true
	w.intent = Intent{InitialMembers: a.Names, NextOrdinal: max(w.intent.NextOrdinal, Ordinal("demo", a.Name)+1)}
	w.members, w.bootstrapped = nil, false
	for _, claim := range w.claims {
		claim.Replaced = false // the status no longer has volumes
	}
}

// survivors returns the members whose processes respond, with the revisions of the script.
func (w *world) survivors() []Survivor {
	var survivors []Survivor
	for _, m := range w.members {
		if w.healthy(m) {
			survivors = append(survivors, Survivor{Name: m.Name, Revision: w.revisionOf[m.Name]})
		}
	}
	return survivors
}

// change is a request to etcd. Requests that etcd rejects do nothing; requests that lose the quorum fail the test.
func (w *world) change(a Action) {
	if !w.hasQuorum() {
		return
	}
	switch a.Kind {
	case AddLearner:
		if w.member(a.Name) != nil {
			return // the peer URL exists
		}
		if w.usedNames[a.Name] && w.claims[a.Name] != nil && !w.stale {
			w.t.Errorf("%s joins again with old data", a.Name)
		}
		w.usedNames[a.Name] = true
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
		w.recordRemoval(a)
		defer func() {
			if w.stale && !w.hasQuorum() {
				w.members = before // etcd rejects the request
			}
		}()
		w.members = slices.DeleteFunc(w.members, func(m Member) bool { return m.ID == a.ID && m.Name == a.Name })
	}
	if !w.hasQuorum() && !w.stale {
		w.t.Errorf("%s lost the quorum", describe(a))
	}
}

// tick advances kubelets, API servers and etcd.
func (w *world) tick() {
	w.joining++
	w.noQuorum++
	w.now = w.now.Add(time.Second)
	for name := range w.defragging {
		w.defragging[name]--
		if p := w.pods[name]; w.defragging[name] == 0 || p == nil || p.Terminating || p.Failed {
			if w.defragging[name] > 0 {
				w.failure = "connection lost"
			}
			delete(w.defragging, name)
		}
	}
	if w.hasQuorum() {
		w.noQuorum = 0
	}
	for name, p := range w.pods {
		if p.Terminating {
			delete(w.pods, name)
			continue
		}
		p.age++
		m := w.member(name)
		if p.Member && m != nil && !p.Failed {
			// A member with the data of another member fails at startup.
			m.Started = m.Started || w.claims[name] != nil && w.dataOf[name] == m.ID
		}
		p.Ready = !p.Failed && !w.down[name] && !w.refuses[name] && (!p.Member || m != nil && !m.Learner && w.healthy(*m))
	}
	w.bootstrap()
	w.elect()
}

// bootstrap creates the etcd cluster once a quorum of the initial members runs.
func (w *world) bootstrap() {
	started := 0
	for _, name := range w.intent.InitialMembers {
		if p := w.pods[name]; p != nil && p.age > 0 && !w.down[name] {
			started++
		}
	}
	if w.bootstrapped || len(w.intent.InitialMembers) == 0 || started < Quorum(len(w.intent.InitialMembers)) {
		return
	}
	w.bootstrapped = true
	for _, name := range w.intent.InitialMembers {
		w.nextID++
		w.usedNames[name] = true
		w.dataOf[name] = w.nextID
		w.members = append(w.members, Member{ID: w.nextID, Name: name, Started: w.pods[name] != nil})
	}
}

func (w *world) elect() {
	if !w.hasQuorum() {
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

// step plans and executes one action. It returns false if the plan is to wait.
func (w *world) step() bool {
	seen := w.observe()
	a := Plan(seen.Observation)
	if a.Kind == Wait {
		line := describe(a)
		if a.Reason != "" && (len(w.trace) == 0 || w.trace[len(w.trace)-1] != line) {
			w.trace = append(w.trace, line)
		}
		return false
	}
	w.trace = append(w.trace, describe(a))
	w.act(a, seen)
	w.checkApply(seen.Observation, a)
	return true
}

// checkApply compares the plan from an applied observation with the plan from a fresh one.
func (w *world) checkApply(before Observation, a Action) {
	applied, certain := before.Apply(a)
	if !certain {
		return
	}
	if got, want := Plan(applied), Plan(w.observe().Observation); !reflect.DeepEqual(got, want) {
		w.t.Errorf("after %s: planned %s from Apply, %s from a fresh observation", describe(a), describe(got), describe(want))
	}
}

// run plans, acts and advances the time until nothing changes for longer than the timeouts.
func (w *world) run() {
	quiet := 0
	for i := 0; quiet <= joinTimeout+2; i++ {
		if i > 2000 {
			w.t.Fatalf("did not settle:\n%s", strings.Join(w.trace[len(w.trace)-40:], "\n"))
		}
		quiet++
		if w.step() {
			quiet = 0
			continue
		}
		w.tick()
	}
}

// describe returns a line of a script.
func describe(a Action) string {
	switch {
	case a.Kind == Wait:
		return a.Reason + "..."
	case len(a.Names) > 0:
		return fmt.Sprintf("%s %s", a.Kind, strings.Join(a.Names, " "))
	case a.Kind == FinishDefragmentation && a.Reason != "":
		return fmt.Sprintf("%s %s: %s", a.Kind, a.Name, a.Reason)
	case a.To != "":
		return fmt.Sprintf("%s %s to %s", a.Kind, a.Name, a.To)
	}
	return strings.TrimSpace(fmt.Sprintf("%s %s", a.Kind, a.Name))
}

// state returns one line per replica, for scripts.
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
