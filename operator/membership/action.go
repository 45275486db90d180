package membership

import (
	"fmt"
	"slices"
	"strings"
)

// Kind is the kind of an action.
type Kind string

// The kinds of actions. StartRecovery, RestoreQuorum, DeclineRecovery, Bootstrap, Bootstrapped, StartJoin and
// FinishJoin only update the intent in the status. StartDefragmentation, ResumeDefragmentation and
// FinishDefragmentation update the intent and may send a request to etcd. All other actions change etcd's membership or
// objects of the hosting cluster.
const (
	Wait         Kind = "Wait"
	Bootstrap    Kind = "Bootstrap"    // record Names as the initial members
	Bootstrapped Kind = "Bootstrapped" // record that the initial members have formed a quorum
	StartJoin    Kind = "StartJoin"    // record Name as the joining member
	FinishJoin   Kind = "FinishJoin"   // record that no member is joining
	AddLearner   Kind = "AddLearner"
	// StartRecovery selects the member Name and enters RecoveryStopping. RestoreQuorum makes it the only initial member of
	// an etcd that is not bootstrapped, and enters RecoveryRestoring. DeclineRecovery records a request as not needed.
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
	// KeepClaim marks the claim of a member that is removed next, so that it is not deleted. ReleaseClaim removes a marked
	// claim from the cluster without deleting it.
	KeepClaim    Kind = "KeepClaim"
	ReleaseClaim Kind = "ReleaseClaim"
	CreatePod    Kind = "CreatePod"    // create the pod of a member
	CreateServer Kind = "CreateServer" // create the pod of a stateless server
	DeletePod    Kind = "DeletePod"
)

// Action is the next action.
type Action struct {
	Kind   Kind
	Name   string   // replica that the action is about
	Names  []string // initial members, for Bootstrap
	ID     uint64   // etcd's ID of the member Name
	To     string   // next leader, for MoveLeader
	ToID   uint64
	Reason string // for Wait, a sentence about the obstacle; for other kinds, the cause as a clause
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

// verbs are the first words of the description of an action whose Reason is its cause.
var verbs = map[Kind]string{
	StartJoin: "Adding member", FinishJoin: "Finished adding member", RemoveMember: "Removed member",
	CreateClaim: "Created PersistentVolumeClaim", DeleteClaim: "Deleted PersistentVolumeClaim",
	StartDefragmentation: "Defragmenting", ResumeDefragmentation: "Defragmenting again",
	KeepClaim: "Keeping PersistentVolumeClaim", ReleaseClaim: "Released PersistentVolumeClaim",
	CreatePod: "Created Pod", CreateServer: "Created Pod", DeletePod: "Deleted Pod",
}

// Apply returns the observation after an action, and whether the outcome of the action is certain. The outcome is
// certain for created objects and recorded intents: a plan from the returned observation equals a plan from a fresh
// observation. After every other action, the caller must observe the cluster again.
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

// nextOrdinalAfter returns the next ordinal once members with the given names exist. It never decreases.
func (o Observation) nextOrdinalAfter(names ...string) int {
	next := o.Intent.NextOrdinal
	for _, name := range names {
		next = max(next, Ordinal(o.Cluster, name)+1)
	}
	return next
}
