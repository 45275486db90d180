package backups

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/backup"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/schedule"
)

// retentionInterval is the longest requeue interval of a schedule, and so the precision of the retention by age.
const retentionInterval = 10 * time.Minute

// ScheduleReconciler reconciles ApiServerBackupSchedules.
type ScheduleReconciler struct {
	Client   client.Client
	Reader   client.Reader // reads from the API server, not from a cache
	Recorder events.EventRecorder
	Clock    clock.Clock
}

// SetupWithManager adds the controller to a manager.
func (r *ScheduleReconciler) SetupWithManager(manager ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(manager).
		For(&v1alpha1.ApiServerBackupSchedule{}).
		Watches(&v1alpha1.ApiServerBackup{}, handler.EnqueueRequestsFromMapFunc(scheduleOf)).
		Watches(&v1alpha1.ApiServerCluster{}, handler.EnqueueRequestsFromMapFunc(r.schedulesOf),
			builder.WithPredicates(predicate.GenerationChangedPredicate{})). // the cluster is hibernated, or started again
		Complete(r)
}

// scheduleOf returns a request for the schedule that has created a backup. It uses a label, because backups outlive
// their schedule and so have no owner reference to it.
func scheduleOf(_ context.Context, object client.Object) []reconcile.Request {
	name := object.GetLabels()[desired.ScheduleLabel]
	if name == "" {
		return nil
	}
	return []reconcile.Request{{NamespacedName: client.ObjectKey{Namespace: object.GetNamespace(), Name: name}}}
}

// schedulesOf returns requests for the schedules of a cluster.
func (r *ScheduleReconciler) schedulesOf(ctx context.Context, object client.Object) (requests []reconcile.Request) {
	var schedules v1alpha1.ApiServerBackupScheduleList
	if err := r.Client.List(ctx, &schedules, client.InNamespace(object.GetNamespace())); err != nil {
		return nil // each schedule is reconciled again after retentionInterval
	}
	for i := range schedules.Items {
		if s := &schedules.Items[i]; s.Spec.Template.ClusterName == object.GetName() {
			requests = append(requests, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(s)})
		}
	}
	return requests
}

// Reconcile creates the backup that is due, deletes expired backups, and updates the status of one schedule.
//
// The backup is created before its scheduled time is recorded as handled. If the operator stops in between, the next
// reconciliation tries to create the backup again, and its name exists already. Expired backups are deleted last, after
// the status was written, and a failure of one part does not prevent the others.
func (r *ScheduleReconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	s := &v1alpha1.ApiServerBackupSchedule{}
	if err := r.Reader.Get(ctx, request.NamespacedName, s); err != nil || s.DeletionTimestamp != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	backups := &v1alpha1.ApiServerBackupList{}
	err := r.Reader.List(ctx, backups, client.InNamespace(s.Namespace),
		client.MatchingLabels{desired.ScheduleLabel: s.Name})
	if err != nil {
		return ctrl.Result{}, err
	}
	hibernated, err := r.hibernated(ctx, s)
	if err != nil {
		return ctrl.Result{}, err
	}
	base, now := s.DeepCopy(), r.Clock.Now()
	times, invalid := schedule.Parse(s.Spec.Schedule, s.Spec.TimeZone)
	var next time.Time
	var failures error
	active, finished := summarize(s, backups)
	newest := backup.NewestOf(finished, now)
	s.Status.LastSuccessfulTime = nil
	if !newest.Succeeded.IsZero() {
		s.Status.LastSuccessfulTime = &metav1.Time{Time: newest.Succeeded}
	}
	if invalid == nil {
		decision := resumed(s, backups, backup.Decide(times, observation(s, active, hibernated, now)))
		next = decision.Next
		failures = r.apply(ctx, s, decision)
		healthy, reason, message := backup.Health(times, backup.Record{
			Now: now, Created: s.CreationTimestamp.Time, Suspended: s.Spec.Suspend, Hibernated: hibernated,
			Grace: grace(s), Newest: newest, Handled: s.Status.LastScheduleTime != nil,
			Pending: len(active) > 0 || decision.Create,
		})
		r.setBackupReady(s, healthy, reason, message, now)
	} else {
		r.setBackupReady(s, false, v1alpha1.ReasonInvalidSpec, "No backups are created: "+oneLine(invalid), now)
	}
	s.Status.ObservedGeneration = s.Generation
	s.Status.NextScheduleTime = nil
	if !next.IsZero() {
		s.Status.NextScheduleTime = &metav1.Time{Time: next}
	}
	setReady(s, invalid, now)
	failures = errors.Join(failures, r.patchStatus(ctx, base, s), r.expire(ctx, s, finished, now))
	if failures != nil {
		return ctrl.Result{}, failures
	}
	after := retentionInterval
	if !next.IsZero() {
		after = min(after, max(next.Sub(r.Clock.Now()), immediately))
	}
	if invalid == nil { // requeue when an unfinished or missing backup becomes overdue
		if due := times.Next(now.Add(-grace(s))).Add(grace(s)); due.After(now) {
			after = min(after, due.Sub(now)+immediately)
		}
	}
	return ctrl.Result{RequeueAfter: after}, nil
}

