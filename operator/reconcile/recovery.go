package reconcile

import (
	"cmp"
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/membership"
	"quorate.dev/operator/observed"
	"quorate.dev/operator/reconcile/backups"
)

// recovery translates the user's request and its progress into the input of membership.Plan.
func (p *pass) recovery() membership.Recovery {
	cluster, current := p.cluster, p.cluster.Status.Recovery
	active := cluster.Recovering(v1alpha1.RecoveryStopping, v1alpha1.RecoveryRestoring, v1alpha1.RecoveryStarting)
	if cluster.RecoveryRequested() {
		request := cluster.Spec.Recovery
		r := membership.Recovery{
			Stage: membership.RecoveryRequested, Member: request.Member, FromBackup: request.From != nil, Replacing: active,
		}
		for _, s := range p.state.Survivors {
			if s.Reachable {
				r.Survivors = append(r.Survivors, membership.Survivor{Name: s.Name, Revision: s.Revision, Term: s.Term, Index: s.Index})
			}
		}
		return r
	}
	stages := map[v1alpha1.RecoveryStage]membership.RecoveryStage{
		v1alpha1.RecoveryStopping: membership.RecoveryStopping, v1alpha1.RecoveryRestoring: membership.RecoveryRestoring,
	}
	if current == nil {
		return membership.Recovery{}
	}
	return membership.Recovery{
		Stage: stages[current.Stage], FromBackup: current.Request.From != nil, SelectedName: current.Member,
		JobRunning: p.recoveryPod != nil || !p.recoveryRead,
	}
}

