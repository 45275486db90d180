// Package membership decides the next safe step of one cluster: who founds it, who joins and leaves its etcd, which
// pods and claims exist, and which pod restarts next. Plan is a pure function from what was observed to exactly one
// action. Every intent is written before it is acted upon, so that any step can be derived again after a crash.
//
// Invariants:
//   - One membership change is in flight at a time.
//   - A voter is removed, and the pod of a healthy voter deleted, only while the healthy rest is a quorum.
//   - A member leaves in this order: member, pod, claim. It joins as a learner: intent, member, claim, pod, promotion.
//   - A member's name is never used again, so that no member ever finds the data of another.
package membership

// Observation is what Plan judges. Members are read linearizably, pods and claims not from a cache.
type Observation struct {
	Cluster  string // prefix of all names
	External bool   // etcd is somebody else's: only stateless servers are planned
	Replicas int    // wanted API servers
	Voters   int    // wanted voters: 1, 3 or 5
	Intent   Intent
	Reached  bool // a quorum answered; Members is true
	Silent   bool // none has answered for a while
	Members  []Member
	Pods     []Pod
	Claims   []Claim
}

// Intent is what was written down before it was begun.
type Intent struct {
	Founders []string
	Formed   bool
	Next     int    // ordinals from here on were never used by a member
	Joining  string // the member being added
	Overdue  bool   // it has had its time
}

// Member is one entry of etcd's member list with what the member itself says.
type Member struct {
	ID      uint64
	Name    string
	Learner bool
	Started bool // it has ever joined
	Healthy bool // it answers, sees a leader and has no alarm
	Leader  bool
	Applied uint64 // raft index
	Lost    bool   // unhealthy for too long, while others run well with the same template
}

// Pod is one replica.
type Pod struct {
	Name        string
	Member      bool // it runs a member; otherwise it is a stateless server
	Ready       bool
	Outdated    bool // it was made for another spec
	Failed      bool // it ended and will not be restarted
	Terminating bool
}

// Claim is the volume claim of a member.
type Claim struct {
	Name        string
	Lost        bool // it is there, its volume is not
	Terminating bool
}

// Kind names an action.
type Kind string

// The actions. Found, Formed, Reserve and Settle write the intent.
const (
	Wait         Kind = "wait"
	Found        Kind = "found"   // Names become the founders
	Formed       Kind = "formed"  // the founders made a cluster
	Reserve      Kind = "reserve" // Name will join
	Settle       Kind = "settle"  // nobody is joining any more
	AddLearner   Kind = "add-learner"
	Promote      Kind = "promote"
	MoveLeader   Kind = "move-leader" // from Name to To
	RemoveMember Kind = "remove-member"
	CreateClaim  Kind = "create-claim"
	DeleteClaim  Kind = "delete-claim"
	CreatePod    Kind = "create-pod"    // of a member
	CreateServer Kind = "create-server" // a stateless one
	DeletePod    Kind = "delete-pod"
)

// Action is the one thing to do next.
type Action struct {
	Kind   Kind
	Name   string
	Names  []string
	ID     uint64 // of the member
	To     string
	ToID   uint64
	Reason string
}

// Plan returns the next action. Wait without a reason means that all is as wanted.
func Plan(o Observation) Action {
	var steps []func(*view) (Action, bool)
	switch {
	case o.External:
		steps = []func(*view) (Action, bool){(*view).servers, (*view).mend, (*view).roll}
	case !o.Intent.Formed:
		steps = []func(*view) (Action, bool){(*view).found}
	case !o.Reached:
		steps = []func(*view) (Action, bool){(*view).survive}
	default:
		steps = []func(*view) (Action, bool){
			(*view).revive, (*view).clean, (*view).servers, (*view).mend,
			(*view).join, (*view).replace, (*view).shrink, (*view).grow, (*view).roll,
		}
	}
	v := newView(o)
	for _, step := range steps {
		if action, ok := step(v); ok {
			return action
		}
	}
	return Action{Kind: Wait}
}

// DefaultVoters is the largest odd number that fits the replicas, at most 5.
func DefaultVoters(replicas int) int {
	switch {
	case replicas >= 5:
		return 5
	case replicas >= 3:
		return 3
	}
	return 1
}

// Quorum of a number of voters.
func Quorum(voters int) int { return voters/2 + 1 }
