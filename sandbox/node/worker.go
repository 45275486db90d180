package node

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/utils/ptr"

	"quorate.dev/sandbox/probe"
	"quorate.dev/sandbox/volumes"
)

// removedGracePeriod is the grace period of a Pod that was deleted from the API while its processes run.
const removedGracePeriod = time.Second

// worker runs one Pod. mu guards pod and removed; the later fields belong to the goroutine of run.
type worker struct {
	agent *Agent
	uid   types.UID
	wake  chan struct{}

	mu      sync.Mutex
	pod     *corev1.Pod // latest version in the API
	removed bool

	base             corev1.PodStatus // status that was reported last
	podIP            string
	folder           string
	folders          *volumes.Folders
	tokens           *tokens
	initial          []*unit
	main             []*unit
	results          chan probe.Update
	prepared         bool
	terminatingSince time.Time // when the termination of the Pod began
	failure          string    // error that prevents the Pod from running; empty: none
	failingSince     time.Time // when the failure began; zero if an event has reported it
}

func newWorker(a *Agent, pod *corev1.Pod) *worker {
	w := &worker{
		agent: a, uid: pod.UID, wake: make(chan struct{}, 1), pod: pod, base: pod.Status,
		folder: a.path("pods", string(pod.UID)), results: make(chan probe.Update),
		tokens: &tokens{client: a.options.Client, clock: a.options.Clock, issued: map[string]token{}},
	}
	w.folders = volumes.NewFolders(w.folder, a.volumeSource(w.tokens))
	for i := range pod.Spec.InitContainers {
		spec := &pod.Spec.InitContainers[i]
		w.initial = append(w.initial, newUnit(spec, true, w.logFile(spec.Name), pod.Status.InitContainerStatuses))
	}
	for i := range pod.Spec.Containers {
		spec := &pod.Spec.Containers[i]
		w.main = append(w.main, newUnit(spec, false, w.logFile(spec.Name), pod.Status.ContainerStatuses))
	}
	return w
}

func (w *worker) logFile(container string) string {
	return w.agent.path("logs", w.pod.Namespace, w.pod.Name, container+".log")
}

func (w *worker) update(pod *corev1.Pod) {
	w.mu.Lock()
	w.pod = pod
	w.mu.Unlock()
	w.notify()
}

func (w *worker) remove() {
	w.mu.Lock()
	w.removed = true
	w.mu.Unlock()
	w.notify()
}

func (w *worker) notify() {
	select {
	case w.wake <- struct{}{}:
	default: // a notification is pending
	}
}

func (w *worker) current() (pod *corev1.Pod, removed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod, w.removed
}

func (w *worker) units() []*unit { return append(w.initial[:len(w.initial):len(w.initial)], w.main...) }

// run runs the Pod until it is deleted, or until ctx is done and the Pod's processes have exited.
func (w *worker) run(ctx context.Context) {
	stopped := ctx.Done()
	for {
		next, done := w.step(ctx)
		if done {
			break
		}
		var due <-chan time.Time
		if !next.IsZero() {
			due = w.agent.options.Clock.After(next.Sub(w.now()))
		}
		select {
		case <-w.wake:
		case <-due:
		case result := <-w.results:
			w.handleProbe(ctx, result)
		case <-stopped:
			stopped = nil // a closed channel would be ready in each iteration
		}
	}
	w.agent.pool.Release(string(w.uid))
	if ctx.Err() == nil {
		if err := os.RemoveAll(w.folder); err != nil {
			w.agent.log.Error(err, "Failed to delete the folder of a Pod", "folder", w.folder)
		}
	}
	w.agent.forget(w)
}

func (w *worker) now() time.Time { return w.agent.options.Clock.Now() }

// step does everything that is due. It returns the time of the next call, or zero if only a notification makes one
// necessary.
func (w *worker) step(ctx context.Context) (next time.Time, done bool) {
	pod, removed := w.current()
	if terminal(w.base.Phase) && pod.DeletionTimestamp == nil && !removed {
		return time.Time{}, ctx.Err() != nil
	}
	for _, u := range w.units() {
		if u.stopping {
			u.stop(u.stopAt, w.now())
		}
		if u.reap(pod.Spec.RestartPolicy, w.now()) {
			w.event(pod, corev1.EventTypeNormal, "Exited", "Container %s exited with code %d", u.spec.Name, u.ended.ExitCode)
		}
	}
	if removed || ctx.Err() != nil || pod.DeletionTimestamp != nil {
		return w.finish(ctx, pod, removed)
	}
	if err := w.advance(ctx, pod); err != nil {
		w.reportFailure(pod, err)
		return earlier(w.next(), w.now().Add(retryDelay)), false
	}
	w.failure = ""
	return w.next(), false
}

