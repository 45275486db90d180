package upstream

import (
	"cmp"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// programs are the names of the programs that usePrograms installs.
var programs = []string{"quorate", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "etcd", "s3"}

// behavior is the environment variable that makes program exit, hang, or report that its port is taken, instead of
// serving.
const behavior = "UPSTREAM_TEST_BEHAVIOR"

// TestMain makes the test binary the programs that this package starts, by the name with which it is called.
func TestMain(m *testing.M) {
	if name := filepath.Base(os.Args[0]); slices.Contains(programs, name) {
		program(name, os.Args[1:])
	}
	os.Exit(m.Run())
}

// program serves health checks and the user of a client certificate at the address in the flags, until SIGTERM. Its log
// has the flags.
func program(name string, arguments []string) {
	terminate := make(chan os.Signal, 1)
	signal.Notify(terminate, syscall.SIGTERM)
	fmt.Println("start", name, strings.Join(arguments, " "))
	flags := map[string]string{}
	for _, argument := range arguments {
		flag, value, _ := strings.Cut(argument, "=")
		flags[flag] = value
	}
	switch os.Getenv(behavior) {
	case "exit":
		fmt.Println("cannot read the data")
		os.Exit(3)
	case "hang":
		<-terminate
		os.Exit(0)
	case "port taken twice":
		starts, err := os.ReadFile(name + ".log") // in the working directory
		if err != nil || strings.Count(string(starts), "start "+name) < 3 {
			fmt.Println("listen: address already in use")
			os.Exit(1)
		}
	}
	mux := http.NewServeMux()
	for _, path := range []string{"/health", "/healthz", "/readyz", "/livez"} {
		mux.HandleFunc(path, func(http.ResponseWriter, *http.Request) {})
	}
	mux.HandleFunc("/user", func(w http.ResponseWriter, r *http.Request) {
		for _, certificate := range r.TLS.PeerCertificates {
			fmt.Fprint(w, certificate.Subject.CommonName, certificate.Subject.Organization)
		}
	})
	if err := serve(name, arguments, flags, mux); err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	<-terminate
	os.Exit(0)
}

func serve(name string, arguments []string, flags map[string]string, handler http.Handler) error {
	server := httptest.NewUnstartedServer(handler)
	address := strings.TrimPrefix(cmp.Or(flags["--listen-metrics-urls"], flags["--listen-client-urls"]), "http://")
	if name == "s3" {
		address = arguments[0]
	}
	secure := address == ""
	listener, err := net.Listen("tcp", cmp.Or(address, "127.0.0.1:"+flags["--secure-port"]))
	if err != nil {
		return err
	}
	server.Listener = listener
	if !secure {
		server.Start()
		return nil
	}
	server.TLS = &tls.Config{}
	if file := flags["--tls-cert-file"]; file != "" {
		certificate, err := tls.LoadX509KeyPair(file, flags["--tls-private-key-file"])
		if err != nil {
			return err
		}
		server.TLS.Certificates = []tls.Certificate{certificate}
	}
	if file := flags["--client-ca-file"]; file != "" {
		authority, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		server.TLS.ClientAuth, server.TLS.ClientCAs = tls.RequireAndVerifyClientCert, x509.NewCertPool()
		server.TLS.ClientCAs.AppendCertsFromPEM(authority)
	}
	server.StartTLS()
	return nil
}

// usePrograms makes this package start the test binary instead of the programs.
func usePrograms(t *testing.T, does string) {
	t.Helper()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	for _, name := range programs {
		if err := os.Symlink(binary, filepath.Join(directory, name)); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv(Prebuilt, directory)
	t.Setenv(behavior, does)
	t.Setenv("GOCOVERDIR", t.TempDir()) // without it, a binary with coverage writes a warning to its log
}
