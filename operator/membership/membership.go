package membership

import "time"

// Observation is the input of Plan. Members are read linearizably; pods and claims are not read from a cache.
type Observation struct {
	Cluster       string // name of the cluster, and prefix of all replica names
	External      bool   // etcd is external: there are only stateless servers
	Replicas      int    // desired API servers
	Voters        int    // desired voters: 1, 3 or 5
	Intent        Intent
	ReleasedNames []string // names of released claims, which no new member may get
	Restoring     bool     // a backup has to be restored into the volume of the only initial member
	Recovery      Recovery
	RolloutHeld   string // why healthy pods are not restarted for an outdated spec, or ""
	// UpgradeHeld is the reason why outdated members keep their image, or "". While it is set, no member is removed and
	// no outdated member restarts, not even an unhealthy one, because etcd changes its data as soon as all members have
	// the new version.
	UpgradeHeld string
	// Defragmentation is the configuration and the state of defragmentations.
	Defragmentation Defragmentation
	HasQuorum       bool // a quorum responded, so Members is current
	QuorumLost      bool // no quorum has responded for a while
	Members         []Member
	Pods            []Pod
	Claims          []Claim
}

// Intent is the state that cannot be observed. It is persisted before the actions that depend on it.
type Intent struct {
	InitialMembers []string
	Bootstrapped   bool   // the initial members have formed a quorum
	NextOrdinal    int    // Invariant: no member has ever had this ordinal or a higher one
	JoiningMember  string // the member that is being added, or ""
	JoinTimedOut   bool   // JoiningMember has not become a voter in time
}

// Member is an entry of etcd's member list together with the status of the member.
type Member struct {
	ID      uint64
	Name    string
	Learner bool
	Started bool // the member has joined the cluster at least once
	Healthy bool // the member responds, knows a leader and has no alarm
	Leader  bool
	Applied uint64 // raft index
	// Lost is set if the member is unhealthy for too long, or its data is damaged, while another member with the same pod
	// template is healthy.
	Lost    bool
	Kept    bool // the member has stopped, and may have the only copy of acknowledged writes
	Refuses bool // the member exits, because its volume does not have the data that it has voted with
	// Unproven is the reason, as a clause, why a voter that does not run may have the only copy of acknowledged writes.
	// It is "" if the other members are known to have all of them.
	Unproven string
	// Unrecorded is set while a healthy voter would become Unproven if its pod were deleted, because it became healthy so
	// recently that the runs of the other members are not recorded yet.
	Unrecorded bool

	Database     Database
	Defragmented time.Time // time at which the member's database was last defragmented; zero: never
}

// Pod is the pod of one replica.
type Pod struct {
	Name        string
	Member      bool // the pod runs an etcd member; otherwise it is a stateless server
	Ready       bool
	Outdated    bool // the pod was created from an older spec
	Failed      bool // the phase is Failed or Succeeded, so the kubelet does not restart the pod
	Terminating bool
}

// Claim is the PersistentVolumeClaim of a member.
type Claim struct {
	Name        string
	Lost        bool // the claim exists but its volume does not
	Replaced    bool // the claim was deleted and created again since the member started on it
	Kept        bool // the claim may have the only copy of acknowledged writes, so it is never deleted
	Terminating bool
}

// Plan returns the next action. Wait without a reason means that the observed state matches the spec.
func Plan(o Observation) Action {
	v := newView(o)
	for _, step := range v.steps() {
		if action, ok := step(v); ok {
			return action
		}
	}
	return Action{Kind: Wait}
}

// A step returns its action, or false if there is nothing to do.
type step func(*view) (Action, bool)

// steps returns the steps that apply in the present state of etcd, most urgent first.
func (v *view) steps() []step {
	switch {
	case v.Replicas == 0:
		return []step{(*view).hibernate}
	case v.External:
		return []step{(*view).scaleServers, (*view).restartUnready, (*view).rollOut}
	case v.Recovery.Stage == RecoveryStopping:
		return []step{(*view).stopForRecovery}
	case !v.Intent.Bootstrapped:
		return []step{(*view).startRecovery, (*view).bootstrap}
	case !v.HasQuorum:
		return []step{(*view).startRecovery, (*view).recoverQuorum}
	}
	return []step{
		(*view).declineRecovery,
		(*view).ensureMemberPods, (*view).cleanUp, (*view).scaleServers, (*view).awaitDefragmentation, (*view).restartUnready,
		(*view).advanceJoin, (*view).replaceVoter, (*view).shrink, (*view).startJoin, (*view).defragment, (*view).rollOut,
	}
}

// Quorum returns the number of voters that are a majority.
func Quorum(voters int) int { return voters/2 + 1 }
