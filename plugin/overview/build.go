package overview

import (
	"cmp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/util/cert"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
	"quorate.dev/plugin/replica"
)

// Input is the state of a cluster that Collect and Sample read and Build evaluates.
type Input struct {
	Cluster   *v1alpha1.ApiServerCluster
	Pods      []corev1.Pod // pods of the cluster
	Secrets   []corev1.Secret
	Backups   []v1alpha1.ApiServerBackup // backups of the cluster
	Schedules []v1alpha1.ApiServerBackupSchedule
	Events    []corev1.Event            // events of the namespace
	Samples   map[string]replica.Sample // by name of the pod
	Earlier   map[string]replica.Sample // earlier samples, from which rates are computed
	Notes     []string
	Now       time.Time

	Failures map[string]string // why the API server in a pod did not respond, by name of the pod

	BackupsUnknown bool // reading Backups or Schedules failed
	PodsUnknown    bool // reading Pods failed
}

// Build returns the overview of a cluster.
func Build(in Input) *Overview {
	c := in.Cluster
	o := &Overview{
		Name: c.Name, Namespace: c.Namespace, Created: c.CreationTimestamp.Time,
		Mode: cmp.Or(string(c.Spec.Mode), "Cluster"), Etcd: "embedded", Ready: c.Status.ReadyReplicas,
		Desired: int32(c.ReplicaCount()), Voters: c.Status.Voters, Version: c.Status.Version,
		Image: c.Status.Image, Endpoint: c.Status.Endpoint, Rotations: c.Status.Rotations, Notes: in.Notes,
		Conditions: c.Status.Conditions, Problems: []metav1.Condition{}, Replicas: replicas(in),
		Certificates: certificates(in.Secrets), Backups: backups(in.Backups, in.Schedules), Events: events(in),
	}
	o.Deletion = Deletion{
		Protected: c.Spec.Deletion.Protected, Retain: c.RetainsData(), FinalBackup: c.Spec.Deletion.FinalBackup != nil,
	}
	if c.DeletionTimestamp != nil {
		o.Deletion.Requested = &c.DeletionTimestamp.Time
	}
	if c.ExternalEtcd() {
		o.Etcd = "external"
	}
	for _, condition := range c.Status.Conditions {
		if !Expected(condition) {
			o.Problems = append(o.Problems, condition)
		}
	}
	if len(in.Pods) > 0 {
		o.Ready = ready(o.Replicas)
	}
	o.Alerts = alerts(o)
	o.Health = health(o, c)
	o.Next = next(o, in)
	return o
}

// badWhenTrue are the condition types whose status is False in a healthy cluster.
var badWhenTrue = []string{v1alpha1.Progressing, v1alpha1.Degraded, v1alpha1.CredentialsRotating, v1alpha1.Paused}

// Expected reports whether a condition has the status that it has in a cluster that needs no attention.
func Expected(c metav1.Condition) bool {
	if c.Reason == "Hibernated" {
		return true
	}
	if slices.Contains(badWhenTrue, c.Type) {
		return c.Status == metav1.ConditionFalse
	}
	return c.Status == metav1.ConditionTrue
}

// Settled reports whether a cluster matches its spec, and serves requests unless it is hibernated.
func Settled(c *v1alpha1.ApiServerCluster) bool {
	status := c.Status
	serves := meta.IsStatusConditionTrue(status.Conditions, v1alpha1.Available) || c.Hibernated()
	return status.ObservedGeneration == c.Generation && int(status.ReadyReplicas) == c.ReplicaCount() && serves &&
		meta.IsStatusConditionFalse(status.Conditions, v1alpha1.Progressing) && !c.RecoveryRequested()
}

// ready returns the number of ready API servers.
func ready(replicas []Replica) int32 {
	count := int32(0)
	for _, r := range replicas {
		if r.Ready {
			count++
		}
	}
	return count
}

