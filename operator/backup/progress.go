package backup

import (
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
	Attempts int // that were started, according to the stored status
	Pod      PodState
	Blocked  string // why no attempt can start now; ""
	Failure  string // of a failed pod
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

// Advance returns the next step of a backup and its reason. An attempt is recorded before its pod is created, so that a
// crash between the two repeats neither.
func Advance(a Attempt) (Step, string) {
	expired := a.Now.Sub(a.Created) > a.Timeout
	switch {
	case a.Pod == PodSucceeded:
		return Collect, ""
	case expired && a.Pod == PodFailed:
		return Fail, a.Failure
	case expired && a.Blocked != "":
		return Fail, fmt.Sprintf("timed out after %s: %s", a.Timeout, a.Blocked)
	case expired:
		return Fail, fmt.Sprintf("timed out after %s", a.Timeout)
	case a.Pod == PodActive || a.Pod == PodLeaving:
		return Wait, ""
	case a.Pod == PodFailed && a.Attempts >= MaxAttempts:
		return Fail, a.Failure
	case a.Blocked != "":
		return Wait, a.Blocked
	case a.Pod == PodFailed || a.Attempts == 0:
		return Start, a.Failure
	}
	return Run, ""
}
