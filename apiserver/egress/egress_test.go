package egress_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/server/egressselector"

	"quorate.dev/apiserver/egress"
	"quorate.dev/apiserver/egress/egresstest"
	"quorate.dev/test/upstream"
)

// write returns the name of a file with an EgressSelectorConfiguration.
func write(t *testing.T, version, selections string) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "egress.yaml")
	content := "apiVersion: " + version + "\nkind: EgressSelectorConfiguration\negressSelections:\n" + selections
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

func listen(t *testing.T, network, address string) net.Listener {
	t.Helper()
	listener, err := net.Listen(network, address)
	if err != nil {
		t.Fatal(err)
	}
	return listener
}

// withTLS returns a listener that demands client certificates, and the tlsConfig of its clients.
func withTLS(t *testing.T, listener net.Listener) (net.Listener, string) {
	t.Helper()
	directory := t.TempDir()
	authority, err := upstream.NewAuthority("proxy-ca")
	if err != nil {
		t.Fatal(err)
	}
	certificate, key, err := authority.Server("proxy.example")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	if certificate, key, err = authority.Client("kube-apiserver"); err != nil {
		t.Fatal(err)
	}
	certificateFile, keyFile, err := upstream.Write(directory, "client", certificate, key)
	if err != nil {
		t.Fatal(err)
	}
	authorityFile := filepath.Join(directory, "ca.crt")
	if err := os.WriteFile(authorityFile, authority.PEM(), 0o600); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(authority.PEM())
	return tls.NewListener(listener, &tls.Config{
			Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: tls.RequireAndVerifyClientCert,
		}), fmt.Sprintf("{caBundle: %s, clientCert: %s, clientKey: %s, tlsServerName: proxy.example}",
			authorityFile, certificateFile, keyFile)
}

// TestProxies sends requests to a name that only the proxies resolve, through each kind of proxy.
func TestProxies(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(w, io.MultiReader(strings.NewReader(r.Host+" "), r.Body))
	}))
	defer backend.Close()
	route := func(string) string { return backend.Listener.Addr().String() }
	directory := t.TempDir()
	sockets := map[string]string{"connect": filepath.Join(directory, "c"), "grpc": filepath.Join(directory, "g")}
	proxies := map[string]*egresstest.Proxy{}
	for _, network := range []string{"controlplane", "etcd", "cluster"} {
		proxies[network] = &egresstest.Proxy{Route: route}
	}
	listener, tlsConfig := withTLS(t, listen(t, "tcp", "127.0.0.1:0"))
	proxies["controlplane"].ServeConnect(t, listener)
	proxies["etcd"].ServeConnect(t, listen(t, "unix", sockets["connect"]))
	proxies["cluster"].ServeGRPC(t, listen(t, "unix", sockets["grpc"]))
	dialers, err := egress.Load(write(t, "apiserver.k8s.io/v1beta1", fmt.Sprintf(`
- {name: controlplane, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: "https://%s", tlsConfig: %s}}}}
- {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %s}}}}
- {name: cluster, connection: {proxyProtocol: GRPC, transport: {uds: {udsName: %s}}}}
`, listener.Addr(), tlsConfig, sockets["connect"], sockets["grpc"])))
	if err != nil {
		t.Fatal(err)
	}
	for network, dial := range map[string]utilnet.DialFunc{
		"controlplane": dialers.ControlPlane, "cluster": dialers.Cluster,
		"etcd": func(ctx context.Context, _, address string) (net.Conn, error) {
			return dialers.DialEtcd(ctx, "http://"+address)
		},
	} {
		t.Run(network, func(t *testing.T) {
			client := &http.Client{Transport: &http.Transport{DialContext: dial}}
			defer client.CloseIdleConnections()
			long := strings.Repeat("x", 1<<20)
			response, err := client.Post("http://server.invalid:8080/", "text/plain", strings.NewReader(long))
			if err != nil {
				t.Fatal(err)
			}
			defer response.Body.Close()
			body, err := io.ReadAll(response.Body)
			if err != nil || string(body) != "server.invalid:8080 "+long {
				t.Errorf("got %.50s of %d bytes, %v", body, len(body), err)
			}
			if got := proxies[network].Dialed(); !slices.Equal(got, []string{"server.invalid:8080"}) {
				t.Errorf("the proxy connected to %v", got)
			}
		})
	}
	if dial, err := dialers.Lookup(egressselector.Cluster.AsNetworkContext()); dial == nil || err != nil {
		t.Errorf("lookup: %v", err)
	}
}

// TestSilentProxy connects to a proxy that accepts connections and does not respond.
func TestSilentProxy(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener := listen(t, "unix", socket)
	defer listener.Close()
	dialers, err := egress.Load(write(t, "apiserver.k8s.io/v1alpha1",
		"- {name: Cluster, connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: "+socket+"}}}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		conn, err := listener.Accept()
		cancel()
		if err == nil {
			defer conn.Close()
		}
		<-t.Context().Done()
	}()
	if _, err := dialers.Cluster(ctx, "tcp", "server.invalid:1"); err == nil ||
		!strings.Contains(err.Error(), "server.invalid:1") {
		t.Errorf("got %v", err)
	}
	if dialers.Etcd != nil || dialers.ControlPlane != nil {
		t.Error("connections of networks without a selection must be direct")
	}
}

func TestLoadErrors(t *testing.T) {
	for name, test := range map[string]struct{ version, selections, want string }{
		"version": {"apiserver.k8s.io/v1", "- {name: etcd}\n", "failed to read egress selector config: no kind"},
		"field":   {"apiserver.k8s.io/v1beta1", "- {names: etcd}\n", `unknown field "egressSelections[0].names"`},
		"protocol": {
			"apiserver.k8s.io/v1beta1", "- {name: etcd, connection: {proxyProtocol: SOCKS}}\n",
			"service.connection.protocol: Unsupported value",
		},
		"name": {
			"apiserver.k8s.io/v1beta1", "- {name: moon, connection: {proxyProtocol: Direct}}\n", `Unsupported value: "moon"`,
		},
		"plain HTTP": {
			"apiserver.k8s.io/v1beta1",
			"- {name: etcd, connection: {proxyProtocol: HTTPConnect, transport: {tcp: {url: 'http://x'}}}}\n",
			"must have an https:// URL",
		},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := egress.Load(write(t, test.version, test.selections)); err == nil ||
				!strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %s", err, test.want)
			}
		})
	}
	if _, err := egress.Load(filepath.Join(t.TempDir(), "none")); err == nil {
		t.Error("a missing file was accepted")
	}
	for _, file := range []string{"", write(t, "apiserver.k8s.io/v1beta1", "")} {
		if dialers, err := egress.Load(file); err != nil || dialers.Lookup != nil || dialers.Etcd != nil {
			t.Errorf("%q: %v", file, err)
		}
	}
}
