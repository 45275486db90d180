package observed

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/parallel"
)

// WithoutEtcd returns the names of the API servers that are not ready because their external etcd does not respond: the operator
// has no connection to it of its own. Pods that have just been created are not asked, because every API server needs some time
// to connect.
func (s *State) WithoutEtcd(ctx context.Context, probe Probe, now time.Time) []string {
	failing := make([]bool, len(s.Pods))
	parallel.Each(len(s.Pods), func(i int) {
		pod := &s.Pods[i]
		if Ready(pod) || pod.Status.Phase != corev1.PodRunning || pod.Status.PodIP == "" || now.Before(EtcdDue(pod)) {
			return
		}
		_ = probe.get(ctx, pod, "/readyz?verbose", func(response *http.Response) error { // a server that does not respond has another problem
			failing[i] = etcdFails(io.LimitReader(response.Body, versionLimit))
			return nil
		})
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

// etcdFails reports whether the check of etcd in a response of /readyz?verbose fails.
func etcdFails(report io.Reader) bool {
	lines := bufio.NewScanner(report)
	for lines.Scan() {
		if strings.HasPrefix(lines.Text(), "[-]etcd ") {
			return true
		}
	}
	return false
}
