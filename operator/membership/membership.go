package membership

import "time"

// Observation is the input of Plan. Members are read linearizably; pods and claims are not read from a cache.
type Observation struct {
	Cluster     string // name of the cluster, and prefix of all replica names
	External    bool   // etcd is external: there are only stateless servers
	Replicas    int    // desired API servers
	Voters      int    // desired voters: 1, 3 or 5
	Intent      Intent
	Restoring   bool // a backup has to be restored into the volume of the only initial member
	Recovery    Recovery
	RolloutHeld string // why healthy pods are not restarted for an outdated spec; "": they are
	// UpgradeHeld is why outdated members keep their image, or "". While it is set, no member is removed and no
	// outdated member restarts, not even an unhealthy one: etcd changes its data once all members have the new
	// version.
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
	Started bool // it has joined the cluster at least once
	Healthy bool // it responds, has a leader and no alarm
	Leader  bool
	Applied uint64 // raft index
	Lost    bool   // unhealthy for too long, or its data is damaged, while another member with the same pod template is healthy
	Refuses bool   // it does not start, because its volume does not have the data that it has voted with

	Database     Database
	Defragmented time.Time // when its database was last defragmented; zero: never
}

// Pod is the pod of one replica.
type Pod struct {
	Name        string
	Member      bool // it runs an etcd member; otherwise it is a stateless server
	Ready       bool
	Outdated    bool // it was created from an older spec
	Failed      bool // its phase is Failed or Succeeded, so the kubelet does not restart it
	Terminating bool
}

// Claim is the PersistentVolumeClaim of a member.
type Claim struct {
	Name        string
	Lost        bool // the claim exists but its volume does not
	Replaced    bool // the claim is not the one on which the member has started: it was deleted and created again
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

// step returns its action, or false if there is nothing to do.
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
