package endtoend

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/test/upstream"
)

// TestRecovery deletes two of three members with their volumes, and recovers the cluster from the third.
func TestRecovery(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	t.Parallel() // after TestSandbox, which asserts gaps
	s := startSandbox(t)
	s.settled(3, 3)
	s.request("declined")
	s.waitFor("a request that is not needed", s.recovered("NotNeeded"))

	api := must(kubernetes.NewForConfig(s.demoConfig()))(t).CoreV1().ConfigMaps("default")
	before := configMap("before", 1)
	before.Namespace = "default"
	written := must(api.Create(t.Context(), before, metav1.CreateOptions{}))(t)
	survivor, lost := s.loseQuorum()
	s.waitFor("the quorum to be reported as lost", func() (bool, string) {
		c := meta.FindStatusCondition(s.cluster().Status.Conditions, v1alpha1.EtcdQuorum)
		return c.Reason == "QuorumLost" && strings.Contains(c.Message, survivor+" has revision "), fmt.Sprint(c)
	})

	if output, code := s.quorateCode("status", "demo"); code != 2 ||
		!strings.Contains(output, "kubectl quorate recover demo") {
		t.Errorf("the status without a quorum has exit code %d:\n%s", code, output)
	}
	if _, code := s.quorateCode("recover", "demo"); code != 1 {
		t.Errorf("recover without a confirmation has exit code %d", code)
	}
	s.quorate("recover", "demo", "--yes", "--request-id=first")
	s.waitFor("the recovery", s.recovered("QuorumRecovered"))
	s.settled(3, 3)
	status := s.cluster().Status.Recovery
	if status.Member != survivor || status.Stage != v1alpha1.RecoveryCompleted || status.Revision == 0 {
		t.Errorf("status.recovery is %+v, want member %s", status, survivor)
	}
	for _, member := range s.cluster().Status.Members {
		if slices.Contains(lost, member.Name) {
			t.Errorf("the lost member %s is a member again", member.Name)
		}
	}
	got := must(api.Get(t.Context(), "before", metav1.GetOptions{}))(t)
	if got.UID != written.UID || got.ResourceVersion != written.ResourceVersion {
		t.Errorf("read %+v, want %+v", got.ObjectMeta, written.ObjectMeta)
	}
	got.Data = map[string]string{"after": "recovery"}
	updated := must(api.Update(t.Context(), got, metav1.UpdateOptions{}))(t)
	if !later(updated.ResourceVersion, written.ResourceVersion) {
		t.Errorf("wrote revision %s after the recovery, not after %s", updated.ResourceVersion, written.ResourceVersion)
	}
}

// loseQuorum deletes two members with their volumes. The operator is paused during that, because it would replace the
// first one.
func (s *sandbox) loseQuorum() (survivor string, lost []string) {
	s.t.Helper()
	survivor, _ = s.leader()
	for _, member := range s.cluster().Status.Members {
		if member.Name != survivor {
			lost = append(lost, member.Name)
		}
	}
	until := time.Now().Add(time.Hour).UTC().Format(time.RFC3339)
	s.run(s.management, "annotate", "apiservercluster/demo", v1alpha1.PausedUntilAnnotation+"="+until)
	s.waitFor("the operator to pause", func() (bool, string) {
		return condition(s.cluster(), v1alpha1.Paused) == metav1.ConditionTrue, ""
	})
	for _, name := range lost {
		s.run(s.management, "delete", "pvc/"+name, "pod/"+name, "--wait=false")
	}
	s.waitFor("the pods and volumes to be deleted", func() (bool, string) {
		for _, name := range lost {
			_, pod := s.pods.CoreV1().Pods("default").Get(s.t.Context(), name, metav1.GetOptions{})
			_, claim := s.pods.CoreV1().PersistentVolumeClaims("default").Get(s.t.Context(), name, metav1.GetOptions{})
			if !apierrors.IsNotFound(pod) || !apierrors.IsNotFound(claim) {
				return false, name
			}
		}
		return true, ""
	})
	s.run(s.management, "annotate", "apiservercluster/demo", v1alpha1.PausedUntilAnnotation+"-")
	return survivor, lost
}

func (s *sandbox) request(id string) {
	s.t.Helper()
	s.run(s.management, "patch", "apiservercluster/demo", "--type=merge", "-p",
		fmt.Sprintf(`{"spec":{"recovery":{"requestID":%q}}}`, id))
}

// recovered reports whether the last request is handled, with the given reason.
func (s *sandbox) recovered(reason string) func() (bool, string) {
	return func() (bool, string) {
		cluster := s.cluster()
		c := meta.FindStatusCondition(cluster.Status.Conditions, v1alpha1.Recovered)
		return c != nil && c.Status == metav1.ConditionTrue && c.Reason == reason &&
			!cluster.RecoveryRequested(), fmt.Sprint(c)
	}
}
