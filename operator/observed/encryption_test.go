package observed

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/desired"
)

// TestProbesShareTheirConfiguration probes several replicas concurrently and repeatedly with one Probe. The race
// detector finds transports that write to a shared TLS configuration.
func TestProbesShareTheirConfiguration(t *testing.T) {
	s, probe := &State{Cluster: demo()}, Probe{}
	for i := range 4 {
		address := fmt.Sprintf("127.87.%d.1", i)
		listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(desired.SecurePort)))
		if err != nil {
			t.Skip("the loopback addresses cannot be used: ", err)
		}
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			fmt.Fprint(w, lastEncryptionConfig+`hash="sha256:a"} 1`)
		}))
		server.Listener, server.EnableHTTP2 = listener, true
		server.StartTLS()
		t.Cleanup(server.Close)
		roots := x509.NewCertPool()
		roots.AddCert(server.Certificate())
		probe.Serving = &tls.Config{RootCAs: roots, ServerName: "example.com", MinVersion: tls.VersionTLS12,
			Certificates: []tls.Certificate{{}}}
		pod := memberPod(fmt.Sprint("demo-", i), "")
		pod.Status.PodIP = address
		s.Pods = append(s.Pods, pod)
	}
	for range 20 {
		for i, e := range s.Encryptions(t.Context(), probe) {
			if e.Err != nil || e.Hash != "sha256:a" {
				t.Fatalf("replica %d: %+v", i, e)
			}
		}
		for i, c := range s.Credentials(t.Context(), probe) {
			if c.Err != nil || c.Serving == "" {
				t.Fatalf("replica %d: %+v", i, c)
			}
		}
	}
}

func TestParseEncryption(t *testing.T) {
	const family = "apiserver_encryption_config_controller_last_config_info"
	for metrics, want := range map[string]string{
		"": "",
		"x 1\n" + family + "{apiserver_id_hash=\"sha256:a\",hash=\"sha256:b\"} 1\ny 2\n": "sha256:b",
		family + "{hash=\"sha256:b\",apiserver_id_hash=\"sha256:a\"} 1":                  "sha256:b",
	} {
		if got, err := parseEncryption(strings.NewReader(metrics)); got != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", metrics, got, err, want)
		}
	}
}

// TestEncryptionHash checks that the hash of a configuration equals the hash that an API server reports for it.
func TestEncryptionHash(t *testing.T) {
	content := []byte("kind: EncryptionConfiguration\n")
	if got, want := EncryptionHash(content), fmt.Sprintf("sha256:%x", sha256.Sum256(content)); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if got := EncryptionHash(nil); got != "" {
		t.Errorf("got %s without a configuration", got)
	}
}

// TestUnreadableEncryption checks that a replica whose metrics cannot be read does not count as one without encryption:
// a rotation would drop the key that the replica still writes with.
func TestUnreadableEncryption(t *testing.T) {
	certificates := newReplicaCertificates(t)
	for i, test := range []struct {
		name, body string
		status     int
		want       string // prefix of the error
	}{
		{"forbidden", "", http.StatusForbidden, "request metrics: 403 Forbidden"},
		{"no metrics of encryption", "up 1\n", http.StatusOK, ""},
		{"too long", lastEncryptionConfig + strings.Repeat("x", 1<<17), http.StatusOK, "request metrics: read metrics: "},
	} {
		pod := memberPod("demo-0", "")
		pod.Status.PodIP = fmt.Sprintf("127.92.%d.1", i)
		certificates.serveReplica(t, pod.Status.PodIP, false, respond(t, "/metrics", test.status, test.body))
		s := &State{Cluster: demo(), Pods: []corev1.Pod{pod}}
		got := s.Encryptions(t.Context(), certificates.probe())[0]
		if got.Hash != "" || (got.Err == nil) != (test.want == "") ||
			got.Err != nil && !strings.HasPrefix(got.Err.Error(), test.want) {
			t.Errorf("%s: got %+v, want %q", test.name, got, test.want)
		}
	}
}
