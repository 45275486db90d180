package status

import (
	"cmp"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

// recovered is true once the last request in spec.recovery is handled.
func recovered(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	r := cluster.Status.Recovery
	switch {
	case cluster.RecoveryRequested():
		return condition(v1alpha1.Recovered, false, v1alpha1.ReasonPending, "Request %q: %s", cluster.Spec.Recovery.RequestID,
			cmp.Or(in.Action.Reason, "waiting until the quorum is known to be lost"))
	case r == nil:
		return unknown(v1alpha1.Recovered)
	case r.Stage == v1alpha1.RecoveryNotNeeded:
		return condition(v1alpha1.Recovered, true, v1alpha1.ReasonNotNeeded,
			"Request %q: etcd had a quorum", r.Request.RequestID)
	case r.Stage == v1alpha1.RecoveryCompleted:
		return condition(v1alpha1.Recovered, true, v1alpha1.ReasonQuorumRecovered,
			"Request %q: etcd continues from revision %d with the data of %s%s; later writes were lost",
			r.Request.RequestID, r.Revision, r.Source(), unverified(r.Verification))
	}
	return condition(v1alpha1.Recovered, false, cmp.Or(r.Reason, string(r.Stage)), "Request %q: %s", r.Request.RequestID,
		cmp.Or(r.Message, in.Action.Reason, "recovering from "+r.Member))
}
