package compatibility

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/test/upstream"
)

// kineVariable is the environment variable that enables TestKine. Its value is the path of kine, built by
// go build -modfile=tools/kine/go.mod github.com/k3s-io/kine.
const kineVariable = "QUORATE_KINE"

// TestKine runs this server and kube-apiserver on kine, an etcd-compatible server on PostgreSQL.
func TestKine(t *testing.T) {
	binary := os.Getenv(kineVariable)
	if binary == "" {
		t.Skip(kineVariable + " is not set")
	}
	upstream.NeedsProcesses(t)
	k := &kine{binary: binary, database: startPostgres(t), address: unusedAddress(t), directory: t.TempDir()}
	t.Cleanup(func() { k.stop() }) // after the API servers have ended
	k.start(t)
	k.use(t)
}

// kine is a running kine, which can be restarted.
type kine struct {
	binary, database, address, directory string
	process                              *exec.Cmd
}

func (k *kine) start(t *testing.T) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "kine.log"))
	if err != nil {
		t.Fatal(err)
	}
	k.process = exec.Command(k.binary, "--listen-address=tcp://"+k.address, "--endpoint="+k.database, "--metrics-bind-address=0",
		"--compact-min-retain=10")
	k.process.Stdout, k.process.Stderr, k.process.Dir = log, log, k.directory
	if err := k.process.Start(); err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + k.address}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	err = wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(ctx context.Context) (bool, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := client.Get(ctx, "/registry/health")
		return err == nil, nil
	})
	if err != nil {
		output, _ := os.ReadFile(log.Name())
		t.Fatalf("kine is not ready: %v\n%s", err, output)
	}
}

func (k *kine) stop() {
	if k.process == nil {
		return
	}
	_ = k.process.Process.Signal(syscall.SIGTERM)
	_ = k.process.Wait()
}

func (k *kine) use(t *testing.T) {
	directory := t.TempDir()
	pki, err := upstream.NewPKI(filepath.Join(directory, "pki"))
	if err != nil {
		t.Fatal(err)
	}
	options := upstream.Options{Directory: directory, PKI: pki, Etcd: "http://" + k.address,
		Arguments: []string{"--event-ttl=5s", "--etcd-compaction-interval=2s"}}
	process, err := upstream.StartQuorate(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	process.StopAfter(t)
	s := newServer(t, "quorate", process.Admin)
	s.create(t, "/api/v1/namespaces", `{"apiVersion":"v1","kind":"Namespace","metadata":{"name":"`+namespace+`"}}`)
	for _, kind := range kinds() {
		life(t, kind, s, s)
	}
	options.Directory = t.TempDir()
	kubernetes, err := upstream.StartKubernetes(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	kubernetes.StopAfter(t)
	both := &servers{kubernetes: newServer(t, "kube-apiserver", kubernetes.Admin), quorate: s}
	for _, kind := range kinds()[:4] {
		life(t, kind, both.kubernetes, s)
		life(t, kind, s, both.kubernetes)
	}
	s.expireEvent(t)
	s.readOld(t)
	s.compacted(t)
	k.stop()
	k.start(t)
	s.awaitServed(t, "/readyz")
	s.create(t, "/api/v1/namespaces/default/configmaps", `{"metadata":{"name":"after-restart"}}`)
}

// expireEvent creates an Event whose TTL is 5 s.
func (s *server) expireEvent(t *testing.T) {
	const events = "/api/v1/namespaces/default/events"
	s.create(t, events, `{"metadata":{"name":"short"},"involvedObject":{"namespace":"default"}}`)
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, 60*time.Second, true, func(ctx context.Context) (bool, error) {
		code, _, err := s.call(ctx, http.MethodGet, events+"/short", "", nil)
		return code == http.StatusNotFound, err
	})
	if err != nil {
		t.Errorf("an event outlives its TTL: %v", err)
	}
}

// readOld lists at an earlier revision, in pages, and watches from it.
func (s *server) readOld(t *testing.T) {
	const collection = "/api/v1/namespaces/default/configmaps"
	var first string
	for i := range 5 {
		created := s.create(t, collection, fmt.Sprintf(`{"metadata":{"name":"old-%d","labels":{"old":"yes"}}}`, i))
		if first == "" {
			first = metadata(created)["resourceVersion"].(string)
		}
	}
	s.delete(t, collection+"/old-3")
	list := s.get(t, collection+"?labelSelector=old&resourceVersionMatch=Exact&resourceVersion="+first)
	if items := list["items"].([]any); len(items) != 1 {
		t.Errorf("%d objects at revision %s, want 1", len(items), first)
	}
	page := s.get(t, collection+"?labelSelector=old&limit=2")
	s.delete(t, collection+"/old-4")
	rest := s.get(t, collection+"?labelSelector=old&continue="+metadata(page)["continue"].(string))
	if got := len(page["items"].([]any)) + len(rest["items"].([]any)); got != 4 {
		t.Errorf("%d objects in two pages, want 4", got)
	}
}

// compacted waits until revision 1 has expired.
func (s *server) compacted(t *testing.T) {
	err := wait.PollUntilContextTimeout(t.Context(), pollInterval, 60*time.Second, true, func(ctx context.Context) (bool, error) {
		code, _, err := s.call(ctx, http.MethodGet, "/api/v1/configmaps?resourceVersion=2&resourceVersionMatch=Exact", "", nil)
		return code == http.StatusGone, err
	})
	if err != nil {
		t.Errorf("revision 2 never expires: %v", err)
	}
}

// unusedAddress returns an address that no process listens on.
func unusedAddress(t *testing.T) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	return listener.Addr().String()
}

// startPostgres runs Debian's PostgreSQL, as the user postgres if the test runs as root.
func startPostgres(t *testing.T) string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if len(found) == 0 {
		t.Skip("PostgreSQL is not installed")
	}
	binaries, address := found[len(found)-1], unusedAddress(t)
	directory, err := os.MkdirTemp("", "postgres") // a directory that the user postgres can reach
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	attributes := &syscall.SysProcAttr{}
	if os.Geteuid() == 0 {
		account, err := user.Lookup("postgres")
		if err != nil {
			t.Skip(err)
		}
		uid, _ := strconv.Atoi(account.Uid)
		gid, _ := strconv.Atoi(account.Gid)
		attributes.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		if err := os.Chown(directory, uid, gid); err != nil {
			t.Fatal(err)
		}
	}
	command := func(name string, arguments ...string) *exec.Cmd {
		c := exec.Command(filepath.Join(binaries, name), arguments...)
		c.SysProcAttr, c.Dir = attributes, directory
		return c
	}
	data := filepath.Join(directory, "data")
	if output, err := command("initdb", "--auth=trust", "--username=kine", "--no-sync", data).CombinedOutput(); err != nil {
		t.Fatalf("initdb: %v\n%s", err, output)
	}
	host, port, _ := strings.Cut(address, ":")
	server := command("postgres", "-D", data, "-h", host, "-p", port, "-k", directory, "-F")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = server.Process.Signal(syscall.SIGQUIT)
		_ = server.Wait()
	})
	err = wait.PollUntilContextTimeout(t.Context(), pollInterval, patience, true, func(context.Context) (bool, error) {
		return command("pg_isready", "-h", host, "-p", port).Run() == nil, nil
	})
	if err != nil {
		t.Fatalf("PostgreSQL is not ready: %v", err)
	}
	return "postgres://kine@" + address + "/postgres?sslmode=disable"
}
