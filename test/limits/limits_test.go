// Package limits starts API servers as processes and takes more than a client's share of them: requests without
// permissions, responses that are never read, connections that are never used, and objects that fill the memory.
package limits

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	rbac "k8s.io/api/rbac/v1"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"quorate.dev/test/upstream"
)

// patience bounds the wait for a condition on a slow machine.
const patience = 2 * time.Minute

// server is an API server with a client of the administrator.
type server struct {
	*upstream.APIServer
	pki     *upstream.PKI
	options upstream.Options
	admin   *kubernetes.Clientset
}

// start starts this project's server.
func start(t *testing.T, arguments []string, wrapper ...string) *server {
	t.Helper()
	s := newServer(t, arguments, wrapper...)
	s.launch(t)
	s.StopAfter(t)
	return s
}

// newServer returns a server that launch starts.
func newServer(t *testing.T, arguments []string, wrapper ...string) *server {
	t.Helper()
	upstream.NeedsProcesses(t)
	pki, err := upstream.NewPKI(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	options := upstream.Options{Directory: t.TempDir(), PKI: pki, Arguments: arguments, Wrapper: wrapper}
	if isUpstream() { // how kube-apiserver does, for comparison
		etcd, err := upstream.StartEtcd(t.Context(), t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		etcd.StopAfter(t)
		options.Etcd = etcd.Endpoint
	}
	return &server{pki: pki, options: options}
}

// isUpstream reports whether the tests start kube-apiserver.
func isUpstream() bool { return os.Getenv("QUORATE_LIMITS_UPSTREAM") != "" }

// launch starts the server, or starts it again with the data that it has stored.
func (s *server) launch(t *testing.T) {
	t.Helper()
	launch := upstream.StartQuorate
	if isUpstream() {
		launch = upstream.StartKubernetes
	}
	var err error
	if s.APIServer, err = launch(t.Context(), s.options); err != nil {
		t.Fatal(err)
	}
	if s.admin, err = kubernetes.NewForConfig(rest.CopyConfig(s.Admin)); err != nil {
		t.Fatal(err)
	}
}

// anonymous returns a client without credentials that opens a connection for each request.
func (s *server) anonymous() *http.Client {
	return &http.Client{Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true,
	}}
}

// as returns the configuration of a user who may read everything.
func (s *server) as(t *testing.T, name string) *rest.Config {
	t.Helper()
	config, err := s.pki.As(s.Admin, name)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.admin.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbac.ClusterRoleBinding{
		ObjectMeta: meta.ObjectMeta{Name: name},
		Subjects:   []rbac.Subject{{Kind: "User", Name: name, APIGroup: rbac.GroupName}},
		RoleRef:    rbac.RoleRef{APIGroup: rbac.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
	}, meta.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	await(t, "the role of "+name, func(ctx context.Context) bool {
		_, err := client.CoreV1().Namespaces().Get(ctx, "default", meta.GetOptions{})
		return err == nil
	})
	return config
}

// await waits for a condition.
func await(t *testing.T, what string, done func(context.Context) bool) {
	t.Helper()
	err := wait.PollUntilContextTimeout(t.Context(), 20*time.Millisecond, patience, true,
		func(ctx context.Context) (bool, error) { return done(ctx), nil })
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
}

// get returns the status code and the body of a response.
func get(ctx context.Context, client *http.Client, url string) (int, string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = response.Body.Close() }()
	body, err := io.ReadAll(response.Body)
	return response.StatusCode, string(body), err
}

// metric returns the sum of the series of the server's metrics whose lines begin with a prefix.
func (s *server) metric(t *testing.T, prefix string) (sum float64) {
	t.Helper()
	body, err := s.admin.RESTClient().Get().AbsPath("/metrics").DoRaw(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		if !strings.HasPrefix(line, prefix) {
			continue
		}
		fields := strings.Fields(line)
		value, err := strconv.ParseFloat(fields[len(fields)-1], 64)
		if err != nil {
			t.Fatal(err)
		}
		sum += value
	}
	return sum
}

// memory returns a value of the process's status in MiB: VmRSS, or VmHWM for its maximum.
func (s *server) memory(t *testing.T, name string) int {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.PID))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(status)) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			kilobytes, err := strconv.Atoi(strings.Fields(rest)[0])
			if err != nil {
				t.Fatal(err)
			}
			return kilobytes >> 10
		}
	}
	t.Fatalf("no %s in the status of the process", name)
	return 0
}
