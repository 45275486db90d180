// Package invariants checks what an operator did to one cluster. Check is a pure function over the observed history, so
// that simulations and runs with real processes are judged by the same rules.
package invariants

import (
	"fmt"
	"slices"
)

// Voter is a voting etcd member.
type Voter struct {
	Healthy bool // its process runs and answers
	Claim   bool // its PersistentVolumeClaim exists
}

// Signer is what signs certificates or tokens, and what replicas trust, in one Secret.
type Signer struct {
	Current string   // fingerprint of the authority or key that signs
	Trusted []string // fingerprints of all authorities or keys whose signatures are accepted
}

// State is a cluster as observed after a step.
type State struct {
	Voters   map[string]Voter
	Learners []string
	// Stopping means that the user has asked to stop all replicas, by hibernation or a recovery.
	Stopping bool
	// Acknowledged is the revision of the last write that a client has seen succeed. Readable is the revision that
	// clients read, or -1 without a quorum.
	Acknowledged, Readable int64
	Signers                map[string]Signer // by Secret; without those that do not exist
}

// Quorum reports whether most voters are healthy.
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
	Operator bool // made by an operator; otherwise by the environment
	Action   string
	After    State
}

// Check returns the violations of a history, in its order.
func Check(history []Step) []error {
	var errs []error
	signers := map[string]Signer{} // as last seen, also of deleted Secrets
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

// always returns the violations of a state, whatever has led to it.
func always(s State) (found []string) {
	if s.Readable >= 0 && s.Readable < s.Acknowledged {
		found = append(found, fmt.Sprintf("acknowledged writes are lost: revision %d of %d", s.Readable, s.Acknowledged))
	}
	if len(s.Learners) > 1 {
		found = append(found, fmt.Sprintf("several learners: %v", s.Learners))
	}
	return found
}

// byOperator returns the violations of a step of an operator.
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

// signing returns the violations of credentials: what signed before stays trusted in the step that replaces it.
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
