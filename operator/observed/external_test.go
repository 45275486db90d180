package observed

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// TestWithoutEtcd checks which API servers WithoutEtcd returns: only those that have been running for some time, are
// not ready, and report that their check of etcd fails.
func TestWithoutEtcd(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s, probe := &State{Cluster: demo()}, Probe{}
	for i, test := range []struct {
		name   string
		status int
		age    time.Duration
		ready  bool
	}{
		{"failing", http.StatusInternalServerError, time.Minute, false},
		{"other", http.StatusOK, time.Minute, false},
		{"new", http.StatusInternalServerError, QuorumLossTimeout - time.Second, false},
		{"ready", http.StatusInternalServerError, time.Minute, true},
	} {
		address := fmt.Sprintf("127.88.%d.1", i)
		listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(desired.SecurePort)))
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.RequestURI() != "/readyz/etcd" {
				t.Errorf("requested %s", r.URL)
			}
			w.WriteHeader(test.status)
		}))
		server.Listener = listener
		server.StartTLS()
		t.Cleanup(server.Close)
		roots := x509.NewCertPool()
		roots.AddCert(server.Certificate())
		probe.Serving = &tls.Config{RootCAs: roots, ServerName: "example.com", MinVersion: tls.VersionTLS12}
		pod := memberPod(test.name, "")
		pod.CreationTimestamp = metav1.NewTime(now.Add(-test.age))
		pod.Status.PodIP, pod.Status.Phase, pod.Status.Conditions = address, corev1.PodRunning, nil
		if test.ready {
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		}
		s.Pods = append(s.Pods, pod)
	}
	if got := s.WithoutEtcd(t.Context(), probe, now); !slices.Equal(got, []string{"failing"}) {
		t.Errorf("got %q", got)
	}
	stopped := memberPod("stopped", "")
	stopped.Status.PodIP, stopped.Status.Phase, stopped.Status.Conditions = "127.88.9.1", corev1.PodRunning, nil
	s.Pods = append(s.Pods, stopped)
	if got := s.WithoutEtcd(t.Context(), probe, now); !slices.Equal(got, []string{"failing"}) {
		t.Errorf("without a response: got %q", got)
	}
	s.Cluster.Status.Conditions = []metav1.Condition{{
		Type: v1alpha1.Degraded, Status: "True", Reason: v1alpha1.ReasonEtcdUnreachable,
	}}
	if got := s.WithoutEtcd(t.Context(), probe, now); !slices.Equal(got, []string{"failing", "stopped"}) {
		t.Errorf("during a restart: got %q", got)
	}
}
