package observed

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/desired"
	"quorate.dev/operator/etcd"
)

// A voter that does not run may have the only copy of an acknowledged write: if the volume of another voter that had
// the write was put back to an earlier state, the running voters may have elected a leader without the write. This is
// excluded if each other member has run without interruption since the voter was last healthy, because the data of a
// running process cannot be put back. While the voter is healthy, the runs of the other members are therefore recorded
// in an annotation of the voter's claim. A run is recorded once its API server is ready, which requires a linearizable
// read: the member then has all writes that were acknowledged before the run started.

// run identifies an uninterrupted run of the API server of a pod.
type run struct {
	container string // "" if the API server does not run
	process   string // in the member's own report, since kubelets report restarts late; "" without a response
}

// parseRun parses the notation of String.
func parseRun(text string) run {
	container, process, _ := strings.Cut(text, "+")
	return run{container, process}
}

// String returns the notation of a run in annotations, or "" if it is not known.
func (r run) String() string {
	if r.container == "" {
		return ""
	}
	return r.container + "+" + r.process
}

// continues reports whether r, the present run, is the same uninterrupted run as former. A present run without a report
// is compared by its container only.
func (r run) continues(former run) bool {
	return r.container != "" && r.container == former.container && (r.process == former.process || r.process == "")
}

// runOf returns the present run of a member.
func (s *State) runOf(name string) run {
	var present run
	if pod := s.Pod(name); pod != nil {
		present.container = containerOf(pod)
	}
	if m := s.Member(name); m != nil && m.Healthy {
		present.process = m.Report.Run
	}
	return present
}

// containerOf identifies the running container of the API server of a pod.
func containerOf(pod *corev1.Pod) string {
	if Terminated(pod) {
		return ""
	}
	for _, container := range pod.Status.ContainerStatuses {
		if container.Name != desired.ServerContainer {
			continue
		}
		if container.State.Running == nil {
			return ""
		}
		id := container.ContainerID[strings.LastIndex(container.ContainerID, "/")+1:]
		return fmt.Sprintf("%s/%d/%.12s", pod.UID, container.RestartCount, id)
	}
	return string(pod.UID)
}

// Agrees reports whether a member is healthy and ready, and has compared its log with the log of the present leader,
// which has all entries of it.
func (s *State) Agrees(m etcd.Member) bool {
	pod := s.Pod(m.Name)
	return m.Healthy && m.Report.Compared && pod != nil && Ready(pod)
}

// HealthyWith returns the value of LastHealthyWithAnnotation for the claim of the healthy member m: the runs of the
// other members. An entry is updated when the other API server is ready. It keeps its former value while that API
// server is not ready, or continues its former run but did not report it in this reconciliation.
func (s *State) HealthyWith(m etcd.Member) string {
	former, present := s.lastHealthyWith(m.Name), map[string]string{}
	for _, other := range s.Members {
		if other.Name == m.Name {
			continue
		}
		latest := former[other.Name]
		if pod := s.Pod(other.Name); pod != nil && other.Healthy && Ready(pod) {
			if current := s.runOf(other.Name); current.process != "" || !current.continues(latest) { // "": one report failed
				latest = current
			}
		}
		if text := latest.String(); text != "" {
			present[other.Name] = text
		}
	}
	var list []string
	for _, name := range slices.Sorted(maps.Keys(present)) {
		list = append(list, name+"="+present[name])
	}
	return strings.Join(list, ",")
}

// lastHealthyWith returns the runs in the annotation of a member's claim, by member.
func (s *State) lastHealthyWith(name string) map[string]run {
	runs := map[string]run{}
	claim := s.Claim(name)
	if claim == nil {
		return runs
	}
	for _, entry := range strings.Split(claim.Annotations[desired.LastHealthyWithAnnotation], ",") {
		if other, text, ok := strings.Cut(entry, "="); ok {
			runs[other] = parseRun(text)
		}
	}
	return runs
}

// Unproven returns, as a clause, why the voter m, which does not run, may have the only copy of acknowledged writes. It
// returns "" if the other members are known to have all of them.
func (s *State) Unproven(m etcd.Member) string {
	if m.Healthy || m.Learner || !s.ReportsRuns() {
		return ""
	}
	interrupted := s.interrupted(m)
	if len(interrupted) == 0 {
		return ""
	}
	return "its member was not running, and " + strings.Join(interrupted, " and ") +
		" had not run without interruption since that member was last healthy"
}

// ReportsRuns reports whether any member reports its run. Members of releases without reports do not: if all members
// are of such releases, Unproven could never be "" and every scale-down would keep claims.
func (s *State) ReportsRuns() bool {
	return slices.ContainsFunc(s.Members, func(m etcd.Member) bool { return m.Report.Run != "" })
}

// Unrecorded reports whether the annotation of the healthy voter m does not contain the present runs of the other
// healthy members yet. The next reconciliations record them; if the pod of m were deleted before, its claim would be
// kept without need. Unrecorded is false if m is of a release that reports no runs.
func (s *State) Unrecorded(m etcd.Member) bool {
	pod := s.Pod(m.Name)
	if !m.Healthy || m.Learner || m.Report.Run == "" || pod == nil || !Ready(pod) {
		return false
	}
	return slices.ContainsFunc(s.interrupted(m), func(name string) bool {
		other, pod := s.Member(name), s.Pod(name)
		return other != nil && other.Healthy && pod != nil && Ready(pod)
	})
}

// interrupted returns the names of the members whose present run is not the run in the annotation of m's claim. Voters
// that the annotation does not contain are included; so are members in the annotation that have left.
func (s *State) interrupted(m etcd.Member) []string {
	runs := s.lastHealthyWith(m.Name)
	for _, other := range s.Members {
		if _, recorded := runs[other.Name]; !recorded && !other.Learner && other.Name != m.Name {
			runs[other.Name] = run{}
		}
	}
	var interrupted []string
	for _, name := range slices.Sorted(maps.Keys(runs)) {
		if !s.runOf(name).continues(runs[name]) {
			interrupted = append(interrupted, name)
		}
	}
	return interrupted
}

// Kept reports whether a claim is marked as one that may have the only copy of acknowledged writes.
func Kept(claim *corev1.PersistentVolumeClaim) bool {
	return desired.Kept(claim)
}