// summarize returns the names of the unfinished backups and the finished backups, and sets the number of unfinished
// backups in the status. It ignores backups that are being deleted.
func summarize(
	s *v1alpha1.ApiServerBackupSchedule, backups *v1alpha1.ApiServerBackupList,
) (active []string, finished []backup.Finished) {
	for i := range backups.Items {
		b := &backups.Items[i]
		switch {
		case b.DeletionTimestamp != nil:
		case !b.Finished():
			active = append(active, b.Name)
		case b.Status.CompletionTime != nil:
			finished = append(finished, backup.Finished{
				Name: b.Name, At: b.Status.CompletionTime.Time, Failed: b.Status.Phase == v1alpha1.BackupFailed,
			})
		}
	}
	slices.Sort(active)
	s.Status.Active = int32(len(active))
	return active, finished
}

// grace returns the time from a scheduled time until its backup has to be complete: the time in which it may start, and
// the time that it may take, by default an hour.
func grace(s *v1alpha1.ApiServerBackupSchedule) time.Duration {
	seconds := ptr.Deref(s.Spec.StartingDeadlineSeconds, 0) + int64(ptr.Deref(s.Spec.Template.TimeoutSeconds, 3600))
	return time.Duration(seconds) * time.Second
}

// setBackupReady sets the condition BackupReady, and records an event if its status has changed.
func (r *ScheduleReconciler) setBackupReady(
	s *v1alpha1.ApiServerBackupSchedule, healthy bool, reason, message string, now time.Time,
) {
	c := metav1.Condition{
		Type: v1alpha1.BackupReady, Status: metav1.ConditionFalse, Reason: reason, Message: message,
		ObservedGeneration: s.Generation, LastTransitionTime: metav1.NewTime(now),
	}
	kind := corev1.EventTypeWarning
	if healthy {
		c.Status, kind = metav1.ConditionTrue, corev1.EventTypeNormal
	}
	old := meta.FindStatusCondition(s.Status.Conditions, c.Type)
	if old != nil && old.Status != c.Status || old == nil && !healthy {
		r.event(s, kind, reason, message)
	}
	meta.SetStatusCondition(&s.Status.Conditions, c)
}

// hibernated reports whether the cluster of a schedule exists and is hibernated.
func (r *ScheduleReconciler) hibernated(ctx context.Context, s *v1alpha1.ApiServerBackupSchedule) (bool, error) {
	cluster := &v1alpha1.ApiServerCluster{}
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: s.Namespace, Name: s.Spec.Template.ClusterName}, cluster)
	return err == nil && cluster.Hibernated(), client.IgnoreNotFound(err)
}

