package overview

import (
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

const (
	// noOperatorAfter is the age of a cluster without status from which on it is assumed to have no operator.
	noOperatorAfter = 30 * time.Second
	// backupAge is the age of the newest backup from which on another backup is suggested.
	backupAge = 7 * 24 * time.Hour
	// quotaShare is the fraction of the quota from which on a database counts as nearly full.
	quotaShare = 0.8
)

// advice determines the next step for a cluster.
type advice struct {
	*Overview
	cluster *v1alpha1.ApiServerCluster
	now     time.Time

	backupsUnknown bool
}

// rules are the possible next steps, ordered by urgency. A rule that does not apply returns an empty step.
var rules = []func(advice) Step{
	advice.deleted, advice.noOperator, advice.paused, advice.invalid, advice.recovering, advice.restoring, advice.quorum,
	advice.unreachable, advice.certificate, advice.memberDown, advice.degraded, advice.hibernated, advice.unavailable,
	advice.progressing, advice.space, advice.apiServices, advice.overdue, advice.rotating, advice.backup,
}

// next returns the step of the first rule that applies.
func next(o *Overview, in Input) Step {
	for _, rule := range rules {
		if step := rule(advice{o, in.Cluster, in.Now, in.BackupsUnknown}); step.Text != "" {
			return step
		}
	}
	return Step{Text: "Nothing to do."}
}

// condition returns the condition of a type if it has a status, and nil otherwise.
func (a advice) condition(kind string, status metav1.ConditionStatus) *metav1.Condition {
	if c := meta.FindStatusCondition(a.cluster.Status.Conditions, kind); c != nil && c.Status == status {
		return c
	}
	return nil
}

// command returns a command line of kubectl in the namespace of the cluster.
func (a advice) command(format string, args ...any) string {
	line := "kubectl " + fmt.Sprintf(format, args...)
	if a.Namespace != metav1.NamespaceDefault {
		line += " -n " + a.Namespace
	}
	return line
}

func (a advice) deleted() Step {
	if a.cluster.DeletionTimestamp == nil {
		return Step{}
	}
	wait := a.command("quorate wait %s --for=deleted", a.Name)
	switch c := a.condition(v1alpha1.Deleting, metav1.ConditionFalse); {
	case c != nil && c.Reason == v1alpha1.ReasonDeletionProtected:
		return Step{
			"The deletion was requested, but the cluster is protected and keeps running. Turn the protection off to delete " +
				"it; to keep its data, set spec.deletion.policy to Retain first.",
			a.command(`patch asc %s --type=merge -p '{"spec":{"deletion":{"protected":false}}}'`, a.Name),
		}
	case c != nil && c.Reason == v1alpha1.ReasonWaitingForFinalBackup:
		return Step{"The deletion waits. " + c.Message, wait}
	case c != nil:
		return Step{"The deletion waits. " + c.Message, a.command("edit asc %s", a.Name)}
	case a.cluster.RetainsData():
		return Step{"The operator deletes the cluster. Its volumes and keys stay.", wait}
	}
	return Step{"The operator deletes the cluster with its volumes.", wait}
}

func (a advice) noOperator() Step {
	if a.cluster.Status.ObservedGeneration != 0 || len(a.Conditions) > 0 || a.now.Sub(a.Created) < noOperatorAfter {
		return Step{}
	}
	return Step{
		"The operator has not processed the cluster. Check that it runs and watches namespace " + a.Namespace + ".",
		"kubectl get pods -A -l app.kubernetes.io/name=quorate-operator",
	}
}

func (a advice) paused() Step {
	if c := a.condition(v1alpha1.Paused, metav1.ConditionTrue); c != nil {
		return Step{
			"The cluster is paused: no member or certificate is replaced. Resume it when the work on it is finished.",
			a.command("annotate asc %s %s-", a.Name, v1alpha1.PausedUntilAnnotation),
		}
	}
	return Step{}
}

func (a advice) invalid() Step {
	c := a.condition(v1alpha1.Degraded, metav1.ConditionTrue)
	if c == nil || c.Reason != "InvalidSpec" && c.Reason != "InvalidConfiguration" {
		return Step{}
	}
	return Step{"Correct the spec: " + c.Message, a.command("edit asc %s", a.Name)}
}

func (a advice) recovering() Step {
	r := a.cluster.Status.Recovery
	stages := a.cluster.Recovering(v1alpha1.RecoveryStopping, v1alpha1.RecoveryRestoring, v1alpha1.RecoveryStarting)
	if !a.cluster.RecoveryRequested() && !stages {
		return Step{}
	}
	text := "Wait for the recovery."
	if r != nil && r.Message != "" {
		text = "The recovery makes no progress: " + r.Message
	}
	return Step{text, a.command("quorate wait %s --for=recovered", a.Name)}
}

func (a advice) restoring() Step {
	c := a.condition(v1alpha1.Restored, metav1.ConditionFalse)
	switch {
	case c == nil:
		return Step{}
	case c.Reason == "Restoring":
		return Step{"Wait until the backup is restored.", a.command("quorate wait %s --for=restored", a.Name)}
	}
	return Step{"The backup cannot be restored yet: " + c.Message, a.command("edit asc %s", a.Name)}
}

func (a advice) quorum() Step {
	c := a.condition(v1alpha1.EtcdQuorum, metav1.ConditionFalse)
	if c == nil || c.Reason != "QuorumLost" {
		return Step{}
	}
	text := "etcd has no quorum"
	if list := downReplicas(a.Overview); len(list) > 0 {
		text += ": " + sentences(list)
	}
	return Step{
		text + ". Restore the nodes and volumes of these members: nothing is lost then. If a majority of the volumes is " +
			"lost, continue with the newest data that is left.",
		a.command("quorate recover %s", a.Name),
	}
}

// unreachable names the API servers that do not respond, before the operator considers the quorum lost.
func (a advice) unreachable() Step {
	if !unreachable(a.cluster) || a.cluster.Hibernated() {
		return Step{}
	}
	list := downReplicas(a.Overview)
	if len(list) == 0 {
		return Step{
			"etcd does not respond to the operator. Check whether its members run.", a.command("quorate logs %s", a.Name),
		}
	}
	return Step{
		"etcd does not respond to the operator: " + sentences(list) + ".", a.command("describe pod %s", list[0].Name),
	}
}

// deleteAfter is how long a member must be unhealthy before its deletion is suggested. Many members return earlier.
const deleteAfter = time.Minute

// memberDown returns the step that the runbook QuorateMemberDown recommends.
func (a advice) memberDown() Step {
	list := downReplicas(a.Overview)
	if len(list) == 0 || a.cluster.Hibernated() {
		return Step{}
	}
	r := list[0]
	age := time.Duration(0)
	if since, err := time.Parse(time.RFC3339, r.Unhealthy); err == nil {
		age = a.now.Sub(since)
	}
	if !idle(a.cluster) && age < deleteAfter && r.problem.kind != blocked && r.problem.kind != crashing {
		return Step{} // probably a step of a change
	}
	text := sentences(list) + "."
	describe := a.command("describe pod %s", r.Name)
	switch {
	case r.problem.kind == noPod, r.problem.kind == lostData && a.replaceable(list):
		return Step{text + " The operator replaces it. Wait until it is ready.", a.command("quorate wait %s", a.Name)}
	case r.problem.kind == lostData:
		return Step{
			text + " It is the only member that is left: restore its volume, or recover the cluster from a backup.",
			a.command("quorate recover %s", a.Name),
		}
	case r.problem.kind == lostWrites:
		return Step{
			text + " Its volume is kept. To continue without these writes, request its replacement.",
			a.command("annotate apiserverclusters %s %s=%s", a.Name, v1alpha1.ReplaceMembersAnnotation, r.Name),
		}
	case r.problem.kind == blocked:
		return Step{text + " Correct the cause.", describe}
	case r.problem.kind == crashing:
		return Step{text + " Find the cause in its log.", a.command("logs %s --tail=100", r.Name)}
	case a.replaceable(list) && (age >= deleteAfter || r.problem.kind == unschedulable):
		return Step{
			fmt.Sprintf("%s The operator replaces a member that is unhealthy for %s. If its node or volume is lost, replace "+
				"it now.",
				text, a.cluster.ReplaceUnhealthyAfter()),
			a.command("delete pvc/%s pod/%s --wait=false", r.Name, r.Name),
		}
	}
	return Step{text, describe}
}

// replaceable reports whether the first API server in a list of those that are down is an etcd member, and the voters
// that are not in the list have a quorum.
func (a advice) replaceable(list []Replica) bool {
	voters, lost := 0, 0
	for _, r := range a.Replicas {
		if r.Role != "leader" && r.Role != "voter" {
			continue
		}
		voters++
		if slices.ContainsFunc(list, func(other Replica) bool { return other.Name == r.Name }) {
			lost++
		}
	}
	return list[0].Role != desired.RoleServer && voters-lost > voters/2 && voters-lost > 0 &&
		a.condition(v1alpha1.EtcdQuorum, metav1.ConditionTrue) != nil
}

func (a advice) certificate() Step {
	if c := a.condition(v1alpha1.CertificatesValid, metav1.ConditionFalse); c != nil {
		return Step{c.Message + ". Find out why it is not renewed.", a.command("quorate logs %s --operator", a.Name)}
	}
	return Step{}
}

func (a advice) degraded() Step {
	c := a.condition(v1alpha1.Degraded, metav1.ConditionTrue)
	if c == nil {
		return Step{}
	}
	command := a.command("quorate logs %s", a.Name)
	switch c.Reason {
	case v1alpha1.ReasonReconcileFailed:
		command = a.command("quorate logs %s --operator", a.Name)
	case v1alpha1.ReasonDecryptionNotConfirmed, v1alpha1.ReasonEtcdUnreachable:
		command = a.command("edit asc %s", a.Name)
	case v1alpha1.ReasonSecretLost:
		command = a.command("get secrets -l quorate.dev/cluster=%s", a.Name)
	case v1alpha1.ReasonVolumeExpansionFailed, v1alpha1.ReasonVolumeNotCompared:
		command = a.command("get persistentvolumeclaims -l quorate.dev/cluster=%s", a.Name)
	case v1alpha1.ReasonEtcdAlarm:
		command = a.command("quorate top %s", a.Name)
	}
	return Step{"Solve the problem that the operator cannot repair: " + c.Message, command}
}

func (a advice) hibernated() Step {
	if !a.cluster.Hibernated() {
		return Step{}
	}
	return Step{"The cluster hibernates. Start it by scaling it up.", a.command("scale asc %s --replicas=3", a.Name)}
}

func (a advice) unavailable() Step {
	if a.condition(v1alpha1.Available, metav1.ConditionTrue) != nil {
		return Step{}
	}
	return Step{
		"Wait until an API server is ready. If none starts, read the logs.",
		a.command("quorate wait %s --for=available", a.Name),
	}
}

func (a advice) progressing() Step {
	if Settled(a.cluster) {
		return Step{}
	}
	text := "Wait until the change is complete."
	if c := a.condition(v1alpha1.Progressing, metav1.ConditionTrue); c != nil && c.Message != "" {
		text = "Wait until the change is complete: " + c.Message
	}
	return Step{text, a.command("quorate wait %s", a.Name)}
}

func (a advice) space() Step {
	if c := a.condition(v1alpha1.EtcdSpaceAvailable, metav1.ConditionFalse); c != nil {
		return Step{c.Message, a.command("quorate top %s", a.Name)}
	}
	for _, r := range a.Replicas {
		if r.Usage == nil || r.Usage.DBQuota == 0 || float64(r.Usage.DBInUse) < quotaShare*float64(r.Usage.DBQuota) {
			continue
		}
		return Step{
			fmt.Sprintf("The database of %s uses %d%% of its quota. Delete objects, or increase spec.storage.size.",
				r.Name, 100*r.Usage.DBInUse/r.Usage.DBQuota),
			a.command("quorate top %s", a.Name),
		}
	}
	return Step{}
}

func (a advice) overdue() Step {
	if c := a.condition(v1alpha1.BackupReady, metav1.ConditionFalse); c != nil {
		return Step{c.Message, a.command("get asb")}
	}
	return Step{}
}

func (a advice) apiServices() Step {
	if c := a.condition(v1alpha1.APIServicesAvailable, metav1.ConditionFalse); c != nil {
		return Step{c.Message, a.command("get asc %s -o jsonpath='{.status.apiServices}'", a.Name)}
	}
	return Step{}
}

func (a advice) rotating() Step {
	if a.cluster.Status.Rotations == nil || a.cluster.Status.Rotations.Authorities == nil {
		return Step{}
	}
	return Step{
		"Authorities are being replaced. Distribute new copies of kubeconfigs before the overlap ends.",
		a.command("quorate kubeconfig %s", a.Name),
	}
}

func (a advice) backup() Step {
	done, failed := a.Backups.Completed, a.Backups.Failed
	command := a.command("quorate backup %s", a.Name)
	switch {
	case len(a.Backups.Waiting) > 0:
		waiting := a.Backups.Waiting[0]
		return Step{"Backup " + waiting.Name + " is waiting: " + waiting.Message, a.command("describe asb %s", waiting.Name)}
	case a.Etcd == "external" || a.backupsUnknown || len(a.Backups.Running) > 0:
		return Step{}
	case failed != nil:
		return Step{"The last backup, " + failed.Name + ", failed: " + failed.Message, command}
	case done == nil && len(a.Backups.Schedules) == 0:
		return Step{"There is no backup. Create one, to a volume or to S3.", command + " --claim=CLAIM"}
	case done != nil && a.now.Sub(done.Finished) > backupAge:
		return Step{
			fmt.Sprintf("The newest backup is %d days old. Create another one.", int(a.now.Sub(done.Finished).Hours()/24)),
			command,
		}
	}
	return Step{}
}
