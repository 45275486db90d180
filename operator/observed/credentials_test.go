package observed

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"quorate.dev/operator/desired"
	"quorate.dev/operator/pki"
)

// replicaCertificates are the authorities of a cluster, and a certificate of each kind.
type replicaCertificates struct {
	servers, clients, frontProxies, etcd pki.Bundle

	serving, member, client tls.Certificate
}

func newReplicaCertificates(t *testing.T) *replicaCertificates {
	t.Helper()
	r := &replicaCertificates{}
	for name, bundle := range map[string]*pki.Bundle{
		"servers": &r.servers, "clients": &r.clients, "front-proxies": &r.frontProxies, "etcd": &r.etcd,
	} {
		signer, err := pki.NewAuthority(name, pki.AuthorityLifetime, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		*bundle = pki.Bundle{Signer: signer}
	}
	r.serving = issue(t, r.servers, pki.Leaf{
		CommonName: "kube-apiserver", DNSNames: []string{"demo.ns.svc"}, Server: true,
	})
	r.member = issue(t, r.etcd, pki.Leaf{
		CommonName: "etcd-server", DNSNames: []string{"demo-members.ns.svc"}, Server: true,
	})
	r.client = issue(t, r.etcd, pki.Leaf{CommonName: desired.ManagedBy, Client: true})
	return r
}

func issue(t *testing.T, authority pki.Bundle, leaf pki.Leaf) tls.Certificate {
	t.Helper()
	pair, err := authority.Issue(leaf, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	certificate, err := tls.X509KeyPair(pair.Certificate, pair.Key)
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}

func pool(bundles ...pki.Bundle) *x509.CertPool {
	certificates := x509.NewCertPool()
	for _, bundle := range bundles {
		certificates.AppendCertsFromPEM(bundle.Trusted())
	}
	return certificates
}

// probe returns a Probe that verifies the certificates.
func (r *replicaCertificates) probe() Probe {
	return Probe{
		Serving: &tls.Config{
			RootCAs: pool(r.servers), ServerName: "demo.ns.svc", MinVersion: tls.VersionTLS12,
			Certificates: []tls.Certificate{r.client},
		},
		Etcd: &tls.Config{
			RootCAs: pool(r.etcd), ServerName: "demo-members.ns.svc", MinVersion: tls.VersionTLS12,
			Certificates: []tls.Certificate{r.client},
		},
		Tokens: true,
	}
}

// serve runs a TLS server at a port of a loopback address until the test ends.
func serve(t *testing.T, address string, port int, config *tls.Config, handler http.HandlerFunc) {
	t.Helper()
	listener, err := net.Listen("tcp", net.JoinHostPort(address, strconv.Itoa(port)))
	if err != nil {
		t.Skip("the loopback addresses cannot be used: ", err)
	}
	server := httptest.NewUnstartedServer(handler)
	_ = server.Listener.Close()
	server.Listener, server.TLS, server.EnableHTTP2 = listener, config, true
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // handshakes that fail are part of the tests
	server.StartTLS()
	t.Cleanup(server.Close)
}

// serveReplica runs the API server of a replica and, unless etcd is false, its member's client URL.
func (r *replicaCertificates) serveReplica(t *testing.T, address string, etcd bool, handler http.HandlerFunc) {
	t.Helper()
	serve(t, address, desired.SecurePort, &tls.Config{
		Certificates: []tls.Certificate{r.serving}, ClientCAs: pool(r.clients, r.frontProxies),
		ClientAuth: tls.RequestClientCert, MinVersion: tls.VersionTLS12,
	}, handler)
	if etcd {
		serve(t, address, desired.ClientPort, &tls.Config{
			Certificates: []tls.Certificate{r.member}, ClientCAs: pool(r.etcd), ClientAuth: tls.RequireAndVerifyClientCert,
			MinVersion: tls.VersionTLS12,
		}, nil)
	}
}

// parsed returns the chain of a certificate as clients see it.
func parsed(t *testing.T, certificate tls.Certificate) []*x509.Certificate {
	t.Helper()
	var chain []*x509.Certificate
	for _, der := range certificate.Certificate {
		one, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		chain = append(chain, one)
	}
	return chain
}

// respond returns a handler that responds to one path, and fails the test if another one is requested.
func respond(t *testing.T, path string, status int, body string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != path {
			t.Errorf("requested %s, want %s", r.URL.Path, path)
		}
		w.WriteHeader(status)
		fmt.Fprint(w, body)
	}
}

// TestCredentials checks which credentials of a replica are read. A rotation continues to its next stage when all
// replicas use the credentials of the present one, so that a wrong result would interrupt clients.
func TestCredentials(t *testing.T) {
	certificates := newReplicaCertificates(t)
	keys := respond(t, "/openid/v1/jwks", http.StatusOK, `{"keys": [{"kid": "one", "kty": "RSA"}, {"kid": "two"}]}`)
	server := Credentials{
		Serving:             ChainFingerprint(parsed(t, certificates.serving)),
		Authorities:         append(certificates.clients.Subjects(), certificates.frontProxies.Subjects()...),
		ServiceAccountKeyID: []string{"one", "two"},
	}
	member := server
	member.EtcdServing = ChainFingerprint(parsed(t, certificates.member))
	member.EtcdAuthorities = certificates.etcd.Subjects()
	healthy := server
	healthy.ServiceAccountKeyID = nil
	for i, test := range []struct {
		name    string
		role    string
		etcd    bool // a member listens
		handler http.HandlerFunc
		edit    func(*Probe)
		want    Credentials // if there is no error
		err     string      // prefix of the error
	}{
		{"member", desired.RoleMember, true, keys, func(*Probe) {}, member, ""},
		{"server", desired.RoleServer, false, keys, func(*Probe) {}, server, ""},
		{"external etcd", desired.RoleMember, false, keys, func(p *Probe) { p.Etcd = nil }, server, ""},
		{
			"without tokens", desired.RoleServer, false, respond(t, "/livez", http.StatusInternalServerError, "etcd failed"),
			func(p *Probe) { p.Tokens = false }, healthy, "",
		},
		{
			"stopped member", desired.RoleMember, false, keys, func(*Probe) {}, Credentials{}, "connect to the etcd member: ",
		},
		{
			"member of another cluster", desired.RoleMember, true, keys, func(p *Probe) { p.Etcd.RootCAs = pool() },
			Credentials{}, "connect to the etcd member: ",
		},
		{
			"starting", desired.RoleServer, false, respond(t, "/openid/v1/jwks", http.StatusServiceUnavailable, ""),
			func(*Probe) {}, Credentials{}, "request the token keys: 503 Service Unavailable",
		},
		{
			"another program", desired.RoleServer, false, respond(t, "/openid/v1/jwks", http.StatusOK, "<html>"),
			func(*Probe) {}, Credentials{}, "read the token keys: ",
		},
		{
			"server of another cluster", desired.RoleServer, false, keys, func(p *Probe) { p.Serving.RootCAs = pool() },
			Credentials{}, "request the token keys: ",
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := memberPod("demo-0", "")
			pod.Status.PodIP, pod.Labels[desired.RoleLabel] = fmt.Sprintf("127.89.%d.1", i), test.role
			certificates.serveReplica(t, pod.Status.PodIP, test.etcd, test.handler)
			probe := certificates.probe()
			test.edit(&probe)
			s := &State{Cluster: demo(), Pods: []corev1.Pod{pod}}
			got := s.Credentials(t.Context(), probe)[0]
			if test.err != "" {
				if got.Err == nil || !strings.HasPrefix(got.Err.Error(), test.err) {
					t.Errorf("got %v, want %s", got.Err, test.err)
				}
				return
			}
			if !sameSubjects(got.Authorities, test.want.Authorities) {
				t.Errorf("got authorities %q, want %q", got.Authorities, test.want.Authorities)
			}
			got.Authorities = test.want.Authorities
			if !reflect.DeepEqual(got, test.want) {
				t.Errorf("got %+v, want %+v", got, test.want)
			}
		})
	}
	pending := memberPod("demo-0", "")
	pending.Status.PodIP = ""
	s := &State{Cluster: demo(), Pods: []corev1.Pod{pending}}
	if got := s.Credentials(t.Context(), certificates.probe())[0]; !errors.Is(got.Err, errNoAddress) {
		t.Errorf("a pod without an address: got %v", got.Err)
	}
	if got := s.Encryptions(t.Context(), certificates.probe())[0]; !errors.Is(got.Err, errNoAddress) {
		t.Errorf("a pod without an address: got %v", got.Err)
	}
}