func health(o *Overview, c *v1alpha1.ApiServerCluster) Health {
	has := func(kind string, status metav1.ConditionStatus) bool {
		return meta.IsStatusConditionPresentAndEqual(c.Status.Conditions, kind, status)
	}
	switch {
	case c.DeletionTimestamp != nil:
		return Deleting
	case has(v1alpha1.Paused, metav1.ConditionTrue):
		return Paused
	case has(v1alpha1.Degraded, metav1.ConditionTrue) && has(v1alpha1.Available, metav1.ConditionTrue):
		return Degraded
	case c.Hibernated() && Settled(c):
		return Hibernated
	case !has(v1alpha1.Available, metav1.ConditionTrue):
		return Unavailable
	case unreachable(c), idle(c) && len(downReplicas(o)) > 0:
		return Degraded
	case !Settled(c):
		return Progressing
	case has(v1alpha1.CertificatesValid, metav1.ConditionFalse), has(v1alpha1.APIServicesAvailable, metav1.ConditionFalse),
		has(v1alpha1.EtcdSpaceAvailable, metav1.ConditionFalse), has(v1alpha1.BackupReady, metav1.ConditionFalse):
		return Degraded
	}
	return Healthy
}

// idle reports whether the operator changes nothing at present, so that a replica that is not ready is a problem rather
// than a step of a change.
func idle(c *v1alpha1.ApiServerCluster) bool {
	progressing := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.Progressing)
	return progressing != nil && c.Status.ObservedGeneration == c.Generation &&
		(progressing.Status == metav1.ConditionFalse || progressing.Reason == v1alpha1.ReasonWaitingForReplicas)
}

// replicas returns the API servers of a cluster: one for each pod, and one for each etcd member without a pod.
func replicas(in Input) []Replica {
	byName := map[string]*Replica{}
	members := map[string]*v1alpha1.MemberStatus{}
	for _, m := range in.Cluster.Status.Members {
		members[m.Name] = &m
		r := &Replica{Name: m.Name, Role: cmp.Or(m.Role, "member"), DBSize: m.DBSize, Status: "NoPod"}
		if in.PodsUnknown {
			r.Status = "Unknown"
		}
		if m.UnhealthySince != nil {
			r.Unhealthy = m.UnhealthySince.UTC().Format(time.RFC3339)
		}
		byName[m.Name] = r
	}
	for i := range in.Pods {
		pod := &in.Pods[i]
		r := byName[pod.Name]
		if r == nil {
			r = &Replica{Name: pod.Name, Role: cmp.Or(pod.Labels[desired.RoleLabel], desired.RoleServer)}
			byName[pod.Name] = r
		}
		r.Node, r.Status, r.Restarts = pod.Spec.NodeName, podStatus(pod), restarts(pod)
	}
	newest := int64(0)
	for _, sample := range in.Samples {
		newest = max(newest, sample.Revision)
	}
	list := []Replica{}
	for name, r := range byName {
		r.problem = in.replicaProblem(members[name], podNamed(in.Pods, name))
		r.Problem, r.Ready = r.problem.text, r.problem.kind == noProblem && !in.Cluster.Hibernated()
		if sample, ok := in.Samples[name]; ok {
			r.Usage = usage(sample, in.Earlier[name], newest)
			r.DBSize = max(r.DBSize, sample.DBSize)
		}
		list = append(list, *r)
	}
	slices.SortFunc(list, func(a, b Replica) int {
		return cmp.Or(cmp.Compare(len(a.Name), len(b.Name)), strings.Compare(a.Name, b.Name))
	})
	return list
}

func podNamed(pods []corev1.Pod, name string) *corev1.Pod {
	for i := range pods {
		if pods[i].Name == name {
			return &pods[i]
		}
	}
	return nil
}

func usage(sample, earlier replica.Sample, newest int64) *Usage {
	u := &Usage{
		Revision: sample.Revision, Lag: newest - sample.Revision, Memory: sample.Memory,
		InFlight: sample.InFlight, Watches: sample.Watches, DBInUse: sample.DBInUse, DBQuota: sample.DBQuota,
	}
	if rates, ok := sample.Rates(earlier); ok {
		u.Requests, u.Errors, u.CPU = &rates.Requests, &rates.Errors, &rates.CPU
	}
	return u
}

