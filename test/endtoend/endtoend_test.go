// Package endtoend scales, crashes and updates a cluster in a sandbox while a client writes and watches, and checks
// that no acknowledged write is lost and that the watch is consistent.
package endtoend

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/upstream"
)

func TestSandbox(t *testing.T) {
	upstream.NeedsProcesses(t)
	s := startSandbox(t)
	s.settled(3, 3)
	s.run(s.demo, "create", "namespace", "team-a")
	s.hibernate()
	h := record(t, s.following())
	l := h.addLoad(s.following())
	for _, e := range s.sandboxEvents(h) {
		t.Run(e.name, func(t *testing.T) { s.during(t, h, l, e) })
		if t.Failed() && !strict() {
			t.FailNow()
		}
	}
	h.verify()
	l.verify(s)
	t.Run("delete", func(t *testing.T) {
		s.run(s.management, "delete", "apiservercluster/demo")
		s.waitFor("nothing is left", func() (bool, string) {
			left := strings.TrimSpace(s.run(s.management, "get", "pods,pvc,secrets,services,pdb", "-n", "default",
				"-l", "quorate.dev/cluster=demo", "-o", "name"))
			return left == "", left
		})
	})
	s.checkPermissions()
}

// sandboxEvents returns the events in order. The event in which a replica becomes unreachable comes first, while
// connections are spread over all replicas. Later, most connections are to the replica that has run longest. Without
// -run, there are only a few events; QUORATE_AVAILABILITY=full adds the events that take minutes.
func (s *sandbox) sandboxEvents(h *history) []event {
	events := []event{
		{"scale to five", planned, func() { s.scale(5) }},
		{"scale to three", planned, func() { s.scale(3) }},
		{"kill the leader", killLeader, s.killLeader},
		{"kill a follower", kill, s.killFollower},
		{"lose a volume", planned, s.loseVolume},
		{"damage the data of a follower", kill, func() {
			_, follower := s.leader()
			s.damage(follower)
			s.kill(follower)
			s.replaced(follower)
		}},
		{"stop the operator", planned, func() { s.withoutOperator(func() { h.awaitWrites(100) }) }},
		{"defragment", planned, s.defragment},
		{"back up", planned, s.backUp},
	}
	long := s.longEvents()
	if !upstream.Selected() && !strict() {
		return append(events[:3:3], long[0]) // replaced certificates need the permission to patch pods
	}
	if !strict() { // the other events take minutes; QUORATE_AVAILABILITY=full
		return append(events, long[:2]...)
	}
	return append(append([]event{{"freeze the leader", silence, s.freezeLeader}}, events...), long...)
}

// podsWith returns the number of pods whose command has an argument.
func (s *sandbox) podsWith(argument string) int {
	s.t.Helper()
	pods := must(s.pods.CoreV1().Pods("default").List(s.t.Context(),
		metav1.ListOptions{LabelSelector: "quorate.dev/cluster=demo"}))(s.t)
	count := 0
	for _, pod := range pods.Items {
		for _, arg := range pod.Spec.Containers[0].Args {
			if arg == argument && pod.DeletionTimestamp == nil {
				count++
			}
		}
	}
	return count
}

// hibernate scales the cluster to zero and back, and checks that its objects and members are the same.
func (s *sandbox) hibernate() {
	s.t.Helper()
	const uid = "jsonpath={.metadata.uid}"
	before, members := s.run(s.demo, "get", "namespace", "team-a", "-o", uid), memberNames(s.cluster())
	s.run(s.management, "scale", "apiservercluster/demo", "--replicas=0")
	s.waitFor("the cluster hibernates", func() (bool, string) {
		c := s.cluster()
		condition := meta.FindStatusCondition(c.Status.Conditions, v1alpha1.Available)
		return c.Status.Replicas == 0 && condition.Reason == "Hibernated" &&
			meta.IsStatusConditionFalse(c.Status.Conditions, v1alpha1.Degraded), fmt.Sprint(c.Status.Conditions)
	})
	s.run(s.management, "scale", "apiservercluster/demo", "--replicas=3")
	s.settled(3, 3)
	if after := s.run(s.demo, "get", "namespace", "team-a", "-o", uid); after != before {
		s.t.Errorf("the namespace has UID %s, before %s", after, before)
	}
	if after := memberNames(s.cluster()); !slices.Equal(after, members) {
		s.t.Errorf("the members are %v, before %v", after, members)
	}
}

func memberNames(cluster *v1alpha1.ApiServerCluster) []string {
	var names []string
	for _, member := range cluster.Status.Members {
		names = append(names, member.Name)
	}
	return names
}