// writeRecovery updates status.recovery, and with it the membership. It fails with a conflict if the cluster was updated
// since it was read.
func (r *Reconciler) writeRecovery(ctx context.Context, p *pass, a membership.Action) error {
	before := p.cluster.DeepCopy()
	s, now := &p.cluster.Status, metav1.NewTime(p.input.Now)
	if s.Membership == nil {
		s.Membership = &v1alpha1.Membership{}
	}
	switch a.Kind {
	case membership.StartRecovery:
		s.Recovery = &v1alpha1.RecoveryStatus{
			Request: *p.cluster.Spec.Recovery, Stage: v1alpha1.RecoveryStopping, Member: a.Name, StartedAt: now,
			Survivors: survivorsOf(p.state, before.Status.Recovery), AcknowledgedRevision: acknowledgedRevision(p.state),
		}
		s.Membership.NextOrdinal = max(s.Membership.NextOrdinal, int32(membership.Ordinal(p.cluster.Name, a.Name)+1))
	case membership.RestoreQuorum:
		s.Recovery.Stage = v1alpha1.RecoveryRestoring
		s.Membership = &v1alpha1.Membership{InitialMembers: a.Names, NextOrdinal: s.Membership.NextOrdinal}
		for i := range s.Members { // the recovered data has another member ID and another log
			s.Members[i].ID, s.Members[i].Volume, s.Members[i].Acknowledged = "", "", nil
		}
	case membership.DeclineRecovery:
		s.Recovery = &v1alpha1.RecoveryStatus{
			Request: *p.cluster.Spec.Recovery, Stage: v1alpha1.RecoveryNotNeeded, StartedAt: now, CompletedAt: &now,
		}
	}
	return r.Client.Status().Patch(ctx, p.cluster, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
}

// acknowledgedRevision returns the newest revision that a member is known to have reached, or 0.
func acknowledgedRevision(s *observed.State) int64 {
	newest := int64(0)
	for _, m := range s.Cluster.Status.Members {
		newest = max(newest, acknowledged(s, m.Name, parseID(m.ID)).Revision)
	}
	return newest
}

// lostRevisions describes the acknowledged revisions that the recovered data does not have, or returns "".
func lostRevisions(r *v1alpha1.RecoveryStatus) string {
	if r.AcknowledgedRevision <= r.Revision {
		return ""
	}
	return fmt.Sprintf(", among them the acknowledged revisions %d to %d", r.Revision+1, r.AcknowledgedRevision)
}

// survivorsOf describes the reachable members. A request that replaces another keeps the survivors that were known
// before the pods stopped.
func survivorsOf(s *observed.State, replaced *v1alpha1.RecoveryStatus) []string {
	var survivors []string
	for _, m := range s.Survivors {
		if m.Reachable {
			survivors = append(survivors, fmt.Sprintf("%s: revision %d", m.Name, m.Revision))
		}
	}
	if len(survivors) == 0 && replaced != nil && replaced.CompletedAt == nil {
		return replaced.Survivors
	}
	return survivors
}

// recoverQuorum runs the pod that prepares the data of the only member while a recovery is in stage Restoring. The stage
// ends only with the pod's result: until then no member starts.
func (r *Reconciler) recoverQuorum(ctx context.Context, p *pass) error {
	if p.cluster.Status.Recovery == nil {
		return nil
	}
	pod, err := r.jobPod(ctx, p.cluster, desired.RecoveryPodName(p.cluster))
	if err != nil {
		return err
	}
	p.recoveryPod, p.recoveryRead = pod, true
	current := p.cluster.Status.Recovery
	switch {
	case !p.cluster.Recovering(v1alpha1.RecoveryRestoring) || p.cluster.RecoveryRequested():
		return r.deleteJobPod(ctx, pod)
	case p.state.Claim(current.Member) == nil || pod != nil && pod.DeletionTimestamp != nil:
		return nil
	case pod == nil:
		return r.createRecoveryPod(ctx, p)
	case desired.JobUID(pod) != desired.RecoveryUID(p.cluster): // of a former request
		return r.deleteJobPod(ctx, pod)
	case pod.Status.Phase == corev1.PodFailed:
		return r.recoveryFailed(ctx, p, pod)
	case pod.Status.Phase == corev1.PodSucceeded:
		return r.finishRecovery(ctx, p, pod)
	}
	if problem := observed.Problem(pod); problem != "" {
		current.Reason, current.Message = v1alpha1.ReasonPodNotStarting, problem
	}
	return nil
}

func (r *Reconciler) createRecoveryPod(ctx context.Context, p *pass) error {
	current := p.cluster.Status.Recovery
	pod := desired.RecoveryPod(p.cluster, p.state.Image)
	if from := current.Request.From; from != nil {
		location, problem, err := r.backupLocation(ctx, p.cluster, *from)
		if err != nil {
			return err
		}
		if problem != "" {
			current.Reason, current.Message = v1alpha1.ReasonBackupNotAvailable, problem
			return nil
		}
		secrets := desired.RestoreSecrets(location.Destination, current.Request.Encryption)
		reason, message, err := backups.Unusable(ctx, r.Reader, p.cluster.Namespace, secrets)
		if err != nil {
			return err
		}
		if reason != "" {
			current.Reason, current.Message = reason, message
			return nil
		}
		pod = desired.RecoveryFromBackupPod(p.cluster, p.state.Image, location)
	}
	if err := r.create(ctx, p.cluster, pod); err != nil {
		return err
	}
	if current.Reason != v1alpha1.ReasonRecoveryFailed {
		current.Reason, current.Message = "", "" // of a missing object
	}
	r.event(p.cluster, event{
		related: reference("Pod", pod), reason: v1alpha1.ReasonSuccessfulCreate, action: "Recover",
		message: "Created Pod " + pod.Name + " to recover the data of " + current.Member,
	})
	return nil
}

// recoveryFailed reports why a recovery failed and repeats it after a while.
func (r *Reconciler) recoveryFailed(ctx context.Context, p *pass, pod *corev1.Pod) error {
	current := p.cluster.Status.Recovery
	message := failureOf(pod, current.Request.Encryption)
	if current.Reason != v1alpha1.ReasonRecoveryFailed || current.Message != message {
		current.Reason, current.Message = v1alpha1.ReasonRecoveryFailed, message
		r.event(p.cluster, event{
			warning: true, related: reference("Pod", pod), reason: v1alpha1.ReasonRecoveryFailed, action: "Recover", message: message,
		})
	}
	if !retryDue(pod, p.input.Now) {
		return nil
	}
	return r.deleteJobPod(ctx, pod)
}

// finishRecovery records that the data is prepared, and reports what is lost.
func (r *Reconciler) finishRecovery(ctx context.Context, p *pass, pod *corev1.Pod) error {
	result, err := backups.ParseResult(pod)
	if err != nil {
		return err
	}
	before := p.cluster.DeepCopy()
	current := p.cluster.Status.Recovery
	current.Stage, current.Reason, current.Message = v1alpha1.RecoveryStarting, "", ""
	current.Revision = result.Manifest.Snapshot.Revision
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := r.Client.Status().Patch(ctx, p.cluster, patch); err != nil {
		return fmt.Errorf("recording the recovery: %w", err)
	}
	r.event(p.cluster, event{
		warning: true, reason: v1alpha1.ReasonQuorumRecovered, action: "Recover",
		message: fmt.Sprintf("etcd continues with the data of %s at revision %d; writes that are not in it are lost%s. Reachable members before: %s",
			current.Source(), current.Revision, lostRevisions(current), cmp.Or(strings.Join(current.Survivors, ", "), "none")),
	})
	return nil
}
