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

// removedGrace is how long the processes of a Pod get that was removed from the API without waiting for them.
const removedGrace = time.Second

// worker runs one Pod. All fields below the mutex's belong to its goroutine.
type worker struct {
	agent *Agent
	uid   types.UID
	wake  chan struct{}

	mu      sync.Mutex
	pod     *corev1.Pod // as the API has it
	removed bool

	base     corev1.PodStatus // as last reported
	podIP    string
	folder   string
	folders  *volumes.Folders
	tokens   *tokens
	initial  []*unit
	main     []*unit
	results  chan probe.Result
	prepared bool
	leaving  time.Time // when the end was first asked for
	failure  string    // what keeps the Pod from running
	failing  time.Time // since when; zero: an event has told of it
}

func newWorker(a *Agent, pod *corev1.Pod) *worker {
	w := &worker{
		agent: a, uid: pod.UID, wake: make(chan struct{}, 1), pod: pod, base: pod.Status,
		folder: a.path("pods", string(pod.UID)), results: make(chan probe.Result),
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
	default: // a notice is waiting already
	}
}

func (w *worker) current() (pod *corev1.Pod, removed bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.pod, w.removed
}

func (w *worker) units() []*unit { return append(w.initial[:len(w.initial):len(w.initial)], w.main...) }

// run steps until the Pod is gone, or until ctx is done and its processes have ended.
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
			w.observe(ctx, result)
		case <-stopped:
			stopped = nil // once
		}
	}
	w.agent.pool.Release(string(w.uid))
	if ctx.Err() == nil {
		if err := os.RemoveAll(w.folder); err != nil {
			w.agent.log.Error(err, "a Pod's folder was not removed", "folder", w.folder)
		}
	}
	w.agent.forget(w)
}

func (w *worker) now() time.Time { return w.agent.options.Clock.Now() }

// step does what is to be done now. It returns when to be called again if nothing happens before.
func (w *worker) step(ctx context.Context) (next time.Time, done bool) {
	pod, removed := w.current()
	if terminal(w.base.Phase) && pod.DeletionTimestamp == nil && !removed {
		return time.Time{}, ctx.Err() != nil
	}
	for _, u := range w.units() {
		if u.stopping {
			u.stop(u.stopAt, w.now())
		}
		if u.collect(pod.Spec.RestartPolicy, w.now()) {
			w.event(pod, corev1.EventTypeNormal, "Exited", "Container %s exited with code %d", u.spec.Name, u.ended.ExitCode)
		}
	}
	if removed || ctx.Err() != nil || pod.DeletionTimestamp != nil {
		return w.finish(ctx, pod, removed)
	}
	if err := w.advance(ctx, pod); err != nil {
		w.explain(pod, err)
		return earlier(w.next(), w.now().Add(retryDelay)), false
	}
	w.failure = ""
	return w.next(), false
}

func terminal(phase corev1.PodPhase) bool {
	return phase == corev1.PodSucceeded || phase == corev1.PodFailed
}

// advance brings the Pod forward by what is possible now. Its address is reported before its first process starts:
// what that process is told of its own name must be true.
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

// patience is how long a failure lasts before it is told: what a Pod refers to may reach the informers after it.
const patience = time.Second

// explain tells once per cause, in an event, why a Pod does not come up.
func (w *worker) explain(pod *corev1.Pod, err error) {
	if w.failure != err.Error() {
		w.failure, w.failing = err.Error(), w.now()
		return
	}
	if w.failing.IsZero() || w.now().Sub(w.failing) < patience {
		return
	}
	w.failing = time.Time{}
	reason := "Failed"
	if mount := (*mountError)(nil); errors.As(err, &mount) {
		reason = "FailedMount"
	}
	w.agent.log.Info("a Pod does not come up", "pod", pod.Namespace+"/"+pod.Name, "reason", reason, "err", err.Error())
	w.event(pod, corev1.EventTypeWarning, reason, "%s", err.Error())
}

func (w *worker) event(pod *corev1.Pod, kind, reason, format string, args ...any) {
	w.agent.recorder.Eventf(pod, kind, reason, format, args...)
}

// withAddress is the Pod as its containers shall see it.
func (w *worker) withAddress(pod *corev1.Pod) *corev1.Pod {
	view := pod.DeepCopy()
	view.Status.PodIP, view.Status.HostIP = w.podIP, w.agent.options.Network.Node().String()
	return view
}

// next is when something is due.
func (w *worker) next() time.Time {
	next := w.tokens.next()
	for _, u := range w.units() {
		switch {
		case u.process != nil && u.stopping:
			next = earlier(next, u.stopAt)
		case u.process == nil && !u.over && u.next.After(w.now()):
			next = earlier(next, u.next)
		}
	}
	return next
}

// finish ends the processes and, when the Pod is being deleted, removes it from the API.
func (w *worker) finish(ctx context.Context, pod *corev1.Pod, removed bool) (next time.Time, done bool) {
	now := w.now()
	if w.leaving.IsZero() {
		w.leaving = now
		w.event(pod, corev1.EventTypeNormal, "Killing", "Stopping the Pod's containers")
	}
	at := w.leaving.Add(grace(pod, removed))
	running := false
	for _, u := range w.units() {
		u.stop(at, now)
		running = running || u.process != nil
	}
	switch {
	case running && now.Before(at):
		return at, false
	case running:
		return time.Time{}, false // killed: its end wakes us
	case removed || ctx.Err() != nil:
		return time.Time{}, true
	}
	if err := w.delete(ctx, pod); err != nil {
		w.agent.log.Info("trying again to delete a Pod", "pod", pod.Namespace+"/"+pod.Name, "err", err.Error())
		return now.Add(retryDelay), false
	}
	return time.Time{}, true
}

// grace is how long processes get to end by themselves.
func grace(pod *corev1.Pod, removed bool) time.Duration {
	declared := ptr.Deref(pod.Spec.TerminationGracePeriodSeconds, 30)
	if pod.DeletionGracePeriodSeconds != nil {
		declared = *pod.DeletionGracePeriodSeconds
	}
	if removed {
		return removedGrace
	}
	return time.Duration(declared) * time.Second
}

// delete reports the last state and takes the Pod out of the API.
func (w *worker) delete(ctx context.Context, pod *corev1.Pod) error {
	for _, u := range w.units() {
		u.over = u.ended != nil
	}
	if err := w.report(ctx, pod, true); err != nil {
		return err
	}
	options := metav1.DeleteOptions{GracePeriodSeconds: ptr.To[int64](0), Preconditions: &metav1.Preconditions{UID: &w.uid}}
	err := w.agent.options.Client.CoreV1().Pods(pod.Namespace).Delete(ctx, pod.Name, options)
	return ignore(err, apierrors.IsNotFound, apierrors.IsConflict)
}

// report writes the Pod's status if it differs from what was written last.
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
	updated, err := w.agent.options.Client.CoreV1().Pods(pod.Namespace).Patch(ctx, pod.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{}, "status")
	if err != nil {
		return ignore(err, apierrors.IsNotFound, apierrors.IsConflict) // another Pod of this name, or none: the informer is about to tell
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

// statusPatch names what changed, and the uid, so that it cannot hit another Pod of the same name.
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
