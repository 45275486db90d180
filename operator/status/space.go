package status

import (
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/etcd"
)

// softQuotaPercent is the default of --etcd-soft-quota-percent: the share of the quota at which API servers start to
// refuse to create objects. Above fragmentedPercent of the quota, a database file has no room for large objects, even
// if much of it is unused.
const (
	softQuotaPercent  = 90
	fragmentedPercent = 98
)

// space is true while the databases of all members are below their soft quota.
func space(cluster *v1alpha1.ApiServerCluster, in Input) metav1.Condition {
	if in.State == nil {
		return unknown(v1alpha1.EtcdSpaceAvailable)
	}
	if last := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.EtcdSpaceAvailable); in.State.EtcdErr != nil &&
		last != nil {
		return *last
	}
	if in.State.EtcdErr != nil {
		return metav1.Condition{
			Type: v1alpha1.EtcdSpaceAvailable, Status: metav1.ConditionUnknown, Reason: v1alpha1.ReasonEtcdUnreachable,
			Message: "The etcd members do not report the size of their databases",
		}
	}
	var full []string
	alarm, fragmented := false, false
	for _, m := range in.State.Members {
		alarm = alarm || m.NoSpace
		fragmented = fragmented || m.Quota > 0 && m.DBSize >= m.Quota/100*fragmentedPercent
		if m.Quota > 0 && m.InUse >= m.Quota/100*softQuotaPercent {
			full = append(full, usage(m))
		}
	}
	const advice = "Delete objects, or raise spec.storage.size"
	switch {
	case alarm && len(full) == 0:
		return condition(v1alpha1.EtcdSpaceAvailable, false, v1alpha1.ReasonNoSpace,
			"etcd accepts only deletions until its databases are defragmented: %s", defragmentation(cluster))
	case alarm:
		return condition(v1alpha1.EtcdSpaceAvailable, false, v1alpha1.ReasonNoSpace,
			"etcd accepts only deletions: %s. %s", strings.Join(full, ", "), advice)
	case len(full) == 0 && fragmented:
		return condition(v1alpha1.EtcdSpaceAvailable, false, v1alpha1.ReasonFragmented,
			"API servers refuse large objects until the databases are defragmented: %s", defragmentation(cluster))
	case len(full) > 0:
		return condition(v1alpha1.EtcdSpaceAvailable, false, v1alpha1.ReasonSoftQuotaExceeded,
			"API servers refuse to create objects: %s. %s", strings.Join(full, ", "), advice)
	}
	return condition(v1alpha1.EtcdSpaceAvailable, true, v1alpha1.ReasonSpaceAvailable,
		"All databases are below %d%% of their quota", softQuotaPercent)
}

func usage(m etcd.Member) string {
	return fmt.Sprintf("%s uses %d%% of %d MiB", m.Name, m.InUse/(m.Quota/100), m.Quota>>20)
}

// defragmentation describes how the operator handles unused space.
func defragmentation(cluster *v1alpha1.ApiServerCluster) string {
	d := cluster.Status.Defragmentation
	enabled, _, _, _ := cluster.DefragmentationLimits()
	switch {
	case d != nil && d.Member != "":
		return "defragmenting " + d.Member
	case d != nil && d.Message != "":
		return d.Message
	case !enabled:
		return "spec.etcd.embedded.defragmentation is disabled"
	}
	return "waiting for other changes to finish, and for the other members to have a quorum"
}
