package volumes

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/owned"
)

// Record records facts about the volumes of members in annotations of their claims. The annotations survive the loss of
// the cluster's status, for example if objects are restored from a backup of the hosting cluster, which has no status.
func Record(ctx context.Context, objects owned.Objects, state *observed.State) error {
	return errors.Join(annotateClaims(ctx, objects, state), forgetReplacedMembers(ctx, objects, state))
}

// annotateClaims writes the annotations of claims that differ. If the status of the cluster is lost, the annotations
// still say which volumes must have data: a volume with an ID that is empty has lost what its member has voted with.
func annotateClaims(ctx context.Context, objects owned.Objects, state *observed.State) error {
	for i := range state.Claims {
		claim := &state.Claims[i]
		if claim.DeletionTimestamp != nil {
			continue
		}
		before := claim.DeepCopy()
		for name, value := range claimAnnotations(state, claim) {
			if value == "" {
				delete(claim.Annotations, name)
				continue
			}
			metav1.SetMetaDataAnnotation(&claim.ObjectMeta, name, value)
		}
		if maps.Equal(claim.Annotations, before.Annotations) {
			continue
		}
		if err := objects.Client.Patch(ctx, claim, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("annotate claim %s: %w", claim.Name, err)
		}
	}
	return nil
}

// claimAnnotations returns the annotations of a claim that the operator maintains and knows at present. Annotations
// without a value are removed.
//
// Nothing is removed while the member is not healthy, because then nothing new is known about its data. Lost writes are
// cleared once the member runs again: it does not start while it has writes that the others lack, except after a
// recovery from its data. A healthy member that agrees with the leader has no write that the others lack; at that
// moment, the runs of the other members are recorded.
func claimAnnotations(s *observed.State, claim *corev1.PersistentVolumeClaim) map[string]string {
	// The pod also has the message of the member, but the annotation outlives the pod.
	annotations := map[string]string{desired.LostWritesAnnotation: s.LostWrites(claim.Name)}
	m := s.Member(claim.Name)
	if m == nil {
		return annotations
	}
	if m.Started {
		annotations[desired.MemberIDAnnotation] = observed.MemberID(m.ID)
	}
	if !m.Healthy {
		return annotations
	}
	annotations[desired.LostWritesAnnotation] = "" // the member runs again, after a recovery from its data
	switch {
	case s.Agrees(*m):
		annotations[desired.UnprovenAnnotation] = ""
		annotations[desired.LastHealthyWithAnnotation] = s.HealthyWith(*m)
	case !s.ReportsRuns():
		// The member runs an earlier release. The leader has overwritten the entries by now that only this member had.
		annotations[desired.UnprovenAnnotation] = ""
	}
	return annotations
}

// forgetReplacedMembers removes the annotation that requests the replacement of members once all of them are replaced.
// An annotation that stayed would permit the loss of writes of a later member without the user's consent. While the
// members are unknown, it stays.
func forgetReplacedMembers(ctx context.Context, objects owned.Objects, state *observed.State) error {
	list, ok := state.Cluster.Annotations[v1alpha1.ReplaceMembersAnnotation]
	if !ok || state.EtcdErr != nil {
		return nil
	}
	for _, name := range strings.Split(list, ",") {
		if name = strings.TrimSpace(name); state.Member(name) != nil || state.Claim(name) != nil {
			return nil
		}
	}
	before := state.Cluster.DeepCopy()
	delete(state.Cluster.Annotations, v1alpha1.ReplaceMembersAnnotation)
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := objects.Client.Patch(ctx, state.Cluster, patch); err != nil {
		return fmt.Errorf("remove the annotation %s: %w", v1alpha1.ReplaceMembersAnnotation, err)
	}
	return nil
}

// Replaced reports whether the member of a claim has started on another claim, because the claim was deleted and
// created again. The status records the UID of the claim once, when the member has started.
func Replaced(cluster *v1alpha1.ApiServerCluster, claim *corev1.PersistentVolumeClaim) bool {
	m := memberStatus(cluster, claim.Name)
	return m != nil && m.Volume != "" && m.Volume != string(claim.UID)
}

// MemberRecord returns the known facts about the data of a member, for its next pod, which refuses to start without
// that data. Data that a restore or a recovery has prepared has a new member ID and a new raft log, so nothing else is
// known about it. Without a record, a member could start from an empty or older volume, vote again in a term in which
// it has voted, and let the cluster lose acknowledged writes.
func MemberRecord(s *observed.State, name string) desired.MemberRecord {
	var record desired.MemberRecord
	claim := s.Claim(name)
	if claim == nil {
		return record
	}
	record.Volume = string(claim.UID)
	prepared := s.Cluster.Spec.Restore != nil ||
		s.Cluster.Recovering(v1alpha1.RecoveryRestoring, v1alpha1.RecoveryStarting)
	if !s.Cluster.Bootstrapped() && prepared {
		record.Started = true
		return record
	}
	id := startedMember(s, claim)
	record.Started, record.MemberID = id != 0, id
	if newest := Acknowledged(s, name, id); id != 0 {
		record.Index, record.Term = newest.Index, newest.Term
	}
	return record
}

// startedMember returns the ID of the member that has started on the volume of a claim, or 0 if none is known to have.
// The member list has the last word: a member that is listed but has not started must start with an empty volume.
// Without the list, the annotation of the claim, and then the status, show it.
func startedMember(s *observed.State, claim *corev1.PersistentVolumeClaim) uint64 {
	if m := s.Member(claim.Name); m != nil {
		if m.Started {
			return m.ID
		}
		return 0
	}
	if id := observed.ParseMemberID(claim.Annotations[desired.MemberIDAnnotation]); id != 0 {
		return id
	}
	if m := memberStatus(s.Cluster, claim.Name); m != nil && m.Acknowledged != nil {
		return observed.ParseMemberID(m.ID)
	}
	return 0
}

// Acknowledged returns the newest state that a member is known to have reached, from the memory of this process and
// from the status. The status is updated only every few minutes (package status), so that the memory is usually newer;
// after a restart of the operator, only the status is left. A state of another member ID belongs to another log.
func Acknowledged(s *observed.State, name string, id uint64) etcd.Acknowledged {
	newest := s.Acknowledged[id]
	if m := memberStatus(s.Cluster, name); m != nil && m.Acknowledged != nil && observed.ParseMemberID(m.ID) == id {
		newest = newest.Newest(etcd.Acknowledged{
			Index: uint64(m.Acknowledged.Index), Term: uint64(m.Acknowledged.Term), Revision: m.Acknowledged.Revision,
			Time: m.Acknowledged.Time.Time,
		})
	}
	return newest
}

// memberStatus returns the status of the member with a name, or nil.
func memberStatus(cluster *v1alpha1.ApiServerCluster, name string) *v1alpha1.MemberStatus {
	for i := range cluster.Status.Members {
		if cluster.Status.Members[i].Name == name {
			return &cluster.Status.Members[i]
		}
	}
	return nil
}
