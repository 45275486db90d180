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

// WithoutEtcd returns the names of the API servers that are not ready because their external etcd does not respond. The
// operator does not connect to an external etcd itself; it requests /readyz/etcd of the API servers. An API server that
// does not respond may be restarting because its etcd is unavailable: it is included if the condition Degraded already
// has the reason EtcdUnreachable. Pods are skipped until EtcdDue, because every API server needs some time to connect.
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
		failing[i] = failing[i] || err != nil && wasWithout // the API server may be restarting
	})
	var names []string
	for i := range s.Pods {
		if failing[i] {
			names = append(names, s.Pods[i].Name)
		}
	}
	return names
}

// EtcdDue returns the time by which the API server in a pod should have connected to its etcd.
func EtcdDue(pod *corev1.Pod) time.Time { return pod.CreationTimestamp.Add(QuorumLossTimeout) }
