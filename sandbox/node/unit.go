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

// unit is one container of a Pod: its process, if it runs, and the result of the previous one.
type unit struct {
	spec    *corev1.Container
	initial bool // an init container
	log     string
	message string // file that the process may write its termination message to

	process  *process.Process // nil if none runs
	run      int              // number of processes that this agent has started
	hasRun   bool             // a process has run, possibly under a previous agent
	started  bool             // the startup probe, if any, has succeeded
	ready    bool
	stopping bool
	stopAt   time.Time // when a stopping process will be killed
	probes   context.CancelFunc

	restarts  int32
	ended     *corev1.ContainerStateTerminated // termination of the previous process
	completed bool                             // it is not restarted
	waiting   corev1.ContainerStateWaiting     // why no process runs
	backoff   process.Backoff
	notBefore time.Time // earliest restart
}

// newUnit returns the unit of a container with the status reported by a previous agent, whose processes have
// terminated.
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

// lastEnd returns the last termination of a container that no longer runs, even if its status is Running.
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

// setProcess records a new process.
func (u *unit) setProcess(p *process.Process) {
	if u.hasRun {
		u.restarts++
	}
	u.process, u.run, u.hasRun = p, u.run+1, true
	u.started, u.ready, u.stopping = false, false, false
	u.waiting = corev1.ContainerStateWaiting{}
}

// reap records the exit of the process. It reports whether the process has exited.
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
	if exit.Code != 0 && u.ended.Message == "" && u.spec.TerminationMessagePolicy == corev1.TerminationMessageFallbackToLogsOnError {
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

// maxTerminationMessage is the kubelet's limit, in bytes.
const maxTerminationMessage = 4096

// terminationMessage returns the content of the process's termination message file.
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

// restarts reports whether a terminated container is restarted.
func restarts(policy corev1.RestartPolicy, initial bool, code int) bool {
	if code == 0 {
		return policy == corev1.RestartPolicyAlways && !initial
	}
	return policy != corev1.RestartPolicyNever
}

// complete reports whether an init container has succeeded.
func (u *unit) complete() bool { return u.completed && u.ended.ExitCode == 0 }

// stop terminates the process, and kills it at a time. Another call can only make that time earlier.
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

// containerID returns an ID that contains the process ID.
func containerID(p *process.Process) string { return fmt.Sprintf("process://%d", p.ID()) }

// seconds returns a time with the precision of the API.
func seconds(t time.Time) metav1.Time { return metav1.NewTime(t.Truncate(time.Second)) }
