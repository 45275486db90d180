package endtoend

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/upstream"
)

// TestEmptiedVolumes empties the volumes of running members. A member whose volume is empty is replaced while the
// others have a quorum. If the others have no quorum, the member must not help a stale member to continue without a
// write that the other two have acknowledged, and the loss of the quorum is reported.
func TestEmptiedVolumes(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Parallel() // after TestSandbox, which asserts gaps
	s := startSandbox(t)
	s.settled(3, 3)
	_, follower := s.leader()
	s.emptyVolume(follower)
	s.replaced(follower) // the last-added voter is a new member from here on

	leader, _ := s.leader()
	var stale, last string
	for _, m := range s.cluster().Status.Members {
		if m.Name != leader {
			stale, last = last, m.Name
		}
	}
	id := must(s.process(leader))(t)
	check(t, syscall.Kill(must(s.process(stale))(t), syscall.SIGSTOP))
	api := must(kubernetes.NewForConfig(s.demoConfig()))(t).CoreV1().ConfigMaps("default")
	s.waitFor("a write that only the leader and the last-added voter acknowledge", func() (bool, string) {
		object := configMap("acknowledged", 1)
		object.Namespace = "default"
		_, err := api.Create(t.Context(), object, metav1.CreateOptions{})
		return err == nil, fmt.Sprint(err)
	})
	check(t, syscall.Kill(id, syscall.SIGSTOP))
	s.emptyVolume(last)
	s.kill(stale)
	s.waitFor("the quorum to be reported as lost, with the reason", func() (bool, string) {
		c := meta.FindStatusCondition(s.cluster().Status.Conditions, v1alpha1.EtcdQuorum)
		d := meta.FindStatusCondition(s.cluster().Status.Conditions, v1alpha1.Degraded)
		return c.Reason == "QuorumLost" && d.Status == metav1.ConditionTrue &&
			strings.Contains(c.Message, last+" does not start, because its volume does not have its data"), fmt.Sprint(c)
	})
	if _, err := api.Create(t.Context(), configMap("diverged", 1), metav1.CreateOptions{}); err == nil {
		t.Error("a write succeeded while the leader with the newest data is stopped")
	}

	// The leader returns: its data is complete, and the emptied member is replaced.
	if err := syscall.Kill(id, syscall.SIGCONT); err != nil && !errors.Is(err, syscall.ESRCH) {
		t.Fatal(err)
	}
	s.replaced(last)
	if _, err := api.Get(t.Context(), "acknowledged", metav1.GetOptions{}); err != nil {
		t.Errorf("the acknowledged write: %v", err)
	}
}

// emptyVolume kills the process of a member and removes everything from its volume before the process starts again.
func (s *sandbox) emptyVolume(member string) {
	s.t.Helper()
	directory, id := s.dataDirectory(member), must(s.process(member))(s.t)
	check(s.t, syscall.Kill(id, syscall.SIGSTOP))
	check(s.t, os.RemoveAll(directory))
	check(s.t, syscall.Kill(id, syscall.SIGKILL))
}
