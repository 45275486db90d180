package backup

import (
	"cmp"
	"fmt"
	"time"
)

// MaxAttempts is the maximum number of pods that run for one backup, one after another.
const MaxAttempts = 3

// PodState is the state of the pod of a backup's current attempt.
type PodState string

// The states of a pod.
const (
	PodMissing     PodState = "Missing"
	PodStarting    PodState = "Starting" // no container has started yet
	PodActive      PodState = "Active"
	PodSucceeded   PodState = "Succeeded"
	PodFailed      PodState = "Failed"
	PodTerminating PodState = "Terminating" // the pod is terminating
)

// Attempt is the input of Advance: the state of an unfinished backup.
type Attempt struct {
	Now      time.Time
	Created  time.Time
	Timeout  time.Duration
	Attempts int // number of attempts in the stored status
	Pod      PodState
	Blocked  string // cause that prevents an attempt now, such as a lost quorum, or ""
	Failure  string // error with which the pod failed, or ""

	// StartTimeout is how long a pod may take to start, and how long the backup waits for objects that the pod needs.
	StartTimeout time.Duration
	Missing      string    // name of an object that is missing or cannot be used, or ""
	PodCreated   time.Time // creation time of the pod; zero if there is none
	Obstacle     string    // cause that keeps the pod from starting, or "" if it is unknown

	MissingReason string // reason of the condition for Missing; Advance does not use it
}

// Step is the next step of a backup.
type Step string

// The steps.
const (
	Wait    Step = "Wait"    // wait for the pod, or until nothing is Blocked or Missing
	Start   Step = "Start"   // record another attempt in the status, and delete the pod of the last one
	Run     Step = "Run"     // create the pod of the recorded attempt
	Collect Step = "Collect" // read the result of the pod, and finish the backup
	Fail    Step = "Fail"    // finish the backup as failed
)

// Advance returns the next step of a backup and the reason for it. An attempt is recorded in the status before its pod
// is created. If the operator crashes in between, the next call returns Run for the recorded attempt, so that no
// attempt is counted twice or lost.
func Advance(a Attempt) (Step, string) {
	expired := a.Now.Sub(a.Created) > a.Timeout
	switch {
	case a.Pod == PodSucceeded:
		return Collect, ""
	case expired && a.Pod == PodFailed:
		return Fail, a.Failure
	case expired:
		return Fail, timedOut(a.Timeout, cmp.Or(a.Blocked, a.Missing, a.Obstacle))
	case a.Pod == PodStarting && a.Now.Sub(a.PodCreated) > a.StartTimeout:
		return Fail, fmt.Sprintf("the pod did not start within %s: %s", a.StartTimeout,
			cmp.Or(a.Obstacle, "its containers are waiting"))
	case a.Pod == PodStarting:
		return Wait, a.Obstacle
	case a.Pod == PodActive || a.Pod == PodTerminating:
		return Wait, ""
	case a.Pod == PodFailed && a.Attempts >= MaxAttempts:
		return Fail, a.Failure
	case a.Missing != "" && a.Now.Sub(a.Created) > a.StartTimeout:
		return Fail, timedOut(a.StartTimeout, a.Missing)
	case a.Missing != "":
		return Wait, a.Missing
	case a.Blocked != "":
		return Wait, a.Blocked
	case a.Pod == PodFailed || a.Attempts == 0:
		return Start, a.Failure
	}
	return Run, ""
}

// timedOut returns the message of a timeout, with the reason that the backup was waiting for.
func timedOut(after time.Duration, reason string) string {
	if reason == "" {
		return fmt.Sprintf("timed out after %s", after)
	}
	return fmt.Sprintf("timed out after %s: %s", after, reason)
}
