// Package etcdtest runs real members of etcd for tests.
package etcdtest

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/etcd"
)

// Client returns a client of an etcd of the test's own, in this process.
func Client(t testing.TB) *clientv3.Client {
	t.Helper()
	return Member(t).Client()
}

// Member starts an etcd of the test's own, which ends with it. Who connects does so to clientURLs.
func Member(t testing.TB, clientURLs ...string) *etcd.Member {
	t.Helper()
	options := config.Default().Member
	options.DataDirectory, options.UnsafeNoFsync = t.TempDir(), true
	options.ListenPeerURLs, options.ListenClientURLs = []string{"http://127.0.0.1:0"}, clientURLs
	member, err := etcd.Start(t.Context(), options)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { member.Stop(context.Background()) })
	<-member.Ready()
	return member
}
