package backups

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/clock"
	"k8s.io/utils/ptr"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/backup"
	"quorate.dev/operator/desired"
	"quorate.dev/operator/limited"
)

// finalizer keeps a backup until its pods and, if deletionPolicy is Delete, its data are deleted.
const finalizer = "quorate.dev/backup"

const (
	// waitInterval is the requeue interval of a backup that waits for its cluster or its pod.
	waitInterval = 2 * time.Second
	// firstRetry is the first delay after a conflict; it doubles with each further one.
	firstRetry  = 250 * time.Millisecond
	immediately = time.Millisecond
	workers     = 4
)

// Reconciler reconciles ApiServerBackups.
type Reconciler struct {
	Client   client.Client
	Reader   client.Reader // reads from the API server, not from a cache
	Recorder events.EventRecorder
	Clock    clock.Clock
	Image    string // image for clusters without an image in their status
	// Retries computes the delays after conflicts; see NewRetries.
	Retries *limited.Retries
}

// SetupWithManager adds the controller to a manager.
func (r *Reconciler) SetupWithManager(manager ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(manager).
		For(&v1alpha1.ApiServerBackup{}).
		Owns(&corev1.Pod{}).
		WithOptions(controller.Options{MaxConcurrentReconciles: workers}).
		Complete(r)
}

// NewRetries returns delays after conflicts that begin with firstRetry.
func NewRetries() *limited.Retries { return limited.NewRetries(firstRetry) }

// Reconcile takes the next step of one backup.
func (r *Reconciler) Reconcile(ctx context.Context, request ctrl.Request) (ctrl.Result, error) {
	b := &v1alpha1.ApiServerBackup{}
	if err := r.Reader.Get(ctx, request.NamespacedName, b); err != nil {
		r.Retries.Forget(request.NamespacedName)
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if b.DeletionTimestamp != nil {
		return r.remove(ctx, b)
	}
	if !controllerutil.ContainsFinalizer(b, finalizer) {
		return ctrl.Result{RequeueAfter: immediately}, r.addFinalizer(ctx, b)
	}
	if b.Finished() {
		return ctrl.Result{}, r.deleteFinishedPod(ctx, b)
	}
	result, err := r.advance(ctx, b)
	if apierrors.IsConflict(err) {
		return ctrl.Result{RequeueAfter: r.Retries.Conflict(request.NamespacedName)}, nil
	}
	r.Retries.Forget(request.NamespacedName)
	return result, err
}

// advance takes the next step of an unfinished backup. It observes the cluster, the pod and the objects that the pod
// needs, lets backup.Advance decide, and executes the step. A cluster that does not exist is not an error: the backup
// waits for it until its timeout. A pod of another owner with the name of the backup's pod is not an error: the backup
// waits until the user deletes this pod, or until its timeout.
func (r *Reconciler) advance(ctx context.Context, b *v1alpha1.ApiServerBackup) (ctrl.Result, error) {
	cluster := &v1alpha1.ApiServerCluster{}
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: b.Spec.ClusterName}, cluster)
	if client.IgnoreNotFound(err) != nil {
		return ctrl.Result{}, err
	}
	found := err == nil
	pod, foreign := r.pod(ctx, b, desired.BackupPodName(b))
	if foreign != nil && !errors.Is(foreign, errForeign) {
		return ctrl.Result{}, foreign
	}
	attempt, err := r.attempt(ctx, b, cluster, pod, blocked(cluster, found))
	if err != nil {
		return ctrl.Result{}, err
	}
	if foreign != nil {
		attempt.MissingReason, attempt.Missing = v1alpha1.ReasonPodNotStarting, foreign.Error()
	}
	step, reason := backup.Advance(attempt)
	switch step {
	case backup.Collect:
		return ctrl.Result{}, r.collect(ctx, b, pod)
	case backup.Fail:
		return ctrl.Result{}, r.fail(ctx, b, reason)
	case backup.Start:
		return ctrl.Result{RequeueAfter: immediately}, r.start(ctx, b, pod, reason)
	case backup.Run:
		return ctrl.Result{RequeueAfter: waitInterval}, r.runPod(ctx, b, cluster)
	}
	return ctrl.Result{RequeueAfter: waitInterval}, r.wait(ctx, b, attempt, reason)
}

