package reconcile

import (
	"context"
	"fmt"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/observed"
)

// recordMembers annotates the claim of each member that has started with etcd's ID of the member. If the status of the
// cluster is lost, the annotations still say which volumes must have data.
func (r *Reconciler) recordMembers(ctx context.Context, p *pass) error {
	for _, m := range p.state.Members {
		claim, id := p.state.Claim(m.Name), observed.MemberID(m.ID)
		if !m.Started || claim == nil || claim.DeletionTimestamp != nil || claim.Annotations[desired.MemberIDAnnotation] == id {
			continue
		}
		before := claim.DeepCopy()
		if claim.Annotations == nil {
			claim.Annotations = map[string]string{}
		}
		claim.Annotations[desired.MemberIDAnnotation] = id
		if err := r.Client.Patch(ctx, claim, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("record the member of claim %s: %w", claim.Name, err)
		}
	}
	return nil
}

// replacedClaim reports whether a claim is not the one on which its member has started: it was deleted and created again.
func replacedClaim(cluster *v1alpha1.ApiServerCluster, claim *corev1.PersistentVolumeClaim) bool {
	m := memberStatus(cluster, claim.Name)
	return m != nil && m.Volume != "" && m.Volume != string(claim.UID)
}

// memberRecord returns what is known about the data of a member, for its next pod. Data that a restore or a recovery has
// prepared has a new member ID and a new log.
func memberRecord(s *observed.State, name string) desired.MemberRecord {
	var record desired.MemberRecord
	claim := s.Claim(name)
	if claim == nil {
		return record
	}
	record.Volume = string(claim.UID)
	prepared := s.Cluster.Spec.Restore != nil || s.Cluster.Recovering(v1alpha1.RecoveryRestoring, v1alpha1.RecoveryStarting)
	if !s.Cluster.Bootstrapped() && prepared {
		record.Started = true
		return record
	}
	id := startedMember(s, claim)
	record.Started, record.MemberID = id != 0, id
	if known := acknowledged(s, name, id); id != 0 {
		record.Index, record.Term = known.Index, known.Term
	}
	return record
}

// startedMember returns etcd's ID of the member that has started on a volume, or 0 if none has as far as is known.
func startedMember(s *observed.State, claim *corev1.PersistentVolumeClaim) uint64 {
	if m := s.Member(claim.Name); m != nil {
		if m.Started {
			return m.ID
		}
		return 0
	}
	if id := parseID(claim.Annotations[desired.MemberIDAnnotation]); id != 0 {
		return id
	}
	if m := memberStatus(s.Cluster, claim.Name); m != nil && m.Acknowledged != nil {
		return parseID(m.ID)
	}
	return 0
}

// acknowledged returns the newest state that a member is known to have reached, from this process and from the status.
func acknowledged(s *observed.State, name string, id uint64) etcd.Acknowledged {
	known := s.Acknowledged[id]
	if m := memberStatus(s.Cluster, name); m != nil && m.Acknowledged != nil && parseID(m.ID) == id {
		known = known.Newest(etcd.Acknowledged{
			Index: uint64(m.Acknowledged.Index), Term: uint64(m.Acknowledged.Term), Revision: m.Acknowledged.Revision,
			Time: m.Acknowledged.Time.Time,
		})
	}
	return known
}

func parseID(text string) uint64 {
	id, err := strconv.ParseUint(text, 16, 64)
	if err != nil {
		return 0
	}
	return id
}

func memberStatus(cluster *v1alpha1.ApiServerCluster, name string) *v1alpha1.MemberStatus {
	for i := range cluster.Status.Members {
		if cluster.Status.Members[i].Name == name {
			return &cluster.Status.Members[i]
		}
	}
	return nil
}
