package backup

import (
	"cmp"
	"fmt"
	"time"
)

// MaxAttempts is the number of pods that are started for a backup.
const MaxAttempts = 3

// PodState is the state of the pod of the current attempt.
type PodState string

// The states of the pod.
const (
	PodMissing   PodState = "Missing"
	PodStarting  PodState = "Starting" // no container has started
	PodActive    PodState = "Active"
	PodSucceeded PodState = "Succeeded"
	PodFailed    PodState = "Failed"
	PodLeaving   PodState = "Leaving" // terminating
)

// Attempt is the input of Advance: an unfinished backup.
type Attempt struct {
	Now      time.Time
	Created  time.Time
	Timeout  time.Duration
	Attempts int // started, according to the stored status
	Pod      PodState
	Blocked  string // why no attempt can start now; ""
	Failure  string // of a failed pod

	// StartTimeout is how long a pod may take to start, and how long the backup waits for objects that the pod needs.
	StartTimeout time.Duration
	Missing      string    // which of these objects does not exist or cannot be used, or ""
	PodCreated   time.Time // zero without a pod
	Obstacle     string    // why the pod has not started, or "" if unknown

	MissingReason string // condition reason for Missing; not used for decisions
}

// Step is the next step of a backup.
type Step string

// The steps.
const (
	Wait    Step = "Wait"    // for the pod, or until the backup is not blocked
	Start   Step = "Start"   // record another attempt
	Run     Step = "Run"     // create the pod of the recorded attempt
	Collect Step = "Collect" // read the result of the pod
	Fail    Step = "Fail"
)

// Advance returns the next step of a backup and its reason. An attempt is recorded before its pod is created, so that
// a crash in between repeats neither.
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
		return Fail, fmt.Sprintf("the pod did not start within %s: %s", a.StartTimeout, cmp.Or(a.Obstacle, "its containers are waiting"))
	case a.Pod == PodStarting:
		return Wait, a.Obstacle
	case a.Pod == PodActive || a.Pod == PodLeaving:
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

func timedOut(after time.Duration, reason string) string {
	if reason == "" {
		return fmt.Sprintf("timed out after %s", after)
	}
	return fmt.Sprintf("timed out after %s: %s", after, reason)
}