// attempt returns the input of backup.Advance. pod is the pod of the backup, or nil. While the backup is blocked,
// Secrets of the cluster are not required, because the cluster may not have created them yet.
func (r *Reconciler) attempt(
	ctx context.Context, b *v1alpha1.ApiServerBackup, cluster *v1alpha1.ApiServerCluster, pod *corev1.Pod, blocked string,
) (backup.Attempt, error) {
	a := backup.Attempt{
		Now: r.Clock.Now(), Created: b.CreationTimestamp.Time,
		Timeout:      time.Duration(ptr.Deref(b.Spec.TimeoutSeconds, 3600)) * time.Second,
		StartTimeout: startTimeout(b),
		Attempts:     int(b.Status.Attempts), Pod: stateOf(pod), Failure: Failure(pod), Blocked: blocked,
	}
	if pod != nil {
		a.PodCreated, a.Obstacle = pod.CreationTimestamp.Time, obstacle(pod, a.Now)
		return a, nil
	}
	secrets := desired.BackupSecrets(b)
	if blocked == "" {
		secrets = append(secrets, desired.BackupClusterSecrets(cluster)...)
	}
	var err error
	a.MissingReason, a.Missing, err = r.missing(ctx, b, secrets)
	return a, err
}

func startTimeout(b *v1alpha1.ApiServerBackup) time.Duration {
	return time.Duration(ptr.Deref(b.Spec.StartTimeoutSeconds, 300)) * time.Second
}

// blocked returns why no attempt to back up a cluster can start now, or "". A running attempt is not affected. The
// quorum is taken from the status of the cluster, which may be a few seconds old; an attempt without a quorum fails and
// is repeated.
func blocked(cluster *v1alpha1.ApiServerCluster, found bool) string {
	switch {
	case !found:
		return "the ApiServerCluster does not exist"
	case cluster.ExternalEtcd():
		return "the ApiServerCluster uses an external etcd, which the operator does not back up"
	case cluster.Hibernated():
		return "the ApiServerCluster is hibernated"
	case !cluster.Bootstrapped() || !meta.IsStatusConditionTrue(cluster.Status.Conditions, v1alpha1.EtcdQuorum):
		return "the etcd of the ApiServerCluster has no quorum"
	}
	return ""
}

// errForeign marks the error that a pod with the name of a backup's pod has another owner.
var errForeign = errors.New("is not owned by this backup")

// pod returns the pod of a backup with a name, or nil. A pod of another owner is an error: it would be taken for an
// attempt of this backup, and deleted with it.
func (r *Reconciler) pod(ctx context.Context, b *v1alpha1.ApiServerBackup, name string) (*corev1.Pod, error) {
	pod := &corev1.Pod{}
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: name}, pod)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, err
	case !metav1.IsControlledBy(pod, b):
		return nil, fmt.Errorf("a pod named %s exists and %w; delete it", name, errForeign)
	}
	return pod, nil
}

// stateOf returns the state of a backup's pod, which may be nil. Success counts also while the pod is terminating,
// because its result is complete. A failed pod that is terminating does not: the next attempt starts when the pod is
// gone.
func stateOf(pod *corev1.Pod) backup.PodState {
	switch {
	case pod == nil:
		return backup.PodMissing
	case pod.Status.Phase == corev1.PodSucceeded:
		return backup.PodSucceeded
	case pod.DeletionTimestamp != nil:
		return backup.PodTerminating
	case pod.Status.Phase == corev1.PodFailed:
		return backup.PodFailed
	case pod.Status.Phase != corev1.PodRunning:
		return backup.PodStarting
	}
	return backup.PodActive
}

// Failure returns why a pod has failed, or "" if it has not.
func Failure(pod *corev1.Pod) string {
	if pod == nil || pod.Status.Phase != corev1.PodFailed {
		return ""
	}
	return cmp.Or(Message(pod), pod.Status.Message, pod.Status.Reason, "the pod failed")
}

// userReasons are the reasons for waiting that only the user can remove.
var userReasons = []string{v1alpha1.ReasonPodNotStarting, v1alpha1.ReasonObjectMissing, v1alpha1.ReasonObjectInvalid}