func terminal(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// advance allocates the address, prepares the volumes and starts the containers that are due. It reports the address
// before the first process starts, so that the Pod's DNS name resolves when the process runs.
func (w *worker) advance(ctx context.Context, pod *corev1.Pod) error {
	if w.podIP == "" {
		address, err := w.agent.pool.Allocate(string(w.uid), pod.Namespace+"/"+pod.Name)
		if err != nil {
			return err
		}
		w.podIP = address.String()
	}
	if w.base.PodIP != w.podIP {
		if err := w.report(ctx, pod, false); err != nil {
			return err
		}
	}
	pod = w.withAddress(pod)
	if err := w.folders.Prepare(ctx, pod); err != nil {
		return errors.Join(&mountError{err}, w.report(ctx, pod, false))
	}
	w.prepared = true
	failure := w.startDue(ctx, pod)
	return errors.Join(failure, w.report(ctx, pod, false))
}

type mountError struct{ error }

// failureDelay is how long an error must last before an event reports it. Informers may receive the objects that a Pod
// refers to later than the Pod.
const failureDelay = time.Second

// reportFailure records an event for each distinct error that prevents the Pod from running.
func (w *worker) reportFailure(pod *corev1.Pod, err error) {
	if w.failure != err.Error() {
		w.failure, w.failingSince = err.Error(), w.now()
		return
	}
	if w.failingSince.IsZero() || w.now().Sub(w.failingSince) < failureDelay {
		return
	}
	w.failingSince = time.Time{}
	reason := "Failed"
	if mount := (*mountError)(nil); errors.As(err, &mount) {
		reason = "FailedMount"
	}
	w.agent.log.Info("Failed to run a Pod", "pod", pod.Namespace+"/"+pod.Name, "reason", reason, "err", err.Error())
	w.event(pod, corev1.EventTypeWarning, reason, "%s", err.Error())
}

func (w *worker) event(pod *corev1.Pod, kind, reason, format string, args ...any) {
	w.agent.recorder.Eventf(pod, kind, reason, format, args...)
}

// withAddress returns the Pod with its address in the status, for fieldRefs.
func (w *worker) withAddress(pod *corev1.Pod) *corev1.Pod {
	view := pod.DeepCopy()
	view.Status.PodIP, view.Status.HostIP = w.podIP, w.agent.options.Network.Node().String()
	return view
}

// next returns the time at which the next step is due, or zero if none is.
func (w *worker) next() time.Time {
	next := w.tokens.next()
	for _, u := range w.units() {
		switch {
		case u.process != nil && u.stopping:
			next = earlier(next, u.stopAt)
		case u.process == nil && !u.completed && u.notBefore.After(w.now()):
			next = earlier(next, u.notBefore)
		}
	}
	return next
}

// finish stops the processes of the Pod. When they have exited, it deletes a Pod that is being deleted from the API.
func (w *worker) finish(ctx context.Context, pod *corev1.Pod, removed bool) (next time.Time, done bool) {
	now := w.now()
	if w.terminatingSince.IsZero() {
		w.terminatingSince = now
		w.event(pod, corev1.EventTypeNormal, "Killing", "Stopping the Pod's containers")
	}
	at := w.terminatingSince.Add(gracePeriod(pod, removed))
	running := false
	for _, u := range w.units() {
		u.stop(at, now)
		running = running || u.process != nil
	}
	switch {
	case running && now.Before(at):
		return at, false
	case running:
		return time.Time{}, false // the exit of the killed process notifies the worker
	case removed || ctx.Err() != nil:
		return time.Time{}, true
	}
	if err := w.delete(ctx, pod); err != nil {
		w.agent.log.Info("Retrying to delete a Pod", "pod", pod.Namespace+"/"+pod.Name, "err", err.Error())
		return now.Add(retryDelay), false
	}
	return time.Time{}, true
}

// gracePeriod returns the termination grace period of a Pod that is being deleted, or was removed from the API.
func gracePeriod(pod *corev1.Pod, removed bool) time.Duration {
	declared := ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 30)
	if pod.DeletionGracePeriodSeconds != nil {
		declared = *pod.DeletionGracePeriodSeconds
	}
	if removed {
		return removedGracePeriod
	}
	return time.Duration(declared) * time.Second
}

// delete reports the final status of the Pod, and deletes the Pod from the API.
func (w *worker) delete(ctx context.Context, pod *corev1.Pod) error {
	for _, u := range w.units() {
		u.completed = u.ended != nil
	}
	if err := w.report(ctx, pod, true); err != nil {
		return err
	}
	options := metav1.DeleteOptions{
		GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &w.uid},
	}
	err := w.agent.options.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, options)
	return ignore(err, apierrors.IsNotFound, apierrors.IsConflict)
}

// report updates the status of the Pod if it has changed.
func (w *worker) report(ctx context.Context, pod *corev1.Pod, finished bool) error {
	o := observation{
		now: seconds(w.now()), podIP: w.podIP, hostIP: w.agent.options.Network.Node().String(),
		prepared: w.prepared, finished: finished, initial: statuses(w.initial), containers: statuses(w.main),
	}
	status := podStatus(pod, w.base, o)
	if equality.Semantic.DeepEqual(status, w.base) {
		return nil
	}
	patch, err := statusPatch(w.uid, w.base, status)
	if err != nil {
		return err
	}
	updated, err := w.agent.options.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType,
		patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return ignore(err, apierrors.IsNotFound, apierrors.IsConflict) // the informer will report the deletion
	}
	w.base = updated.Status
	return nil
}

func statuses(units []*unit) []corev1.ContainerStatus {
	var result []corev1.ContainerStatus
	for _, u := range units {
		result = append(result, u.status())
	}
	return result
}

// statusPatch returns a patch of a Pod's status. The UID in the patch is a precondition, so that the patch does not
// apply to another Pod of the same name.
func statusPatch(uid types.UID, before, after corev1.PodStatus) ([]byte, error) {
	original, err := json.Marshal(corev1.Pod{Status: before})
	if err != nil {
		return nil, err
	}
	modified, err := json.Marshal(corev1.Pod{ObjectMeta: metav1.ObjectMeta{UID: uid}, Status: after})
	if err != nil {
		return nil, err
	}
	return strategicpatch.CreateTwoWayMergePatch(original, modified, corev1.Pod{})
}
