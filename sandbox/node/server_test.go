package node

import (
	"net"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
)

// startServer runs a kube-apiserver on an etcd of its own and returns a client.
func startServer(t *testing.T) kubernetes.Interface {
	t.Helper()
	binary := os.Getenv("KUBE_APISERVER")
	if binary == "" {
		t.Skip("KUBE_APISERVER does not name a kube-apiserver")
	}
	directory := t.TempDir()
	config := embed.NewConfig()
	config.Dir = filepath.Join(directory, "etcd")
	config.LogLevel = "error"
	config.ListenClientUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:" + freePort(t)}}
	config.AdvertiseClientUrls = config.ListenClientUrls
	config.ListenPeerUrls = []url.URL{{Scheme: "http", Host: "127.0.0.1:0"}}
	etcd, err := embed.StartEtcd(config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(etcd.Close)
	tokens := filepath.Join(directory, "tokens.csv")
	os.WriteFile(tokens, []byte("secret,admin,1,system:masters\n"), 0o600)
	port := freePort(t)
	server := exec.Command(binary,
		"--etcd-servers="+config.ListenClientUrls[0].String(), "--secure-port="+port, "--bind-address=127.0.0.1",
		"--cert-dir="+directory, "--token-auth-file="+tokens, "--authorization-mode=RBAC",
		"--service-cluster-ip-range=127.77.128.0/17", "--service-account-issuer=https://sandbox",
		"--service-account-signing-key-file="+serviceAccountKey(t, directory),
		"--service-account-key-file="+serviceAccountKey(t, directory), "--disable-admission-plugins=ServiceAccount",
		"--endpoint-reconciler-type=none",
	)
	log, _ := os.Create(filepath.Join(directory, "server.log"))
	server.Stdout, server.Stderr = log, log
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Process.Kill(); server.Wait() })
	client := kubernetes.NewForConfigOrDie(&rest.Config{
		Host: "https://127.0.0.1:" + port, BearerToken: "secret", QPS: -1, TLSClientConfig: rest.TLSClientConfig{Insecure: true},
	})
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		if _, err := client.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(t.Context()); err == nil {
			return client
		} else if time.Now().After(deadline) {
			content, _ := os.ReadFile(log.Name())
			t.Fatalf("the server is not ready: %v\n%s", err, content)
		}
	}
}

func serviceAccountKey(t *testing.T, directory string) string {
	file := filepath.Join(directory, "sa.key")
	if _, err := os.Stat(file); err != nil {
		if output, err := exec.Command("openssl", "genrsa", "-out", file, "2048").CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, output)
		}
	}
	return file
}

func freePort(t *testing.T) string {
	socket, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer socket.Close()
	return strconv.Itoa(socket.Addr().(*net.TCPAddr).Port)
}

func parse(address string) netip.Addr {
	parsed, _ := netip.ParseAddr(address)
	return parsed
}
