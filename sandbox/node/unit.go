package node

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"quorate.dev/sandbox/process"
)

// unit is a container of a Pod: its process, if one runs, and the termination of the previous process.
type unit struct {
	spec    *corev1.Container
	initial bool // an init container
	log     string
	message string // file for the termination message of the process

	process  *process.Process // nil if no process runs
	run      int              // number of processes that this Agent has started for the container
	hasRun   bool             // a process has run, possibly under a previous Agent
	started  bool             // the process runs and its startup probe, if it has one, has succeeded
	ready    bool
	stopping bool
	stopAt   time.Time // when a stopping process is killed
	probes   context.CancelFunc

	restarts  int32
	ended     *corev1.ContainerStateTerminated // termination of the previous process
	completed bool                             // the container is not restarted
	waiting   corev1.ContainerStateWaiting     // why no process runs
	backoff   process.Backoff
	notBefore time.Time // earliest time of the next start
}

// newUnit returns the unit of a container. If a previous Agent has run the container, known contains the status that it
// reported last; its process has terminated since.
func newUnit(spec *corev1.Container, initial bool, log string, known []corev1.ContainerStatus) *unit {
	u := &unit{spec: spec, initial: initial, log: log, waiting: corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	if initial {
		u.waiting.Reason = "PodInitializing"
	}
	for _, status := range known {
		if status.Name == spec.Name && status.ContainerID != "" {
			u.hasRun, u.restarts = true, status.RestartCount
			u.ended = lastEnd(status)
		}
	}
	return u
}

// lastEnd returns the last termination of a container that does not run, even if its last reported state is Running.
func lastEnd(status corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	switch running := status.State.Running; {
	case running != nil:
		return &corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "The sandbox was stopped",
			StartedAt: running.StartedAt, FinishedAt: running.StartedAt, ContainerID: status.ContainerID,
		}
	case status.State.Terminated != nil:
		return status.State.Terminated
	}
	return status.LastTerminationState.Terminated
}

// setProcess records that a process of the container has started.
func (u *unit) setProcess(p *process.Process) {
	if u.hasRun {
		u.restarts++
	}
	u.process, u.run, u.hasRun = p, u.run+1, true
	u.started, u.ready, u.stopping = false, false, false
	u.waiting = corev1.ContainerStateWaiting{}
}

// reap records the exit of the process, and reports whether it has exited since the last call.
func (u *unit) reap(policy corev1.RestartPolicy, now time.Time) bool {
	if u.process == nil {
		return false
	}
	exit, ended := u.process.Exit()
	if !ended {
		return false
	}
	u.stopProbes()
	u.ended = terminated(u.process, exit)
	u.ended.Message = u.terminationMessage()
	if exit.Code != 0 && u.ended.Message == "" &&
		u.spec.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		u.ended.Message = process.Tail(u.log, 2048)
	}
	delay := u.backoff.Next(exit.At.Sub(u.process.Started()))
	u.notBefore = now.Add(delay)
	u.waiting = corev1.ContainerStateWaiting{
		Reason: "CrashLoopBackOff", Message: fmt.Sprintf("back-off %s restarting failed container=%s", delay, u.spec.Name),
	}
	u.process, u.started, u.ready = nil, false, false
	u.completed = !restarts(policy, u.initial, exit.Code)
	return true
}

// maxTerminationMessage is the maximum size of a termination message in bytes, as in the kubelet.
const maxTerminationMessage = 4096

// terminationMessage returns the content of the termination message file, or "" if it cannot be read.
func (u *unit) terminationMessage() string {
	f, err := os.Open(u.message)
	if err != nil {
		return ""
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, maxTerminationMessage))
	if err != nil {
		return ""
	}
	return string(text)
}

func terminated(p *process.Process, exit process.Exit) *corev1.ContainerStateTerminated {
	state := &corev1.ContainerStateTerminated{
		ExitCode: int32(exit.Code), Signal: int32(exit.Signal), Reason: "Completed", ContainerID: containerID(p),
		StartedAt: seconds(p.Started()), FinishedAt: seconds(exit.At),
	}
	if exit.Code != 0 {
		state.Reason = "Error"
	}
	return state
}

// restarts reports whether a container that exited with a code is restarted.
func restarts(policy corev1.RestartPolicy, initial bool, code int) bool {
	if code == 0 {
		return policy == corev1.RestartPolicyAlways && !initial
	}
	return policy != corev1.RestartPolicyNever
}

// complete reports whether an init container has succeeded.
func (u *unit) complete() bool { return u.completed && u.ended.ExitCode == 0 }

// stop sends SIGTERM to the process, and SIGKILL if it is called at or after the given time. Later calls can only make
// the time earlier.
func (u *unit) stop(at, now time.Time) {
	if u.process == nil {
		return
	}
	if !u.stopping {
		u.stopping, u.stopAt = true, at
		u.stopProbes()
		u.ready = false
		u.process.Terminate()
	}
	u.stopAt = earlier(u.stopAt, at)
	if !now.Before(u.stopAt) {
		u.process.Kill()
	}
}

func (u *unit) stopProbes() {
	if u.probes != nil {
		u.probes()
		u.probes = nil
	}
}

// status returns the container status that a kubelet would report.
func (u *unit) status() corev1.ContainerStatus {
	status := corev1.ContainerStatus{
		Name: u.spec.Name, Image: u.spec.Image, ImageID: u.spec.Image, RestartCount: u.restarts,
		Ready: u.ready, Started: ptr.To(u.process != nil && u.started),
	}
	switch {
	case u.process != nil:
		status.ContainerID = containerID(u.process)
		status.State.Running = &corev1.ContainerStateRunning{StartedAt: seconds(u.process.Started())}
		status.LastTerminationState.Terminated = u.ended
	case u.completed:
		status.ContainerID = u.ended.ContainerID
		status.State.Terminated = u.ended
		status.Ready = u.initial && u.complete()
	default:
		status.State.Waiting = u.waiting.DeepCopy()
		status.LastTerminationState.Terminated = u.ended
		if u.ended != nil {
			status.ContainerID = u.ended.ContainerID
		}
	}
	return status
}

// containerID returns the container ID of a process, which contains the process ID.
func containerID(p *process.Process) string { return fmt.Sprintf("process://%d", p.ID()) }

// seconds returns a time with the precision of the API, one second.
func seconds(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }
