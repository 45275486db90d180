package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// Environment variables that select a store.
const (
	// KineBinary is the path of kine, built by go build -tags nats -modfile=tools/kine/go.mod github.com/k3s-io/kine.
	KineBinary = "QUORATE_KINE"
	// StoreName selects the database in KineStores that tests use through kine. If the variable is not set, tests use
	// etcd.
	StoreName = "QUORATE_STORE"
)

// KineStores are the databases that kine uses: PostgreSQL, if it is installed, and the NATS server that is linked into
// kine.
var KineStores = []string{"postgresql", "nats"}

// Store is a server with etcd's protocol.
type Store struct {
	Endpoint string // URL, without TLS
	// Restart kills the server with SIGKILL and starts it again at the same address. For etcd it
	// returns errors.ErrUnsupported.
	Restart func(context.Context) error
}

// StartStore starts the store that the environment selects, etcd by default, and stops it at the end of the test.
func StartStore(t testing.TB) *Store {
	t.Helper()
	if name := os.Getenv(StoreName); name != "" {
		return StartKine(t, name)
	}
	etcd, err := StartEtcd(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	etcd.StopAfter(t)
	return &Store{Endpoint: etcd.Endpoint, Restart: func(context.Context) error { return errors.ErrUnsupported }}
}

// StartKine starts kine with the database name in KineStores. It skips the test if KineBinary is not set.
func StartKine(t testing.TB, name string) *Store {
	t.Helper()
	binary := os.Getenv(KineBinary)
	if binary == "" {
		t.Skip(KineBinary + " is not set")
	}
	directory := t.TempDir()
	k := &kine{binary: binary, directory: directory}
	switch name {
	case "postgresql":
		k.database = startPostgres(t)
	case "nats":
		k.database = "nats://?dontListen&revHistory=64&dataDir=" + filepath.Join(directory, "nats")
	default:
		t.Fatalf("%s=%s: want one of %v", StoreName, name, KineStores)
	}
	ports, err := freePorts(1)
	if err != nil {
		t.Fatal(err)
	}
	k.address = fmt.Sprintf("127.0.0.1:%d", ports[0])
	t.Cleanup(k.stop)
	if err := k.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &Store{Endpoint: "http://" + k.address, Restart: func(ctx context.Context) error {
		k.process.Kill()
		return k.start(ctx)
	}}
}

// kine is a kine process and its configuration.
type kine struct {
	binary, database, address, directory string
	process                              *Process // nil before the first start
}

// start starts kine and returns when it serves reads.
func (k *kine) start(ctx context.Context) (err error) {
	k.process, err = start("kine", k.binary, k.directory, []string{
		"--listen-address=tcp://" + k.address, "--endpoint=" + k.database,
		"--metrics-bind-address=0", "--compact-min-retain=10",
	})
	if err != nil {
		return err
	}
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{k.address}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	defer client.Close()
	return k.process.until(ctx, func(ctx context.Context) bool {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_, err := client.Get(ctx, "/registry/health")
		return err == nil
	})
}

func (k *kine) stop() {
	if k.process != nil {
		k.process.Kill()
	}
}

// startPostgres runs Debian's PostgreSQL and returns the URL of a database. It skips the test if PostgreSQL is not
// installed.
func startPostgres(t testing.TB) string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin")
	if len(found) == 0 {
		t.Skip("PostgreSQL is not installed")
	}
	directory, err := os.MkdirTemp("", "postgres") // the user postgres must be able to access the directory
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(directory) })
	p, err := newPostgres(found[len(found)-1], directory)
	if err != nil {
		t.Skip(err)
	}
	if err := p.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.stop)
	return "postgres://kine@" + net.JoinHostPort(p.host, p.port) + "/postgres?sslmode=disable"
}
