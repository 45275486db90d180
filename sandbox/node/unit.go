package node

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"quorate.dev/sandbox/process"
)

// unit is one container of a Pod: at most one process at a time, and what came of those before it.
type unit struct {
	spec    *corev1.Container
	initial bool // an init container
	log     string

	process  *process.Process // nil when none runs
	run      int              // counts the processes that this agent has started
	ran      bool             // there was a process, be it under an earlier agent
	started  bool             // the startup probe, if any, has succeeded
	ready    bool
	stopping bool
	stopAt   time.Time // of a stopping process: when it is killed
	probes   context.CancelFunc

	restarts int32
	ended    *corev1.ContainerStateTerminated // how the latest process ended
	over     bool                             // it will not be started again
	waiting  corev1.ContainerStateWaiting     // why none runs
	backoff  process.Backoff
	next     time.Time // not to be started before
}

// newUnit takes over what is known of a container from an earlier agent: a process that ran then is gone.
func newUnit(spec *corev1.Container, initial bool, log string, known []corev1.ContainerStatus) *unit {
	u := &unit{spec: spec, initial: initial, log: log, waiting: corev1.ContainerStateWaiting{Reason: "ContainerCreating"}}
	if initial {
		u.waiting.Reason = "PodInitializing"
	}
	for _, status := range known {
		if status.Name == spec.Name && status.ContainerID != "" {
			u.ran, u.restarts = true, status.RestartCount
			u.ended = lastEnd(status)
		}
	}
	return u
}

// lastEnd is how a container ended that does not run now, though its status may say so.
func lastEnd(status corev1.ContainerStatus) *corev1.ContainerStateTerminated {
	switch running := status.State.Running; {
	case running != nil:
		return &corev1.ContainerStateTerminated{
			ExitCode: 137, Reason: "ContainerStatusUnknown", Message: "the sandbox was stopped",
			StartedAt: running.StartedAt, FinishedAt: running.StartedAt, ContainerID: status.ContainerID,
		}
	case status.State.Terminated != nil:
		return status.State.Terminated
	}
	return status.LastTerminationState.Terminated
}

// began takes in a new process.
func (u *unit) began(p *process.Process) {
	if u.ran {
		u.restarts++
	}
	u.process, u.run, u.ran = p, u.run+1, true
	u.started, u.ready, u.stopping = false, false, false
	u.waiting = corev1.ContainerStateWaiting{}
}

// collect takes in the end of the process, if it has ended. It reports whether it has.
func (u *unit) collect(policy corev1.RestartPolicy, now time.Time) bool {
	if u.process == nil {
		return false
	}
	exit, ended := u.process.Exit()
	if !ended {
		return false
	}
	u.stopProbes()
	u.ended = terminated(u.process, exit)
	if exit.Code != 0 && u.spec.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
		u.ended.Message = process.Tail(u.log, 2048)
	}
	delay := u.backoff.Next(exit.At.Sub(u.process.Started()))
	u.next = now.Add(delay)
	u.waiting = corev1.ContainerStateWaiting{
		Reason: "CrashLoopBackOff", Message: fmt.Sprintf("back-off %s restarting failed container=%s", delay, u.spec.Name),
	}
	u.process, u.started, u.ready = nil, false, false
	u.over = !restarts(policy, u.initial, exit.Code)
	return true
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

// restarts decides whether a container that ended is to run again.
func restarts(policy corev1.RestartPolicy, initial bool, code int) bool {
	if code == 0 {
		return policy == corev1.RestartPolicyAlways && !initial
	}
	return policy != corev1.RestartPolicyNever
}

// complete reports whether an init container has done its work.
func (u *unit) complete() bool { return u.over && u.ended.ExitCode == 0 }

// stop asks the process to end, and has it killed at a time. A second stop can only make that earlier.
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

// status renders the unit as a kubelet does.
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
	case u.over:
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

// containerID names the process, so that a person finds it.
func containerID(p *process.Process) string { return fmt.Sprintf("process://%d", p.ID()) }

// seconds is a time as the API keeps it.
func seconds(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }
