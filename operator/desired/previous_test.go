package desired

import (
	"bytes"
	"os"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"quorate.dev/operator/api/v1alpha1"
)

// TestPreviousRelease checks that pods that the operator of the previous release has created are up to date, so that an
// upgrade of the operator restarts no pod. TestUpgradeRestartsNothing of package operator records the objects. If this
// test fails, a field that was added to the hashed inputs is not omitted when it has its default.
func TestPreviousRelease(t *testing.T) {
	text, err := os.ReadFile("testdata/previous-release.yaml")
	if err != nil {
		t.Fatal(err)
	}
	cluster, pods := &v1alpha1.ApiServerCluster{}, 0
	for _, document := range bytes.Split(text, []byte("\n---\n"))[1:] {
		if bytes.Contains(document, []byte("kind: ApiServerCluster")) {
			cluster = &v1alpha1.ApiServerCluster{}
			if err := yaml.UnmarshalStrict(document, cluster); err != nil {
				t.Fatal(err)
			}
			continue
		}
		pod := &corev1.Pod{}
		if err := yaml.UnmarshalStrict(document, pod); err != nil {
			t.Fatal(err)
		}
		pods++
		var voters []string
		for _, member := range cluster.Status.Members {
			voters = append(voters, member.Name)
		}
		if !strings.HasPrefix(pod.Name, cluster.Name+"-") {
			t.Fatalf("pod %s follows cluster %s", pod.Name, cluster.Name)
		}
		if Outdated(pod, HashesOf(cluster, cluster.Status.Image, Configuration{}), voters) {
			t.Errorf("pod %s is outdated", pod.Name)
		}
	}
	if pods != 6 {
		t.Errorf("%d pods, want 6", pods)
	}
}
