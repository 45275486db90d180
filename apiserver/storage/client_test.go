package storage

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/etcd"
)

// compactionClient returns a client of a fresh etcd, in this process.
func compactionClient(t *testing.T) *clientv3.Client {
	t.Helper()
	member := config.Default().Member
	member.DataDirectory = t.TempDir()
	member.ListenPeerURLs = []string{"http://127.0.0.1:0"}
	member.UnsafeNoFsync = true
	m, err := etcd.Start(t.Context(), member)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Stop(context.Background()) })
	<-m.Ready()
	return m.Client()
}
