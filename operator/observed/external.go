package observed

import (
	"context"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/parallel"
)

// WithoutEtcd returns the names of the API servers that are not ready because their external etcd does not respond: the operator
// has no connection to it of its own. An API server that does not respond, because it is being restarted, counts as long as
// the condition Degraded says so. Pods that have just been created are not asked, because every API server needs some time
// to connect.
func (s *State) WithoutEtcd(ctx context.Context, probe Probe, now time.Time) []string {
	failing := make([]bool, len(s.Pods))
	before := meta.FindStatusCondition(s.Cluster.Status.Conditions, v1alpha1.Degraded)
	wasWithout := before != nil && before.Reason == v1alpha1.ReasonEtcdUnreachable
	parallel.Each(len(s.Pods), func(i int) {
		pod := &s.Pods[i]
		if Ready(pod) || pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "" || now.Before(EtcdDue(pod)) {
			return
		}
		err := probe.get(ctx, pod, "/readyz/etcd", func(response *http.Response) error {
			failing[i] = response.StatusCode == http.StatusInternalServerError
			return nil
		})
		failing[i] = failing[i] || err != nil && wasWithout // it may have just been restarted
	})
	var names []string
	for i := range s.Pods {
		if failing[i] {
			names = append(names, s.Pods[i].Name)
		}
	}
	return names
}

// EtcdDue returns the time by which the API server in a pod has connected to its etcd.
func EtcdDue(pod *corev1.Pod) time.Time { return pod.CreationTimestamp.Add(QuorumLossTimeout) }
