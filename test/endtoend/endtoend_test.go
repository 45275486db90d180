// Package endtoend scales, crashes and updates a cluster in a sandbox while a client writes and watches, and checks
// that no acknowledged write is lost and that the watch is consistent.
package endtoend

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
)

func TestSandbox(t *testing.T) {
	if testing.Short() {
		t.Skip("starts a whole sandbox")
	}
	s := startSandbox(t)
	s.settled(3, 3)
	s.run(s.demo, "create", "namespace", "team-a")
	s.hibernate()
	h := record(t, s.demoConfig())
	l := h.addLoad(s.demoConfig())

	step := func(name string, b budget, do func(t *testing.T)) {
		t.Run(name, func(t *testing.T) {
			outer := s.t
			s.t = t
			defer func() { s.t = outer }()
			h.failures.take()
			h.longestGap()
			do(t)
			h.spend(t, b)
		})
		if t.Failed() {
			t.FailNow()
		}
	}
	// First, while connections are spread over all replicas: later most lead to the one that runs longest.
	step("freeze the leader", freeze, func(t *testing.T) {
		if !strict() {
			t.Skip("takes a minute; set QUORATE_AVAILABILITY=full")
		}
		leader, _ := s.leader()
		s.freeze(leader)
		s.settled(3, 3)
	})
	step("scale to five", planned, func(*testing.T) {
		s.run(s.management, "scale", "apiservercluster/demo", "--replicas=5")
		s.settled(5, 5)
	})
	step("scale to three", planned, func(*testing.T) {
		s.run(s.management, "scale", "apiservercluster/demo", "--replicas=3")
		s.settled(3, 3)
	})
	step("kill the leader", crash, func(*testing.T) {
		leader, _ := s.leader()
		before := s.restarts(leader)
		s.kill(leader)
		s.restarted(leader, before)
		s.settled(3, 3)
	})
	step("kill a follower", budget{failed: crash.failed, gap: time.Second}, func(*testing.T) {
		_, follower := s.leader()
		before := s.restarts(follower)
		s.kill(follower)
		s.restarted(follower, before)
		s.settled(3, 3)
	})
	step("lose a volume", planned, func(t *testing.T) {
		_, follower := s.leader()
		s.run(s.management, "delete", "pvc/"+follower, "--wait=false")
		s.run(s.management, "delete", "pod/"+follower, "--wait=false")
		s.replaced(follower)
	})
	step("damage the data of a follower", budget{failed: crash.failed, gap: time.Second}, func(*testing.T) {
		_, follower := s.leader()
		s.damage(follower)
		s.kill(follower)
		s.replaced(follower)
	})
	step("stop the operator", budget{gap: time.Second}, func(*testing.T) {
		s.withoutOperator(func() { h.awaitWrites(100) })
	})
	step("defragment", planned, func(*testing.T) { s.defragment() })
	step("renew the certificates", planned, func(*testing.T) {
		s.configure(map[string]any{"lifetime": "24h"})
		s.settled(3, 3)
	})
	step("roll out an argument", planned, func(t *testing.T) {
		s.run(s.management, "patch", "apiservercluster/demo", "--type=merge", "-p", `{"spec":{"extraArgs":{"event-ttl":"2h0m0s"}}}`)
		s.waitFor("all pods have the argument", func() (bool, string) {
			return s.podsWith("--event-ttl=2h0m0s") == 3, "not yet"
		})
		s.settled(3, 3)
	})
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
}

// podsWith counts the pods whose command has an argument.
func (s *sandbox) podsWith(argument string) int {
	s.t.Helper()
	pods := must(s.pods.CoreV1().Pods("default").List(s.t.Context(), metav1.ListOptions{LabelSelector: "quorate.dev/cluster=demo"}))(s.t)
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