// wait records in the status why a backup waits. It also records an event, once, if only the user can end the wait. The
// reason for waiting does not replace the message of a running attempt, except if its pod does not start.
func (r *Reconciler) wait(ctx context.Context, b *v1alpha1.ApiServerBackup, a backup.Attempt, reason string) error {
	base, conditionReason := b.DeepCopy(), v1alpha1.ReasonWaiting
	switch {
	case a.Pod == backup.PodStarting && reason != "":
		conditionReason = v1alpha1.ReasonPodNotStarting
	case a.Missing != "":
		conditionReason = a.MissingReason
	case b.Status.Attempts > 0 && a.Pod != backup.PodMissing && a.Pod != backup.PodFailed:
		conditionReason, reason = v1alpha1.ReasonRunning, attemptMessage(b)
	}
	if b.Status.Attempts == 0 {
		b.Status.Phase = v1alpha1.BackupPending
	}
	if old := meta.FindStatusCondition(b.Status.Conditions, v1alpha1.BackupComplete); reason == "" ||
		conditionReason == v1alpha1.ReasonRunning && (old == nil || old.Reason == v1alpha1.ReasonRunning) {
		return r.patchStatus(ctx, base, b) // start has set the condition
	}
	setComplete(b, metav1.ConditionUnknown, conditionReason, reason, r.Clock.Now())
	if err := r.patchStatus(ctx, base, b); err != nil {
		return err
	}
	old := meta.FindStatusCondition(base.Status.Conditions, v1alpha1.BackupComplete)
	if slices.Contains(userReasons, conditionReason) && (old == nil || old.Reason != conditionReason) {
		r.event(b, corev1.EventTypeWarning, conditionReason, reason)
	}
	return nil
}

// attemptMessage returns the message of the condition while an attempt runs.
func attemptMessage(b *v1alpha1.ApiServerBackup) string {
	return fmt.Sprintf("Attempt %d of %d", b.Status.Attempts, backup.MaxAttempts)
}

// start records another attempt in the status, and then deletes the pod of the previous one. In the reverse order, an
// operator that stops in between would create the pod of the recorded attempt again without counting it, possibly
// without an end.
func (r *Reconciler) start(
	ctx context.Context, b *v1alpha1.ApiServerBackup, previous *corev1.Pod, reason string,
) error {
	if previous != nil {
		r.event(b, corev1.EventTypeWarning, v1alpha1.ReasonBackupRetried,
			fmt.Sprintf("Attempt %d failed: %s", b.Status.Attempts, reason))
	}
	base := b.DeepCopy()
	b.Status.Attempts++
	b.Status.Phase, b.Status.Path = v1alpha1.BackupRunning, desired.BackupPath(b)
	if b.Status.StartTime == nil {
		b.Status.StartTime = &metav1.Time{Time: r.Clock.Now()}
	}
	message := attemptMessage(b)
	if reason != "" {
		message += "; the previous one failed: " + reason
	}
	setComplete(b, metav1.ConditionUnknown, v1alpha1.ReasonRunning, message, r.Clock.Now())
	if err := r.patchStatus(ctx, base, b); err != nil || previous == nil {
		return err
	}
	return client.IgnoreNotFound(r.Client.Delete(ctx, previous))
}

// runPod creates the pod of the recorded attempt. It passes the client URLs of all voters, of which the pod selects
// one. If the keys cannot be read, the backup waits for them like for any other missing object, until its timeout.
func (r *Reconciler) runPod(
	ctx context.Context, b *v1alpha1.ApiServerBackup, cluster *v1alpha1.ApiServerCluster,
) error {
	var endpoints []string
	for _, member := range cluster.Status.Members {
		if member.Role != "learner" {
			endpoints = append(endpoints, desired.ClientURL(cluster, member.Name))
		}
	}
	keys, err := r.keys(ctx, b, cluster)
	if err != nil {
		waiting := r.wait(ctx, b, backup.Attempt{Pod: backup.PodMissing}, err.Error())
		if errors.Is(err, errKeyRefused) {
			return errors.Join(waiting, err) // an error makes the delay before the next attempt grow
		}
		return waiting
	}
	pod := desired.BackupPod(b, cluster, cmp.Or(cluster.Status.Image, r.Image), endpoints, keys)
	if err := controllerutil.SetControllerReference(b, pod, r.Client.Scheme()); err != nil {
		return err
	}
	if err := r.Client.Create(ctx, pod); err != nil {
		return client.IgnoreAlreadyExists(err)
	}
	r.event(b, corev1.EventTypeNormal, v1alpha1.ReasonSuccessfulCreate, "Created Pod "+pod.Name)
	return nil
}