// sameSubjects reports whether two lists have the same subjects, in any order.
func sameSubjects(a, b [][]byte) bool {
	count := map[string]int{}
	for _, subject := range a {
		count[string(subject)]++
	}
	for _, subject := range b {
		count[string(subject)]--
	}
	for _, n := range count {
		if n != 0 {
			return false
		}
	}
	return true
}

// TestVersion reads the version of an API server, whose certificate must be valid for the name of the cluster.
func TestVersion(t *testing.T) {
	certificates := newReplicaCertificates(t)
	for i, test := range []struct {
		name, host, body string
		authority        []byte
		want             Versions
		err              string
	}{
		{
			"ready", "demo.ns.svc", `{"major": "1", "minor": "37", "gitVersion": "v1.37.2"}`, certificates.servers.Trusted(),
			Versions{"v1.37.2", "v1.37.0"}, "",
		},
		{
			"emulation", "demo.ns.svc",
			`{"major": "1", "minor": "37", "emulationMajor": "1", "emulationMinor": "36", "gitVersion": "v1.37.2"}`,
			certificates.servers.Trusted(), Versions{"v1.37.2", "v1.36.0"}, "",
		},
		{
			"only a version of git", "demo.ns.svc", `{"gitVersion": "v1.36.3"}`, certificates.servers.Trusted(),
			Versions{"v1.36.3", "v1.36.3"}, "",
		},
		{"other name", "other.ns.svc", `{}`, certificates.servers.Trusted(), Versions{}, "request the version: "},
		{"other authority", "demo.ns.svc", `{}`, certificates.clients.Trusted(), Versions{}, "request the version: "},
		{"another program", "demo.ns.svc", "<html>", certificates.servers.Trusted(), Versions{}, "read the version: "},
		{"no authority yet", "demo.ns.svc", `{}`, nil, Versions{}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := memberPod("demo-0", "")
			pod.Status.PodIP = fmt.Sprintf("127.90.%d.1", i)
			certificates.serveReplica(t, pod.Status.PodIP, false, respond(t, "/version", http.StatusOK, test.body))
			s := &State{Cluster: demo(), Pods: []corev1.Pod{pod}}
			got, err := s.Versions(t.Context(), test.authority, test.host)
			if got != test.want || (err == nil) != (test.err == "") || err != nil && !strings.HasPrefix(err.Error(), test.err) {
				t.Errorf("got %v, %v, want %v, %q", got, err, test.want, test.err)
			}
		})
	}
}

// TestRefusedVersion checks that an API server that does not permit to read its version is not mistaken for one that
// has no version.
func TestRefusedVersion(t *testing.T) {
	certificates := newReplicaCertificates(t)
	pod := memberPod("demo-0", "")
	pod.Status.PodIP = "127.91.0.1"
	certificates.serveReplica(t, pod.Status.PodIP, false, respond(t, "/version", http.StatusUnauthorized,
		`{"kind": "Status", "apiVersion": "v1", "status": "Failure", "message": "Unauthorized", "code": 401}`))
	s := &State{Cluster: demo(), Pods: []corev1.Pod{pod}}
	got, err := s.Versions(t.Context(), certificates.servers.Trusted(), "demo.ns.svc")
	if got != (Versions{}) || err == nil || err.Error() != "request the version: 401 Unauthorized" {
		t.Errorf("got %q, %v", got, err)
	}
}