// observation returns the input of backup.Decide.
func observation(
	s *v1alpha1.ApiServerBackupSchedule, active []string, hibernated bool, now time.Time,
) backup.Observation {
	o := backup.Observation{
		Now: now, Created: s.CreationTimestamp.Time, Suspend: s.Spec.Suspend, Hibernated: hibernated,
		Policy: backup.Concurrency(s.Spec.ConcurrencyPolicy), Active: active,
		Deadline: time.Duration(ptr.Deref(s.Spec.StartingDeadlineSeconds, 0)) * time.Second,
	}
	if s.Status.LastScheduleTime != nil {
		o.Last = s.Status.LastScheduleTime.Time
	}
	return o
}

// resumed corrects a decision if the backup of its scheduled time exists already, because the operator stopped after
// the creation and before it recorded the time. This backup is unfinished, but the policy must not replace it, or skip
// its time because of it.
func resumed(
	s *v1alpha1.ApiServerBackupSchedule, backups *v1alpha1.ApiServerBackupList, d backup.Decision,
) backup.Decision {
	name := backupName(s, d.Handled)
	if !d.Handled.IsZero() &&
		slices.ContainsFunc(backups.Items, func(b v1alpha1.ApiServerBackup) bool { return b.Name == name }) {
		d.Create, d.Delete, d.Missed = true, nil, ""
	}
	return d
}

// backupName returns the name of the backup of a scheduled time. It has the same form as for the Jobs of a CronJob.
func backupName(s *v1alpha1.ApiServerBackupSchedule, at time.Time) string {
	return fmt.Sprintf("%s-%d", s.Name, at.Unix()/60)
}

// apply executes a decision and records the scheduled time as handled. The name of a backup follows from its scheduled
// time, so that the repetition of a decision does not create a second backup.
func (r *ScheduleReconciler) apply(ctx context.Context, s *v1alpha1.ApiServerBackupSchedule, d backup.Decision) error {
	if d.Handled.IsZero() {
		return nil
	}
	for _, name := range d.Delete {
		unfinished := &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}
		if err := r.Client.Delete(ctx, unfinished); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete backup %s: %w", name, err)
		}
		r.event(s, corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulDelete, "Deleted unfinished backup "+name)
	}
	if d.Create {
		if err := r.create(ctx, s, d.Handled); err != nil {
			return err
		}
	} else {
		r.event(s, corev1.EventTypeWarning, v1alpha1.ReasonBackupSkipped,
			fmt.Sprintf("Skipped the backup of %s: %s", d.Handled.Format(time.RFC3339), d.Missed))
	}
	s.Status.LastScheduleTime = &metav1.Time{Time: d.Handled}
	return nil
}

func (r *ScheduleReconciler) create(ctx context.Context, s *v1alpha1.ApiServerBackupSchedule, at time.Time) error {
	b := &v1alpha1.ApiServerBackup{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: s.Namespace, Name: backupName(s, at),
			Labels: map[string]string{desired.ScheduleLabel: s.Name, desired.ManagedByLabel: desired.ManagedBy},
		},
		Spec: v1alpha1.ApiServerBackupSpec(*s.Spec.Template.DeepCopy()),
	}
	err := r.Client.Create(ctx, b)
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("create backup %s: %w", b.Name, err)
	}
	r.event(s, corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulCreate, "Created backup "+b.Name)
	return nil
}

// needed returns the names of the backups that clusters are restored from, or have been requested to be restored from.
// A backup that is named by its location has its name at the end of the path. A location with the same last element in
// another destination keeps a backup longer than necessary, which is harmless.
func (r *ScheduleReconciler) needed(ctx context.Context, namespace string) (map[string]bool, error) {
	var clusters v1alpha1.ApiServerClusterList
	if err := r.Reader.List(ctx, &clusters, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("list clusters: %w", err)
	}
	names := map[string]bool{}
	for i := range clusters.Items {
		for _, from := range sources(&clusters.Items[i]) {
			names[from.BackupName] = true
			if from.Location != nil { // the path ends in the name of the backup
				names[path.Base(from.Location.Path)] = true
			}
		}
	}
	return names, nil
}