// keys returns the inputs of the pod that depend on the cluster's keys: the fingerprint of the service-account key and,
// if the backup is encrypted, the sealed service-account key and keys of encryption at rest. It also creates the key
// that signs the backup.
//
// The fingerprint shows, at a restore, whether a key is the key at the time of the backup. Without encryption, a backup
// contains no keys, because its destination may be readable by others; they then have to be kept with the cluster
// (atrest.NeededByBackups).
func (r *Reconciler) keys(
	ctx context.Context, b *v1alpha1.ApiServerBackup, cluster *v1alpha1.ApiServerCluster,
) (desired.Keys, error) {
	account := &corev1.Secret{}
	name := desired.SecretName(cluster, desired.ServiceAccountSecret)
	if err := r.Reader.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: name}, account); err != nil {
		return desired.Keys{}, fmt.Errorf("read Secret %s: %w", name, err)
	}
	public := account.Data[desired.ServiceAccountPublicKey]
	keys := desired.Keys{Fingerprint: format.Fingerprint(public)}
	if err := r.ensureSigningKey(ctx, cluster); err != nil {
		return keys, err
	}
	if b.Spec.Encryption == nil {
		return keys, nil
	}
	name = b.Spec.Encryption.SecretRef.Name
	secret := &corev1.Secret{}
	if err := r.Reader.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: name}, secret); err != nil {
		return keys, fmt.Errorf("read Secret %s: %w", name, err)
	}
	recipients, ok := secret.Data[desired.RecipientsKey]
	if !ok {
		return keys, fmt.Errorf("Secret %s has no key %s", name, desired.RecipientsKey)
	}
	atRest := &corev1.Secret{}
	name = desired.SecretName(cluster, desired.EncryptionSecret)
	err := r.Reader.Get(ctx, client.ObjectKey{Namespace: b.Namespace, Name: name}, atRest)
	if client.IgnoreNotFound(err) != nil {
		return keys, fmt.Errorf("read Secret %s: %w", name, err)
	}
	keys.Sealed, err = format.Seal(format.Keys{
		ServiceAccountPublic: public, ServiceAccountPrivate: account.Data[desired.ServiceAccountPrivateKey],
		Encryption: atRest.Data[desired.EncryptionStateKey],
	}, recipients)
	return keys, err
}

// collect records the result of a pod that has succeeded. The manifest must have the UID of this backup: the path could
// contain the data of an earlier resource with the same name. The digest of the manifest and the verification key are
// stored in the status, outside of the destination, so that a restore recognizes a replaced backup.
func (r *Reconciler) collect(ctx context.Context, b *v1alpha1.ApiServerBackup, pod *corev1.Pod) error {
	result, err := ParseResult(pod)
	if err != nil || result.Manifest.UID != string(b.UID) {
		return r.fail(ctx, b, cmp.Or(errorText(err), "the pod reported a different backup"))
	}
	base := b.DeepCopy()
	m := result.Manifest
	s := &b.Status
	s.Phase, s.CompletionTime = v1alpha1.BackupCompleted, &metav1.Time{Time: r.Clock.Now()}
	s.Location, s.SnapshotTime = result.Location, &metav1.Time{Time: m.Created}
	s.ManifestSHA256, s.VerificationKey = result.ManifestSHA256, string(result.VerificationKey)
	s.SizeBytes, s.SHA256, s.Revision, s.Keys = m.StoredBytes, m.StoredSHA256, m.Snapshot.Revision, int64(m.Snapshot.Keys)
	s.Member, s.Encrypted, s.EncryptionKeys = m.Member, m.Encrypted(), m.Snapshot.EncryptionKeys
	if b.Spec.Destination.Volume != nil {
		s.Location = "pvc://" + b.Spec.Destination.Volume.ClaimName + "/" + s.Path
	}
	message := fmt.Sprintf("Stored %d bytes at revision %d and verified them", s.SizeBytes, s.Revision)
	if s.VerificationKey == "" {
		message += "; the backup is not signed, because the image of the cluster is of an earlier release"
	}
	setComplete(b, metav1.ConditionTrue, v1alpha1.ReasonBackupCompleted, message, r.Clock.Now())
	if err := r.patchStatus(ctx, base, b); err != nil {
		return err
	}
	r.event(b, corev1.EventTypeNormal, v1alpha1.ReasonBackupCompleted, message)
	return nil
}

