package etcd

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
)

// A member without peer and client URLs can be reached only through its socket, and only by its user.
func TestLoneMemberListensOnItsSocketOnly(t *testing.T) {
	for name, directory := range map[string]string{"short": "", "long": strings.Repeat("x", 150)} {
		t.Run(name, func(t *testing.T) {
			member := single(t)
			member.DataDirectory = filepath.Join(member.DataDirectory, directory, "etcd")
			m := start(t, member)
			await(t, "ready", m.Ready())
			if len(m.etcd.Peers) > 0 || len(m.etcd.Clients) != 1 || m.etcd.Clients[0].Addr().Network() != "unix" {
				t.Errorf("listens to %d peers, and %d clients", len(m.etcd.Peers), len(m.etcd.Clients))
			}
			info, err := os.Stat(filepath.Dir(socketPath(member.DataDirectory)))
			if err != nil || info.Mode().Perm() != 0o700 {
				t.Errorf("the directory of the socket: %v, %v", info, err)
			}
			client := local(t, member.DataDirectory)
			if _, err := client.Put(t.Context(), "key", "value"); err != nil {
				t.Fatal(err)
			}
			stop(t, m)
			if _, err := os.Stat(socketPath(member.DataDirectory)); !errors.Is(err, fs.ErrNotExist) {
				t.Errorf("the socket was not removed: %v", err)
			}
			if _, err := LocalConfig(t.Context(), member.DataDirectory); !errors.Is(err, ErrNotRunning) {
				t.Errorf("connecting to a member that does not run: %v", err)
			}
		})
	}
}

// local returns a client that uses the socket of a member.
func local(t *testing.T, directory string) *clientv3.Client {
	t.Helper()
	configuration, err := LocalConfig(t.Context(), directory)
	if err != nil {
		t.Fatal(err)
	}
	configuration.Logger = zap.NewNop()
	client, err := clientv3.New(configuration)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { client.Close() })
	return client
}

// A member starts although a killed process has left its socket.
func TestStaleSocket(t *testing.T) {
	member := single(t)
	address, err := prepareSocket(member.DataDirectory)
	if err != nil {
		t.Fatal(err)
	}
	defer address.close()
	if err := os.WriteFile(address.path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m := start(t, member)
	await(t, "ready", m.Ready())
	if _, err := local(t, member.DataDirectory).Get(t.Context(), "key"); err != nil {
		t.Error(err)
	}
}

func TestInsecureMemberIsRefused(t *testing.T) {
	member := single(t)
	member.ListenPeerURLs = []string{"http://127.0.0.1:0"}
	if m, err := Start(t.Context(), member); err == nil {
		m.Stop(t.Context())
		t.Error("a member whose peers need no certificate started")
	}
}

// A single member that used to listen to peers keeps its data when it no longer does.
func TestMemberStopsListeningToPeers(t *testing.T) {
	member := single(t)
	member.ListenPeerURLs, member.AllowInsecureTransport = []string{"http://127.0.0.1:0"}, true
	m := start(t, member)
	await(t, "ready", m.Ready())
	if _, err := m.Client().Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	stop(t, m)
	member.ListenPeerURLs, member.AllowInsecureTransport = nil, false
	m = start(t, member)
	await(t, "ready", m.Ready())
	got, err := m.Client().Get(t.Context(), "key")
	if err != nil || len(got.Kvs) != 1 || len(m.etcd.Peers) != 0 {
		t.Errorf("after the restart: %v, %v, listening to %d peers", got, err, len(m.etcd.Peers))
	}
}
