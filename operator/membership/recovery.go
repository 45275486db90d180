package membership

import (
	"cmp"
	"fmt"
	"slices"
)

// RecoveryStage is the progress of a recovery from a lost quorum. It is persisted.
type RecoveryStage string

// The stages of a recovery.
const (
	NoRecovery RecoveryStage = ""
	// RecoveryRequested is the stage of a user's request that the status does not contain yet. It may replace a
	// request that has not completed.
	RecoveryRequested RecoveryStage = "Requested"
	// RecoveryStopping is the stage in which all pods are deleted. The data of all members is untouched.
	RecoveryStopping RecoveryStage = "Stopping"
	// RecoveryRestoring is the stage in which the data of the only initial member is prepared. No member runs.
	RecoveryRestoring RecoveryStage = "Restoring"
)

// Recovery is a request to continue without a quorum. Only users create requests.
type Recovery struct {
	Stage        RecoveryStage
	Member       string // member to continue from; "": the member with the newest data
	FromBackup   bool   // a new member starts with the data of a backup
	Replacing    bool   // the request replaces an earlier request that has not completed
	JobRunning   bool   // a pod of an earlier attempt still uses a volume
	Survivors    []Survivor
	SelectedName string // the member that the recorded request continues with
}

// Survivor is a member that reports its data without a quorum.
type Survivor struct {
	Name     string
	Revision int64
	Term     uint64
	Index    uint64 // last committed entry of its raft log
}

// Best returns the survivor with the newest data, or false if there is none. Ties are resolved by name.
func Best(survivors []Survivor) (Survivor, bool) {
	if len(survivors) == 0 {
		return Survivor{}, false
	}
	return slices.MinFunc(survivors, func(a, b Survivor) int {
		return cmp.Or(cmp.Compare(b.Revision, a.Revision), cmp.Compare(b.Index, a.Index), cmp.Compare(b.Term, a.Term),
			cmp.Compare(a.Name, b.Name))
	}), true
}

// declineRecovery records an unnecessary request, so that it does not take effect when the quorum is lost later.
func (v *view) declineRecovery() (Action, bool) {
	if v.Recovery.Stage != RecoveryRequested {
		return Action{}, false
	}
	return Action{Kind: DeclineRecovery, Reason: "etcd has a quorum"}, true
}

// startRecovery records the member to continue from, before anything is stopped.
func (v *view) startRecovery() (Action, bool) {
	switch r := v.Recovery; {
	case r.Stage != RecoveryRequested || !v.QuorumLost && !r.Replacing:
		return Action{}, false
	case r.FromBackup:
		return Action{
			Kind: StartRecovery, Name: Name(v.Cluster, v.nextOrdinal()), Reason: "a new member, with the data of the backup",
		}, true
	case r.Member != "" && !v.mountable(r.Member):
		return Action{Kind: Wait, Reason: "Not recovering from " + r.Member + ": it has no volume"}, true
	case r.Member != "":
		return Action{Kind: StartRecovery, Name: r.Member, Reason: "selected by the request"}, true
	}
	best, ok := Best(slices.DeleteFunc(slices.Clone(v.Recovery.Survivors), func(s Survivor) bool {
		return !v.mountable(s.Name)
	}))
	if !ok {
		return Action{Kind: Wait, Reason: "No member with a volume reports its data: " +
			"select a member or a backup in spec.recovery"}, true
	}
	return Action{
		Kind: StartRecovery, Name: best.Name, Reason: fmt.Sprintf("its revision %d is the newest", best.Revision),
	}, true
}

// stopForRecovery deletes all pods and waits until their processes have stopped: members that still run, for example
// on a partitioned node, could regain the old quorum while the recovered member accepts writes.
func (v *view) stopForRecovery() (Action, bool) {
	for _, pod := range v.Pods {
		if !pod.Terminating {
			return Action{Kind: DeletePod, Name: pod.Name, Reason: "recovery of etcd"}, true
		}
	}
	if len(v.Pods) > 0 {
		return Action{Kind: Wait, Reason: "Waiting for pod " + v.Pods[0].Name + " to stop before the recovery of etcd"}, true
	}
	if v.Recovery.JobRunning {
		return Action{Kind: Wait, Reason: "Waiting for the pod of the former recovery to stop"}, true
	}
	name := v.Recovery.SelectedName
	if !v.Recovery.FromBackup && !v.mountable(name) {
		return Action{Kind: Wait, Reason: "Not recovering from " + name + ": it has no volume"}, true
	}
	return Action{Kind: RestoreQuorum, Name: name, Names: []string{name}}, true
}

// awaitRecovery waits until the data of the only initial member is prepared. It deletes pods that a second operator
// instance with stale state has created since all pods stopped.
func (v *view) awaitRecovery() Action {
	for _, pod := range v.Pods {
		if !pod.Terminating {
			return Action{Kind: DeletePod, Name: pod.Name, Reason: "recovery of etcd"}
		}
	}
	return Action{Kind: Wait, Reason: "Waiting for the data of " + v.Intent.InitialMembers[0] + " to be recovered"}
}
