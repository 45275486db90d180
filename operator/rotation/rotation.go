// Package rotation plans the replacement of certificate authorities and of signing keys in three stages, without
// failed requests. Plan is a pure function from an observation to the stage to enter, the replicas to restart, and the
// reason for waiting.
//
// # Stages
//
//   - TrustBoth: a new authority (or key) exists and every replica and kubeconfig trusts both. The old one still signs.
//   - Reissue: the new one signs. Every certificate is reissued; both are still trusted, at least for the overlap, so
//     that clients can fetch new credentials.
//   - DropOld: only the new one is trusted.
//
// # Invariants
//
//   - A stage is entered only when every replica uses what the stage before provides. A replica that cannot be reached
//     counts as one that does not: the rotation waits for it.
//   - A replica that reads something only at its start is restarted for it, one at a time, by membership.Plan.
//   - The stage is in the cluster's status before anything follows it, and every step toward it is idempotent, so the
//     operator may be killed at any time.
package rotation

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Stage of a rotation.
type Stage string

// The stages, in order.
const (
	None      Stage = ""
	TrustBoth Stage = "TrustBoth"
	Reissue   Stage = "Reissue"
	DropOld   Stage = "DropOld"
)

// LoadTimeout is the time for a replica to load changed files before it is restarted.
const LoadTimeout = 5 * time.Minute

// Observation is the input of Plan.
type Observation struct {
	Stage       Stage
	Since       time.Time // when Stage was entered
	Now         time.Time
	Due         string        // why a rotation is due, or ""
	Publication time.Duration // minimum duration of TrustBoth
	Overlap     time.Duration // minimum duration of Reissue
	Replicas    []Replica
	Kubeconfigs []string // Secrets with kubeconfigs that are not updated for Stage yet
	Companions  []string // Deployments whose pods are not updated for Stage yet
}

// Replica is the observed state of a pod in a stage.
type Replica struct {
	Name    string
	Created time.Time
	// Unreachable is why the credentials of the replica are unknown, or "". Such a replica is not restarted, because
	// the cause may be the network between the operator and the replica.
	Unreachable string
	// Missing describes the reloadable credentials that the replica does not use yet.
	Missing []string
	// Static describes the credentials that the replica reads only at its start, and read before the stage.
	Static []string
}

// Decision is the output of Plan.
type Decision struct {
	Next    Stage     // the stage to be in; the observed one while waiting
	Reason  string    // why Next is entered, a clause
	Waiting string    // what the observed stage waits for, as a sentence; "" if there is no rotation
	Until   time.Time // when an overlap ends; zero unless the stage waits for time
	Restart []string  // replicas to restart
}

// Changed reports whether another stage is entered.
func (d Decision) Changed(o Observation) bool { return d.Next != o.Stage }

// Plan returns the decision for an observation.
func Plan(o Observation) Decision {
	if o.Stage == None {
		if o.Due == "" {
			return Decision{}
		}
		return Decision{Next: TrustBoth, Reason: o.Due}
	}
	waiting := Decision{Next: o.Stage, Restart: o.restarts()}
	for _, replica := range o.Replicas {
		if replica.Unreachable != "" {
			waiting.Waiting = fmt.Sprintf("Waiting for %s: %s", replica.Name, replica.Unreachable)
			return waiting
		}
		if missing := slices.Concat(replica.Missing, replica.Static); len(missing) > 0 {
			waiting.Waiting = fmt.Sprintf("Waiting for %s: %s", replica.Name, strings.Join(missing, ", "))
			return waiting
		}
	}
	if len(o.Kubeconfigs) > 0 {
		waiting.Waiting = "Waiting for the kubeconfig in Secret " + o.Kubeconfigs[0]
		return waiting
	}
	if len(o.Companions) > 0 {
		waiting.Waiting = "Waiting for the pods of Deployment " + o.Companions[0]
		return waiting
	}
	switch o.Stage {
	case TrustBoth:
		if end := o.Since.Add(o.Publication); o.Now.Before(end) {
			waiting.Waiting, waiting.Until = "Publishing the new one before its first use, until "+end.UTC().Format(time.RFC3339), end
			return waiting
		}
		return Decision{Next: Reissue, Reason: "every replica and kubeconfig trusts both"}
	case Reissue:
		if end := o.Since.Add(o.Overlap); o.Now.Before(end) {
			waiting.Waiting, waiting.Until = "Trusting the old one until "+end.UTC().Format(time.RFC3339), end
			return waiting
		}
		return Decision{Next: DropOld, Reason: "every replica and kubeconfig uses the new one"}
	}
	return Decision{Next: None, Reason: "no replica or kubeconfig trusts the old one"}
}

// restarts returns the replicas that a restart brings to the stage. Replicas with Static wait until they have loaded the
// rest, which shows that the kubelet has updated their files.
func (o Observation) restarts() []string {
	var names []string
	for _, replica := range o.Replicas {
		if replica.Unreachable != "" {
			continue
		}
		began := o.Since
		if replica.Created.After(began) {
			began = replica.Created
		}
		late := o.Now.Sub(began) >= LoadTimeout
		if len(replica.Static) > 0 && len(replica.Missing) == 0 || late && len(replica.Missing)+len(replica.Static) > 0 {
			names = append(names, replica.Name)
		}
	}
	return names
}

// Due returns why something that was created at a time has to be replaced, or "". Renewal is the time at which it is
// replaced by age. Before is a request to replace everything created before that time. It has no effect until then, so
// that the successor is newer.
func Due(created, renewal time.Time, before *time.Time, now time.Time) string {
	switch {
	case before != nil && !now.Before(*before) && created.Before(*before):
		return "replacement of those created before " + before.UTC().Format(time.RFC3339) + " was requested"
	case !renewal.IsZero() && !now.Before(renewal):
		return "replacement was due at " + renewal.UTC().Format(time.RFC3339)
	}
	return ""
}
