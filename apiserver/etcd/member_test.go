package etcd

import (
	"context"
	"testing"
	"time"

	"quorate.dev/apiserver/config"
)

// single returns the flags of the only member of a cluster.
func single(t *testing.T) config.Member {
	t.Helper()
	member := config.Default().Member
	member.DataDirectory = t.TempDir()
	member.Name = "alone"
	member.UnsafeNoFsync = true
	return member
}

func start(t *testing.T, member config.Member, opts ...Option) *Member {
	t.Helper()
	m, err := Start(t.Context(), member, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Stop(context.WithoutCancel(t.Context())) })
	return m
}

func await(t *testing.T, what string, happened <-chan struct{}) {
	t.Helper()
	select {
	case <-happened:
	case <-time.After(90 * time.Second):
		t.Fatalf("timed out: %s", what)
	}
}

func TestStartIsQuick(t *testing.T) {
	begin := time.Now()
	m := start(t, single(t))
	await(t, "ready", m.Ready())
	took := time.Since(begin)
	t.Logf("ready after %v", took)
	if took > 2*time.Second { // an election timeout alone may take two
		t.Errorf("a new single member was ready after %v", took)
	}
	if err := m.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func TestRestartKeepsData(t *testing.T) {
	member := single(t)
	m := start(t, member)
	await(t, "ready", m.Ready())
	if _, err := m.Client().Put(t.Context(), "key", "value"); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	if err := m.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Logf("stopped after %v", time.Since(begin))
	if err, ok := <-m.Err(); ok {
		t.Errorf("Stop was reported as a failure: %v", err)
	}
	m = start(t, member)
	await(t, "ready", m.Ready())
	got, err := m.Client().Get(t.Context(), "key")
	if err != nil || len(got.Kvs) != 1 {
		t.Errorf("after the restart: %v, %v", got, err)
	}
}
