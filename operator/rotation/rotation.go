// Package rotation plans the replacement of credentials in three stages, so that no request fails. It applies to
// certificate authorities, to the keys that sign service-account tokens, and to the keys of the encryption at rest.
// Plan is a pure function. Its input, an Observation, contains the credentials that every replica, kubeconfig and
// companion uses. Its output, a Decision, names the stage to enter, the replicas to restart, and the reason why the
// rotation waits. Packages rotations and atrest observe and execute the decision, and packages certificates and atrest
// change the Secrets.
//
// # Stages
//
//	None:      no rotation is in progress.
//	TrustBoth: a new credential exists, and everyone begins to trust both. The old one still signs (or encrypts).
//	Reissue:   the new credential signs, and everything that the old one has signed is issued again. Both are trusted.
//	DropOld:   everyone stops trusting the old credential.
//
// After DropOld the rotation is finished and the stage is None again. The effect of a stage depends on the kind of
// credentials:
//
//   - Certificate authorities: TrustBoth distributes the new certificate in all CA bundles. Reissue issues every leaf
//     with the new authority and lasts at least for the overlap, so that the holders of kubeconfigs can fetch new
//     kubeconfigs. In this stage servers send a cross-signed certificate with each leaf, for clients that trust only
//     the old authority.
//   - Service-account keys: TrustBoth publishes the new public key, for at least the publication time, so that
//     verifiers which cache the JSON web key set have it before a token is signed with it. Reissue signs tokens with
//     the new key and lasts at least as long as tokens of the old key are valid.
//   - Encryption at rest: in TrustBoth every API server can decrypt with the new key. In Reissue it encrypts with that
//     key, and the stored objects are rewritten before DropOld removes the old key.
//
// # Invariants
//
//   - A later stage is entered only when every replica, kubeconfig and companion uses the credentials of the present
//     stage: at any time, the credentials in use belong to at most two consecutive stages, which accept each other.
//   - A replica whose credentials cannot be read counts as one that does not use them. The rotation waits for it,
//     however long that takes, and does not restart it.
//   - A replica that reads a credential only when it starts is restarted. Plan names all such replicas; package
//     membership restarts them one at a time and keeps the quorum.
//   - The stage is written to the status of the cluster before anything acts on it, and all changes that a stage makes
//     are idempotent functions of the stage. The operator may therefore be killed at any time.
//   - A rotation never goes backwards, with one exception outside of this package: if the key of the new authority is
//     lost during Reissue or DropOld, package rotations enters TrustBoth again with another authority.
package rotation

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Stage is a stage of a rotation, as in the status of the cluster.
type Stage string

// The stages, in the order in which a rotation enters them.
const (
	None      Stage = ""
	TrustBoth Stage = "TrustBoth"
	Reissue   Stage = "Reissue"
	DropOld   Stage = "DropOld"
)

// LoadTimeout is the time for which Plan waits for a replica to load changed files before it has the replica restarted.
// The kubelet updates the files of a mounted Secret about once per minute.
const LoadTimeout = 5 * time.Minute

// Observation is the input of Plan: the state of one rotation of one cluster.
type Observation struct {
	Stage       Stage
	Since       time.Time // when Stage was entered
	Now         time.Time
	Due         string        // cause of a new rotation, as a clause, or "". Plan reads it only in stage None
	Publication time.Duration // minimum duration of TrustBoth
	Overlap     time.Duration // minimum duration of Reissue
	Replicas    []Replica
	Kubeconfigs []string // Secrets with kubeconfigs that do not have the credentials of Stage yet
	Companions  []string // Deployments of companions with pods that do not have the credentials of Stage yet
}

// Replica is the observed state of one API server pod during a rotation.
type Replica struct {
	Name    string
	Created time.Time
	// Unreachable is why the credentials that the replica uses are unknown, or "". Plan does not restart such a replica,
	// because the cause may be the network between the operator and the replica.
	Unreachable string
	// Missing describes the reloadable credentials of the stage that the replica does not use yet.
	Missing []string
	// Static describes the credentials that the replica reads only when it starts, and that it has read before the stage
	// was entered.
	Static []string
}

// Decision is the output of Plan.
type Decision struct {
	Next    Stage     // stage to be in; equal to Observation.Stage while the rotation waits
	Reason  string    // cause of entering Next, as a clause
	Waiting string    // sentence with the reason why the rotation waits, or ""
	Until   time.Time // when a minimum duration ends; zero unless the rotation waits only for time
	Restart []string  // names of the replicas that have to restart
}

// Changed reports whether the decision is to enter a stage other than the observed one.
func (d Decision) Changed(o Observation) bool { return d.Next != o.Stage }

// Plan returns the decision for an observation. It waits for replicas first, then for kubeconfigs, companions, and the
// minimum duration of the stage; it reports only the first thing that it waits for.
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
			waiting.Waiting, waiting.Until = "Publishing the new one before its first use, until "+
				end.UTC().Format(time.RFC3339), end
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

// restarts returns the names of the replicas that have to restart to use the credentials of the stage. A replica with
// static credentials is restarted as soon as it has loaded all reloadable credentials, because that shows that the
// kubelet has updated its files: a container that starts earlier would read the old files. A replica that has loaded
// nothing LoadTimeout after the stage was entered, or after the pod was created, is restarted in any case.
func (o Observation) restarts() []string {
	var names []string
	for _, replica := range o.Replicas {
		if replica.Unreachable != "" {
			continue
		}
		start := o.Since
		if replica.Created.After(start) {
			start = replica.Created
		}
		late := o.Now.Sub(start) >= LoadTimeout
		if len(replica.Static) > 0 && len(replica.Missing) == 0 || late && len(replica.Missing)+len(replica.Static) > 0 {
			names = append(names, replica.Name)
		}
	}
	return names
}

// Due returns why a credential has to be replaced, as a clause, or "". created is the time at which the credential was
// created. renewal is the time at which it is due by age; zero means never. before is a user's request to replace all
// credentials that were created before that time; it takes effect only once that time has passed, so that the successor
// is newer than the request and satisfies it.
func Due(created, renewal time.Time, before *time.Time, now time.Time) string {
	switch {
	case before != nil && !now.Before(*before) && created.Before(*before):
		return "replacement of those created before " + before.UTC().Format(time.RFC3339) + " was requested"
	case !renewal.IsZero() && !now.Before(renewal):
		return "replacement was due at " + renewal.UTC().Format(time.RFC3339)
	}
	return ""
}
