package membership

import (
	"fmt"
	"slices"
	"strings"
)

// Kind is the kind of an action.
type Kind string

// The kinds of actions. Those of a recovery, and Bootstrap, Bootstrapped, StartJoin and FinishJoin, update the intent;
// those of a defragmentation update the intent and etcd; the others change etcd or the hosting cluster.
const (
	Wait         Kind = "Wait"
	Bootstrap    Kind = "Bootstrap"    // Names become the initial members
	Bootstrapped Kind = "Bootstrapped" // the initial members have formed a quorum
	StartJoin    Kind = "StartJoin"    // Name becomes the joining member
	FinishJoin   Kind = "FinishJoin"   // there is no joining member any more
	AddLearner   Kind = "AddLearner"
	// StartRecovery selects the member Name and enters RecoveryStopping. RestoreQuorum makes it the only initial member of an
	// etcd that is not bootstrapped, and enters RecoveryRestoring. DeclineRecovery records a request as not needed.
	StartRecovery   Kind = "StartRecovery"
	RestoreQuorum   Kind = "RestoreQuorum"
	DeclineRecovery Kind = "DeclineRecovery"

	// StartDefragmentation records that Name is being defragmented and sends the request. ResumeDefragmentation sends
	// it again. FinishDefragmentation records the result: the failure in Reason, or "".
	StartDefragmentation  Kind = "StartDefragmentation"
	ResumeDefragmentation Kind = "ResumeDefragmentation"
	FinishDefragmentation Kind = "FinishDefragmentation"

	Promote      Kind = "Promote"
	MoveLeader   Kind = "MoveLeader" // from Name to To
	RemoveMember Kind = "RemoveMember"
	CreateClaim  Kind = "CreateClaim"
	DeleteClaim  Kind = "DeleteClaim"
	CreatePod    Kind = "CreatePod"    // of a member
	CreateServer Kind = "CreateServer" // pod of a stateless server
	DeletePod    Kind = "DeletePod"
)

// Action is the next action.
type Action struct {
	Kind   Kind
	Name   string   // replica that the action is about
	Names  []string // of Bootstrap
	ID     uint64   // etcd's ID of the member Name
	To     string   // of MoveLeader: the next leader
	ToID   uint64
	Reason string // of Wait: what Plan waits for, as a sentence; of the others: the cause, as a clause
}

// Describe describes the action for events and conditions.
func (a Action) Describe() string {
	switch a.Kind {
	case Wait:
		return a.Reason
	case Bootstrap:
		return "Bootstrapping etcd with initial members " + strings.Join(a.Names, ", ")
	case Bootstrapped:
		return "Initial members formed a quorum"
	case StartRecovery:
		return "Stopping all replicas to recover etcd from " + a.Name + ": " + a.Reason
	case RestoreQuorum:
		return "Recovering etcd with the only member " + a.Name
	case DeclineRecovery:
		return "Not recovering etcd: " + a.Reason
	case AddLearner:
		return "Added learner " + a.Name + "; waiting for it to catch up"
	case Promote:
		return "Promoted learner " + a.Name + " to voter"
	case FinishDefragmentation:
		if a.Reason != "" {
			return "Failed to defragment " + a.Name + ": " + a.Reason
		}
		return "Defragmented " + a.Name
	case MoveLeader:
		return fmt.Sprintf("Moved etcd leadership from %s to %s: %s", a.Name, a.To, a.Reason)
	}
	return fmt.Sprintf("%s %s: %s", verbs[a.Kind], a.Name, a.Reason)
}

// verbs begin the descriptions of actions on one replica that have a cause.
var verbs = map[Kind]string{
	StartJoin: "Adding member", FinishJoin: "Finished adding member", RemoveMember: "Removed member",
	CreateClaim: "Created PersistentVolumeClaim", DeleteClaim: "Deleted PersistentVolumeClaim",
	StartDefragmentation: "Defragmenting", ResumeDefragmentation: "Defragmenting again",
	CreatePod: "Created Pod", CreateServer: "Created Pod", DeletePod: "Deleted Pod",
}

// Apply returns the observation after an action, and whether the outcome of the action is certain. It is certain for
// new objects and intents: a plan from the returned observation is the same as one from a fresh observation. Every
// other action needs a fresh observation.
func (o Observation) Apply(a Action) (Observation, bool) {
	switch a.Kind {
	case Bootstrap:
		o.Intent.InitialMembers = a.Names
		o.Intent.NextOrdinal = o.nextOrdinalAfter(a.Names...)
	case StartJoin:
		o.Intent.JoiningMember, o.Intent.JoinTimedOut = a.Name, false
		o.Intent.NextOrdinal = o.nextOrdinalAfter(a.Name)
	case CreateClaim:
		o.Claims = append(slices.Clone(o.Claims), Claim{Name: a.Name})
	case CreatePod, CreateServer:
		o.Pods = append(slices.Clone(o.Pods), Pod{Name: a.Name, Member: a.Kind == CreatePod})
	default:
		return o, false
	}
	return o, true
}

func (o Observation) nextOrdinalAfter(names ...string) int {
	next := o.Intent.NextOrdinal
	for _, name := range names {
		next = max(next, Ordinal(o.Cluster, name)+1)
	}
	return next
}
