// Package invariants checks the actions of an operator on one cluster. Check is a pure function of the observed
// history, so that the same rules apply to simulations and to runs with real processes.
package invariants

import (
	"fmt"
	"slices"
)

// Voter is a voting etcd member.
type Voter struct {
	Healthy bool // the process of the member runs and responds
	Claim   bool // its PersistentVolumeClaim exists
}

// Signer describes, for one Secret, which authority or key signs certificates or tokens, and which ones are trusted.
type Signer struct {
	Current string   // fingerprint of the authority or key that signs
	Trusted []string // fingerprints of all authorities or keys whose signatures are accepted
}

// State is the state of a cluster after a step.
type State struct {
	Voters   map[string]Voter
	Learners []string
	// Stopping says that the user has requested to stop all replicas, by hibernation or a recovery.
	Stopping bool
	// Acknowledged is the revision of the last write whose success a client has seen. Readable is the revision that
	// clients can read, or -1 without a quorum.
	Acknowledged, Readable int64
	Signers                map[string]Signer // signer of each Secret that exists
}

// Quorum reports whether more than half of the voters are healthy.
func (s State) Quorum() bool {
	healthy := 0
	for _, voter := range s.Voters {
		if voter.Healthy {
			healthy++
		}
	}
	return len(s.Voters) > 0 && healthy > len(s.Voters)/2
}

// Step is a change of the cluster.
type Step struct {
	Operator bool // an operator has made the change; false: the environment has
	Action   string
	After    State
}

// Check returns the violations in a history, in the order of the history.
func Check(history []Step) []error {
	var errs []error
	signers := map[string]Signer{} // last seen state of each signer, also of deleted Secrets
	for i, step := range history {
		found := always(step.After)
		if step.Operator {
			found = append(found, signing(signers, step.After)...)
			if i > 0 {
				found = append(found, byOperator(history[i-1].After, step.After)...)
			}
		}
		for _, text := range found {
			errs = append(errs, fmt.Errorf("step %d, %s: %s", i, step.Action, text))
		}
		for name, signer := range step.After.Signers {
			if step.Operator || signers[name].Current == "" {
				signers[name] = signer
			}
		}
	}
	return errs
}

// always returns the violations in a state that are independent of the step before.
func always(s State) (found []string) {
	if s.Readable >= 0 && s.Readable < s.Acknowledged {
		found = append(found, fmt.Sprintf("acknowledged writes are lost: revision %d of %d", s.Readable, s.Acknowledged))
	}
	if len(s.Learners) > 1 {
		found = append(found, fmt.Sprintf("several learners: %v", s.Learners))
	}
	return found
}

// byOperator returns the violations in a step of an operator.
func byOperator(before, after State) (found []string) {
	var removed []string
	for name, voter := range before.Voters {
		next, remains := after.Voters[name]
		if !remains {
			removed = append(removed, name)
		}
		if remains && voter.Claim && !next.Claim {
			found = append(found, "the claim of voter "+name+" was deleted")
		}
	}
	slices.Sort(removed)
	switch {
	case len(removed) > 0 && !before.Quorum() && !after.Stopping:
		found = append(found, fmt.Sprintf("voters %v were removed without a quorum", removed))
	case len(removed) > 1 && !after.Stopping:
		found = append(found, fmt.Sprintf("voters %v were removed at once", removed))
	}
	if before.Quorum() && !after.Quorum() && len(before.Voters) > 1 && !after.Stopping {
		found = append(found, "the quorum was lost")
	}
	return found
}

// signing returns the violations concerning credentials: the signer before a step must still be trusted after the step
// that replaces it.
func signing(before map[string]Signer, after State) (found []string) {
	for name, signer := range after.Signers {
		former := before[name].Current
		if former != "" && !slices.Contains(signer.Trusted, former) {
			found = append(found, "the signer in Secret "+name+" was replaced and is no longer trusted")
		}
	}
	slices.Sort(found)
	return found
}