// sources returns where a cluster is restored from, and where it has been requested to be restored from.
func sources(cluster *v1alpha1.ApiServerCluster) (all []v1alpha1.RestoreSource) {
	if cluster.Restoring() {
		all = append(all, cluster.Spec.Restore.From)
	}
	if cluster.RecoveryRequested() && cluster.Spec.Recovery.From != nil {
		all = append(all, *cluster.Spec.Recovery.From)
	}
	recovering := cluster.Recovering(v1alpha1.RecoveryStopping, v1alpha1.RecoveryRestoring)
	if recovering && cluster.Status.Recovery.Request.From != nil {
		all = append(all, *cluster.Status.Recovery.Request.From)
	}
	return all
}

// expire deletes the backups beyond the limits of the schedule, except for those that clusters need for a restore. The
// clusters are read only if a backup has expired. Whether the data is deleted, too, is decided by deletionPolicy of the
// backup.
func (r *ScheduleReconciler) expire(
	ctx context.Context, s *v1alpha1.ApiServerBackupSchedule, finished []backup.Finished, now time.Time,
) error {
	limits := backup.Limits{Failed: int(ptr.Deref(s.Spec.FailedBackupsHistoryLimit, 3))}
	if count := s.Spec.Retention.Count; count != nil {
		limits.Count = ptr.To(int(*count))
	}
	if age := s.Spec.Retention.Age; age != nil {
		limits.Age = age.Duration
	}
	names := backup.Expired(finished, limits, now)
	if len(names) == 0 {
		return nil
	}
	needed, err := r.needed(ctx, s.Namespace)
	if err != nil {
		return err
	}
	for _, name := range names {
		if needed[name] {
			continue
		}
		expired := &v1alpha1.ApiServerBackup{ObjectMeta: metav1.ObjectMeta{Namespace: s.Namespace, Name: name}}
		if err := r.Client.Delete(ctx, expired); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete backup %s: %w", name, err)
		}
		r.event(s, corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulDelete, "Deleted expired backup "+name)
	}
	return nil
}

func oneLine(err error) string { return strings.ReplaceAll(err.Error(), "\n", "; ") }

func setReady(s *v1alpha1.ApiServerBackupSchedule, invalid error, now time.Time) {
	c := metav1.Condition{
		Type: v1alpha1.ScheduleReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonScheduled,
		ObservedGeneration: s.Generation, Message: "Backups are created on schedule", LastTransitionTime: metav1.NewTime(now),
	}
	switch {
	case invalid != nil:
		c.Status, c.Reason, c.Message = metav1.ConditionFalse, v1alpha1.ReasonInvalidSpec, oneLine(invalid)
	case s.Spec.Suspend:
		c.Status, c.Reason, c.Message =
			metav1.ConditionFalse, v1alpha1.ReasonSuspended, "No backups are created while spec.suspend is true"
	}
	meta.SetStatusCondition(&s.Status.Conditions, c)
}

// patchStatus writes the status if it differs. The patch has no optimistic lock: if a scheduled time is handled twice,
// the name of its backup exists already.
func (r *ScheduleReconciler) patchStatus(ctx context.Context, base, s *v1alpha1.ApiServerBackupSchedule) error {
	if data, err := client.MergeFrom(base).Data(s); err != nil || string(data) == "{}" {
		return err
	}
	return r.Client.Status().Patch(ctx, s, client.MergeFrom(base))
}

func (r *ScheduleReconciler) event(s *v1alpha1.ApiServerBackupSchedule, kind, reason, message string) {
	r.Recorder.Eventf(s, nil, kind, reason, "Schedule", "%s", message[:min(len(message), 1000)])
}