// Ready reports whether a pod is ready.
func Ready(pod *corev1.Pod) bool {
	return slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// podStatus returns the status of a pod as kubectl prints it: the reason for which a container waits, or else the
// phase.
func podStatus(pod *corev1.Pod) string {
	if pod.DeletionTimestamp != nil {
		return "Terminating"
	}
	for _, status := range pod.Status.ContainerStatuses {
		if status.State.Waiting != nil && status.State.Waiting.Reason != "" {
			return status.State.Waiting.Reason
		}
	}
	return cmp.Or(pod.Status.Reason, string(pod.Status.Phase))
}

func restarts(pod *corev1.Pod) int32 {
	count := int32(0)
	for _, status := range pod.Status.ContainerStatuses {
		count += status.RestartCount
	}
	return count
}

// certificates returns the certificates in Secrets, sorted by expiration.
func certificates(secrets []corev1.Secret) []Certificate {
	var list []Certificate
	for _, secret := range secrets {
		chain, err := cert.ParseCertsPEM(secret.Data[corev1.TLSCertKey])
		if err != nil {
			continue // the Secret contains no certificate
		}
		list = append(list, Certificate{Secret: secret.Name, Authority: chain[0].IsCA, Expires: chain[0].NotAfter})
	}
	slices.SortFunc(list, func(a, b Certificate) int {
		return cmp.Or(a.Expires.Compare(b.Expires), strings.Compare(a.Secret, b.Secret))
	})
	return list
}

func backups(all []v1alpha1.ApiServerBackup, schedules []v1alpha1.ApiServerBackupSchedule) Backups {
	var out Backups
	for i := range all {
		switch b := &all[i]; {
		case !b.Finished() && waitsFor(b) != "":
			out.Waiting = append(out.Waiting, Waiting{b.Name, waitsFor(b)})
		case !b.Finished():
			out.Running = append(out.Running, b.Name)
		case b.Status.Phase == v1alpha1.BackupCompleted:
			out.Completed = later(out.Completed, finished(b))
		default:
			out.Failed = later(out.Failed, finished(b))
		}
	}
	if out.Completed != nil && out.Failed != nil && out.Completed.Finished.After(out.Failed.Finished) {
		out.Failed = nil
	}
	for _, s := range schedules {
		schedule := Schedule{Name: s.Name, Suspended: s.Spec.Suspend}
		if s.Status.NextScheduleTime != nil {
			schedule.Next = &s.Status.NextScheduleTime.Time
		}
		out.Schedules = append(out.Schedules, schedule)
	}
	return out
}

// waitsFor returns why an unfinished backup is not running, or "" if it is running.
func waitsFor(b *v1alpha1.ApiServerBackup) string {
	c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BackupComplete)
	if c == nil || c.Status != metav1.ConditionUnknown || c.Reason == v1alpha1.ReasonRunning {
		return ""
	}
	return c.Message
}

func finished(b *v1alpha1.ApiServerBackup) *Backup {
	out := &Backup{Name: b.Name, Size: b.Status.SizeBytes, Revision: b.Status.Revision, Location: b.Status.Location}
	if b.Status.CompletionTime != nil {
		out.Finished = b.Status.CompletionTime.Time
	}
	if c := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BackupComplete); c != nil &&
		c.Status != metav1.ConditionTrue {
		out.Message = c.Message
	}
	return out
}

func later(a, b *Backup) *Backup {
	if a == nil || b.Finished.After(a.Finished) {
		return b
	}
	return a
}

// eventLimit is the maximum number of events in an overview.
const eventLimit = 20

// events returns the events about objects that have the name of the cluster or of a pod of the cluster, newest first.
func events(in Input) []Event {
	about := map[string]bool{in.Cluster.Name: true}
	for _, pod := range in.Pods {
		about[pod.Name] = true
	}
	var list []Event
	for i := range in.Events {
		if e := &in.Events[i]; about[e.InvolvedObject.Name] {
			list = append(list, Event{
				Time: eventTime(e), Object: e.InvolvedObject.Kind + "/" + e.InvolvedObject.Name, Reason: e.Reason,
				Message: e.Message, Warning: e.Type == corev1.EventTypeWarning, Count: eventCount(e),
			})
		}
	}
	slices.SortStableFunc(list, func(a, b Event) int { return b.Time.Compare(a.Time) })
	return list[:min(len(list), eventLimit)]
}

// eventTime returns the time at which an event was last observed. Its field depends on the client that recorded the
// event.
func eventTime(e *corev1.Event) time.Time {
	switch {
	case e.Series != nil:
		return e.Series.LastObservedTime.Time
	case !e.LastTimestamp.IsZero():
		return e.LastTimestamp.Time
	case !e.EventTime.IsZero():
		return e.EventTime.Time
	}
	return e.CreationTimestamp.Time
}

func eventCount(e *corev1.Event) int32 {
	if e.Series != nil {
		return e.Series.Count
	}
	return max(1, e.Count)
}
