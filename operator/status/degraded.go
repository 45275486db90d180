package status

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/observed"
)

// degraded is true when a problem exists that the operator cannot repair, or has not repaired yet.
func degraded(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	switch {
	case in.Lost != nil:
		return condition(v1alpha1.Degraded, true, v1alpha1.ReasonSecretLost, "%s", oneLine(in.Lost))
	case in.Invalid != nil:
		return condition(v1alpha1.Degraded, true, v1alpha1.ReasonInvalidSpec, "%s", oneLine(in.Invalid))
	case len(in.Errors) > 0:
		return condition(v1alpha1.Degraded, true, v1alpha1.ReasonReconcileFailed, "%s", oneLine(errors.Join(in.Errors...)))
	case in.State == nil:
		return unknown(v1alpha1.Degraded)
	case cluster.Restoring() && cluster.Status.Restore != nil && cluster.Status.Restore.Reason != v1alpha1.ReasonRestoring:
		return condition(v1alpha1.Degraded, true, cluster.Status.Restore.Reason, "%s", cluster.Status.Restore.Message)
	case cluster.Recovering(v1alpha1.RecoveryStopping, v1alpha1.RecoveryRestoring, v1alpha1.RecoveryStarting):
		return condition(v1alpha1.Degraded, true, v1alpha1.ReasonRecovering, "Recovering etcd with the data of %s: %s",
			cluster.Status.Recovery.Source(), cmp.Or(cluster.Status.Recovery.Message, string(cluster.Status.Recovery.Stage)))
	case !cluster.ExternalEtcd() && in.State.QuorumLost(in.Now):
		return condition(v1alpha1.Degraded, true, observed.QuorumLostReason,
			"etcd has no quorum; the operator only recreates missing pods until it is restored, or spec.recovery requests a "+
				"recovery")
	case lostWrites(in.State) != "":
		return condition(v1alpha1.Degraded, true, v1alpha1.ReasonAcknowledgedWritesLost, "%s", lostWrites(in.State))
	case differentData(in.State) != "":
		return condition(v1alpha1.Degraded, true, v1alpha1.ReasonDataDiffers, "%s", differentData(in.State))
	case len(in.WithoutEtcd) > 0:
		return condition(v1alpha1.Degraded, true, v1alpha1.ReasonEtcdUnreachable,
			"etcd at %s does not respond to %s; check its members, the network, and the certificates in "+
				"spec.etcd.external.secretRef",
			strings.Join(cluster.Spec.Etcd.External.Endpoints, ", "), strings.Join(in.WithoutEtcd, ", "))
	case in.ConfigurationErr != nil:
		return condition(v1alpha1.Degraded, true, v1alpha1.ReasonInvalidConfiguration,
			"The last valid files stay in use: %s", oneLine(in.ConfigurationErr))
	}
	if len(in.Undecryptable) > 0 {
		resources := strings.Join(in.Undecryptable, ",")
		return condition(v1alpha1.Degraded, true, v1alpha1.ReasonDecryptionNotConfirmed,
			"spec.encryption does not list %s any more; the encryption is unchanged. To decrypt the stored objects, set the "+
				"annotation %s=%s",
			resources, v1alpha1.DecryptAnnotation, resources)
	}
	if in.VolumeErr != nil {
		return condition(v1alpha1.Degraded, true, v1alpha1.ReasonVolumeExpansionFailed, "%s", oneLine(in.VolumeErr))
	}
	for _, m := range in.State.Members {
		if len(m.Alarms) > 0 {
			return condition(v1alpha1.Degraded, true, v1alpha1.ReasonEtcdAlarm, "%s: %s", m.Name, strings.Join(m.Alarms, "; "))
		}
	}
	var problems []string
	for i := range in.State.Pods {
		if problem := observed.Problem(&in.State.Pods[i]); problem != "" {
			problems = append(problems, problem)
		}
	}
	if len(problems) > 0 {
		slices.Sort(problems)
		return condition(v1alpha1.Degraded, true, v1alpha1.ReasonPodsFailing, "%s", strings.Join(problems, "; "))
	}
	if message := notCompared(in.State); message != "" {
		return condition(v1alpha1.Degraded, true, v1alpha1.ReasonVolumeNotCompared, "%s", message)
	}
	return condition(v1alpha1.Degraded, false, v1alpha1.ReasonAsExpected, "No problems detected")
}

// lostWrites describes the members that have acknowledged writes which the other members lack, or returns "".
func lostWrites(s *observed.State) string {
	var members, names []string
	for _, claim := range s.Claims {
		if m := s.Member(claim.Name); m != nil && m.Healthy {
			continue
		}
		if message := s.LostWrites(claim.Name); message != "" {
			members, names = append(members, claim.Name+" has stopped: "+strings.TrimRight(message, ".")), append(names,
				claim.Name)
		}
	}
	if len(members) == 0 {
		return ""
	}
	slices.Sort(members)
	slices.Sort(names)
	return fmt.Sprintf("%s. Nothing of it is deleted. To continue without these writes, set the annotation %s=%s",
		strings.Join(members, "; "), v1alpha1.ReplaceMembersAnnotation, strings.Join(names, ","))
}

// differentData returns a message with the reports of all members whose data differs from the data of other members at
// the same revision, or "".
func differentData(s *observed.State) string {
	var reports []string
	for _, m := range s.Members {
		if m.Report.Difference != "" {
			reports = append(reports, m.Name+" reports: "+m.Report.Difference)
		}
	}
	if len(reports) == 0 {
		return ""
	}
	slices.Sort(reports)
	return strings.Join(reports, "; ") + `. Nothing is changed. See "Damaged data" in docs/etcd.md`
}

// notCompared describes the claims of former members of the cluster that may have the only copy of acknowledged writes,
// or returns "".
func notCompared(s *observed.State) string {
	var claims []string
	for i := range s.Released {
		claim := &s.Released[i]
		reason := claim.Annotations[desired.UnprovenAnnotation]
		if reason != "" && claim.Annotations[desired.FormerMemberAnnotation] == string(s.Cluster.UID) &&
			claim.DeletionTimestamp == nil {
			claims = append(claims, "PersistentVolumeClaim "+claim.Name+" is kept: "+reason)
		}
	}
	if len(claims) == 0 {
		return ""
	}
	slices.Sort(claims)
	return strings.Join(claims, "; ") +
		". It may have acknowledged writes that the members lack; delete it when you do not need them"
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }
