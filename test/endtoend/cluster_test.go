package endtoend

import (
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"

	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/test/upstream"
)

// TestCluster asserts the budgets in docs/availability.md on a Kubernetes cluster that has the operator, and whose default
// StorageClass can give 6 volumes. It runs as root on the only node, and sends its load to the cluster IP of a Service.
// QUORATE_CLUSTER is the kubeconfig of an administrator. The namespace default must have no ApiServerCluster named demo.
func TestCluster(t *testing.T) {
	kubeconfig := os.Getenv("QUORATE_CLUSTER")
	if kubeconfig == "" {
		t.Skip("QUORATE_CLUSTER is not set")
	}
	s := &sandbox{t: t, management: kubeconfig, kubectl: must(upstream.Binary(t.Context(), "kubectl"))(t)}
	s.connect()
	s.run(s.management, "apply", "-n", "default", "-f", "../../config/samples/demo.yaml")
	s.settled(3, 3)
	s.connectThroughService()
	h := record(t, s.demoConfig())
	l := h.addLoad(s.demoConfig())
	for _, event := range s.events(h) {
		t.Run(event.name, func(t *testing.T) {
			s.t = t
			defer func() { s.t = h.t }()
			h.failures.take()
			h.longestGap()
			event.do()
			h.spend(t, event.budget)
		})
	}
	h.verify()
	l.verify(s)
	s.run(s.management, "delete", "-n", "default", "apiservercluster/demo", "--timeout=120s")
}

// connectThroughService writes the kubeconfig of demo with the cluster IP of its Service, because the node's resolver does
// not know its name.
func (s *sandbox) connectThroughService() {
	s.t.Helper()
	text := s.run(s.management, "get", "-n", "default", "secret/demo-admin-kubeconfig", "-o", "jsonpath={.data.kubeconfig}")
	data := must(base64.StdEncoding.DecodeString(text))(s.t)
	s.demo = filepath.Join(s.t.TempDir(), "demo.kubeconfig")
	check(s.t, os.WriteFile(s.demo, data, 0o600))
	address := s.run(s.management, "get", "-n", "default", "service/demo", "-o", "jsonpath={.spec.clusterIP}")
	s.run(s.demo, "config", "set-cluster", "demo", "--server=https://"+address+":6443")
}

// event is something that happens to a cluster under load, and what clients may notice of it.
type event struct {
	name   string
	budget budget
	do     func()
}

func (s *sandbox) events(h *history) []event {
	scale := func(replicas string, n, voters int) func() {
		return func() {
			s.run(s.management, "scale", "-n", "default", "apiservercluster/demo", "--replicas="+replicas)
			s.settled(n, voters)
		}
	}
	kill := func(pod string) {
		before := s.restarts(pod)
		s.kill(pod)
		s.restarted(pod, before)
		s.settled(3, 3)
	}
	return []event{
		{"freeze the leader", freeze, func() {
			leader, _ := s.leader()
			s.freeze(leader)
			s.settled(3, 3)
		}},
		{"scale to five", planned, scale("5", 5, 5)},
		{"scale to three", planned, scale("3", 3, 3)},
		{"kill the leader", crash, func() {
			leader, _ := s.leader()
			kill(leader)
		}},
		{"kill a follower", budget{failed: crash.failed, gap: planned.gap}, func() {
			_, follower := s.leader()
			kill(follower)
		}},
		{"evict a follower", planned, func() {
			_, follower := s.leader()
			s.evict(follower)
		}},
		{"evict the leader", planned, func() {
			leader, _ := s.leader()
			s.evict(leader)
		}},
		{"stop the operator", planned, func() {
			s.run(s.management, "scale", "-n", "quorate-system", "deployment/quorate-operator", "--replicas=0")
			h.awaitWrites(200)
			s.run(s.management, "scale", "-n", "quorate-system", "deployment/quorate-operator", "--replicas=2")
			s.run(s.management, "rollout", "status", "-n", "quorate-system", "deployment/quorate-operator", "--timeout=120s")
		}},
		{"renew the certificates", planned, func() {
			s.configure(map[string]any{"lifetime": "24h"})
			s.settled(3, 3)
		}},
		{"roll out an argument", planned, func() {
			s.run(s.management, "patch", "-n", "default", "apiservercluster/demo", "--type=merge", "-p", `{"spec":{"extraArgs":{"event-ttl":"2h0m0s"}}}`)
			s.waitFor("all pods have the argument", func() (bool, string) { return s.podsWith("--event-ttl=2h0m0s") == 3, "not yet" })
			s.settled(3, 3)
		}},
	}
}

// evict evicts a pod, as a drain of its node does, and waits for its successor.
func (s *sandbox) evict(pod string) {
	s.t.Helper()
	pods := s.pods.CoreV1().Pods("default")
	before := must(pods.Get(s.t.Context(), pod, metav1.GetOptions{}))(s.t).UID
	check(s.t, pods.EvictV1(s.t.Context(), &policyv1.Eviction{ObjectMeta: metav1.ObjectMeta{Name: pod}}))
	s.waitFor("the successor of "+pod, func() (bool, string) {
		now, err := pods.Get(s.t.Context(), pod, metav1.GetOptions{})
		return err == nil && now.UID != before && ready(now), "not ready"
	})
	s.settled(3, 3)
}
