// Package etcdtest runs real etcd members for tests.
package etcdtest

import (
	"context"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/etcd"
)

// Client returns an in-process client of a new etcd.
func Client(t testing.TB) *clientv3.Client {
	t.Helper()
	return Member(t).Client()
}

// Remote returns a client that is connected to a new etcd over the network.
func Remote(t testing.TB) *clientv3.Client {
	t.Helper()
	flags := Flags(t)
	Start(t, flags)
	configuration, err := etcd.LocalConfig(t.Context(), flags.DataDirectory)
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

// Flags returns the flags of a new etcd.
func Flags(t testing.TB) config.Member {
	t.Helper()
	flags := config.Default().Member
	flags.DataDirectory, flags.UnsafeNoFsync = t.TempDir(), true
	return flags
}

// Member starts a new etcd, which stops when the test ends.
func Member(t testing.TB) *etcd.Member {
	t.Helper()
	return Start(t, Flags(t))
}

// Start starts an etcd with flags, which stops when the test ends.
func Start(t testing.TB, flags config.Member) *etcd.Member {
	t.Helper()
	member, err := etcd.Start(t.Context(), flags)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := member.Stop(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
	})
	<-member.Ready()
	return member
}
