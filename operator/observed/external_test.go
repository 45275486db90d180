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

	"quorate.dev/operator/desired"
)

// TestWithoutEtcd checks which API servers are reported: those that have been running for some time, are not ready, and say that
// their check of etcd fails.
func TestWithoutEtcd(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s, probe := &State{Cluster: demo()}, Probe{}
	const failing = "[+]ping ok\n[-]etcd failed: reason withheld\nreadyz check failed\n"
	for i, test := range []struct {
		name, report string
		age          time.Duration
		ready        bool
	}{
		{"failing", failing, time.Minute, false},
		{"other", "[+]etcd ok\n[-]etcd-readiness failed: reason withheld\n[-]informer-sync failed\n", time.Minute, false},
		{"new", failing, QuorumLossTimeout - time.Second, false},
		{"ready", failing, time.Minute, true},
	} {
		address := fmt.Sprintf("127.88.%d.1", i)
		listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(desired.SecurePort)))
		if err != nil {
			t.Fatal(err)
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.RequestURI() != "/readyz?verbose" {
				t.Errorf("requested %s", r.URL)
			}
			w.WriteHeader(http.StatusInternalServerError)
			fmt.Fprint(w, test.report)
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
}
