package reconcile

import (
	"crypto/tls"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"quorate.dev/operator/desired"
)

// TestVersion checks that the status has the version of Kubernetes that a ready API server reports, and that the
// version is read again only after a pod has changed.
func TestVersion(t *testing.T) {
	const address = "127.202.41.1"
	c := newCluster(t)
	c.clock.SetTime(time.Now().Add(-48 * time.Hour)) // certificates must be valid by the real clock
	c.execute([]string{"create", "replicas=1", "external=https://etcd:2379"})
	c.execute([]string{"settle"})
	if got := c.get().Status.Version; got != "" {
		t.Errorf("version %q without a ready API server", got)
	}
	var requests, version atomic.Int32
	version.Store(1)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, request *http.Request) {
		if request.URL.Path == "/version" {
			requests.Add(1)
			fmt.Fprintf(w, `{"gitVersion":"v1.36.%d"}`, version.Load())
		}
	}))
	server.Listener.Close()
	var err error
	server.Listener, err = net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(desired.SecurePort)))
	c.must(err)
	serving := c.secret("demo-serving").Data
	certificate, err := tls.X509KeyPair(serving[corev1.TLSCertKey], serving[corev1.TLSPrivateKeyKey])
	c.must(err)
	server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate}, MinVersion: tls.VersionTLS12}
	server.StartTLS()
	t.Cleanup(server.Close)
	start := func(uid string) {
		t.Helper()
		pod := &corev1.Pod{}
		c.must(c.client.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "demo-0"}, pod))
		pod.UID = types.UID(uid)
		c.must(c.client.Update(t.Context(), pod))
		pod.Status.PodIP = address
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		c.must(c.client.Status().Update(t.Context(), pod))
		c.execute([]string{"settle"})
	}
	expect := func(step, want string, reads int32) {
		t.Helper()
		if got := c.get().Status.Version; got != want || requests.Load() != reads {
			t.Errorf("%s: version %q, read %d times, want %q, %d times", step, got, requests.Load(), want, reads)
		}
	}
	start("first")
	expect("a ready API server", "v1.36.1", 1)
	version.Store(2)
	c.execute([]string{"reconcile"})
	expect("nothing has changed", "v1.36.1", 1)
	start("second")
	expect("the pod was replaced", "v1.36.2", 2)
	server.Close()
	start("third")
	expect("the API server does not respond", "v1.36.2", 2)
}