func errorText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// fail records in the status that a backup has failed.
func (r *Reconciler) fail(ctx context.Context, b *v1alpha1.ApiServerBackup, reason string) error {
	base := b.DeepCopy()
	b.Status.Phase, b.Status.CompletionTime = v1alpha1.BackupFailed, &metav1.Time{Time: r.Clock.Now()}
	setComplete(b, metav1.ConditionFalse, v1alpha1.ReasonBackupFailed, reason, r.Clock.Now())
	if err := r.patchStatus(ctx, base, b); err != nil {
		return err
	}
	r.event(b, corev1.EventTypeWarning, v1alpha1.ReasonBackupFailed, reason)
	return nil
}

// deleteFinishedPod deletes the pod of a finished backup, except for a pod that has failed, whose log may be needed.
func (r *Reconciler) deleteFinishedPod(ctx context.Context, b *v1alpha1.ApiServerBackup) error {
	pod, err := r.pod(ctx, b, desired.BackupPodName(b))
	switch {
	case errors.Is(err, errForeign):
		return nil
	case err != nil, pod == nil, pod.DeletionTimestamp != nil, pod.Status.Phase == corev1.PodFailed:
		return err
	}
	return client.IgnoreNotFound(r.Client.Delete(ctx, pod))
}

func setComplete(b *v1alpha1.ApiServerBackup, status metav1.ConditionStatus, reason, message string, now time.Time) {
	const limit = 32 << 10 // maximum length of a message in the API
	meta.SetStatusCondition(&b.Status.Conditions, metav1.Condition{
		Type: v1alpha1.BackupComplete, Status: status, Reason: reason, Message: message[:min(len(message), limit)],
		ObservedGeneration: b.Generation, LastTransitionTime: metav1.NewTime(now),
	})
}

func (r *Reconciler) patchStatus(ctx context.Context, base, b *v1alpha1.ApiServerBackup) error {
	patch := client.MergeFromWithOptions(base, client.MergeFromWithOptimisticLock{})
	if data, err := client.MergeFrom(base).Data(b); err != nil || string(data) == "{}" {
		return err
	}
	return r.Client.Status().Patch(ctx, b, patch)
}

func (r *Reconciler) event(b *v1alpha1.ApiServerBackup, kind, reason, message string) {
	r.Recorder.Eventf(b, nil, kind, reason, "Backup", "%s", message[:min(len(message), 1000)])
}

// Message returns the termination message of a backup's pod, or "".
func Message(pod *corev1.Pod) string {
	for _, status := range pod.Status.ContainerStatuses {
		if status.Name == desired.ContainerName && status.State.Terminated != nil {
			return status.State.Terminated.Message
		}
	}
	return ""
}

// Ended returns when a pod terminated. A pod that the kubelet has rejected has no terminated containers; it counts as
// terminated when it was created.
func Ended(pod *corev1.Pod) time.Time {
	at := pod.CreationTimestamp.Time
	for _, status := range pod.Status.ContainerStatuses {
		if terminated := status.State.Terminated; terminated != nil && terminated.FinishedAt.After(at) {
			at = terminated.FinishedAt.Time
		}
	}
	return at
}

// ParseResult parses the result in the termination message of a pod.
func ParseResult(pod *corev1.Pod) (format.Result, error) {
	var result format.Result
	message := Message(pod)
	if message == "" {
		return result, errors.New("the pod succeeded without a termination message")
	}
	if err := json.Unmarshal([]byte(message), &result); err != nil {
		return result, fmt.Errorf("the termination message of the pod is not a result: %w", err)
	}
	return result, nil
}
