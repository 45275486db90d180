package etcd

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sync/errgroup"

	"quorate.dev/apiserver/config"
)

// trio starts three members that keep few raft entries for those that lag.
func trio(t *testing.T) (flags []config.Member, members []*Member) {
	t.Helper()
	peers := newAuthority(t, "peers")
	var cluster []string
	for i := range 3 {
		flags = append(flags, secured(t, fmt.Sprintf("m%d", i), peers))
		flags[i].HeartbeatInterval, flags[i].ElectionTimeout, flags[i].SnapshotCount =
			20*time.Millisecond, 500*time.Millisecond, 100
		cluster = append(cluster, flags[i].Name+"="+flags[i].ListenPeerURLs[0])
	}
	for i := range flags {
		flags[i].InitialCluster = strings.Join(cluster, ",")
		members = append(members, start(t, flags[i]))
	}
	for _, m := range members {
		await(t, "ready", m.Ready())
	}
	return flags, members
}

// TestStaleMember restarts a member after the other members have compacted their raft logs and their history beyond its
// last entry, so that the member gets a snapshot from the leader. Then its log is truncated: the member catches up,
// or reports that it has lost entries.
func TestStaleMember(t *testing.T) {
	if flags := os.Getenv(memberVariable); flags != "" {
		runMember(t, flags)
		return
	}
	t.Parallel()
	flags, members := trio(t)
	stop(t, members[2])
	write(t, members[0].Client())
	stale := start(t, flags[2])
	await(t, "ready", stale.Ready())
	got, err := stale.Client().Get(t.Context(), "key-9", clientv3.WithSerializable())
	if err != nil || len(got.Kvs) != 1 {
		t.Errorf("%v, %v", got, err)
	}
	stop(t, stale)
	truncateLog(t, flags[2].DataDirectory)
	if code, output := runProcess(t, flags[2]); code != 0 && code != config.LostDataExitCode {
		t.Errorf("exit code %d: %s", code, output)
	}
}

// TestOverwrittenPage: a member with a bad page does not start. bbolt panics in a goroutine of its own if it finds the
// page first. The exit code of this process does not report damaged data, but the exit code of the next process does.
func TestOverwrittenPage(t *testing.T) {
	t.Parallel()
	flags := single(t)
	m := start(t, flags)
	await(t, "ready", m.Ready())
	write(t, m.Client())
	stop(t, m)
	if err := overwriteLeaf(filepath.Join(flags.DataDirectory, "member", "snap", "db")); err != nil {
		t.Fatal(err)
	}
	code, output := runProcess(t, flags)
	if code == 0 {
		t.Errorf("the member started: %s", output)
	}
	if code != config.DamagedDataExitCode {
		code, output = runProcess(t, flags)
	}
	if code != config.DamagedDataExitCode {
		t.Errorf("the second process exited with code %d, want %d: %s", code, config.DamagedDataExitCode, output)
	}
}

// runProcess runs a member in a process until it is ready, and returns its exit code and output.
func runProcess(t *testing.T, flags config.Member) (code int, output string) {
	t.Helper()
	text, err := json.Marshal(flags)
	if err != nil {
		t.Fatal(err)
	}
	member := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestStaleMember$")
	member.Env = append(os.Environ(), memberVariable+"="+string(text))
	all, err := member.CombinedOutput()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return member.ProcessState.ExitCode(), string(all)
}

// memberVariable has the flags of the member that a process of a test runs: raft and bbolt panic in goroutines of their
// own.
const memberVariable = "QUORATE_TEST_MEMBER"

// runMember runs a member until it is ready.
func runMember(t *testing.T, text string) {
	var flags config.Member
	if err := json.Unmarshal([]byte(text), &flags); err != nil {
		t.Fatal(err)
	}
	m, err := Start(t.Context(), flags)
	if errors.Is(err, ErrDamaged) {
		os.Exit(config.DamagedDataExitCode)
	}
	if err != nil {
		t.Fatal(err)
	}
	await(t, "ready", m.Ready())
	stop(t, m)
}

// write writes more raft entries than members keep, and compacts the history.
func write(t *testing.T, client *clientv3.Client) {
	t.Helper()
	var writers errgroup.Group
	for key := range 10 {
		writers.Go(func() error {
			for range 30 {
				if _, err := client.Put(t.Context(), fmt.Sprint("key-", key), "value"); err != nil {
					return err
				}
			}
			return nil
		})
	}
	if err := writers.Wait(); err != nil {
		t.Fatal(err)
	}
	last, err := client.Get(t.Context(), "key-0")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Compact(t.Context(), last.Header.Revision, clientv3.WithCompactPhysical()); err != nil {
		t.Fatal(err)
	}
}

// truncateLog keeps the metadata and a few entries of a write-ahead log.
func truncateLog(t *testing.T, directory string) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(directory, "member", "wal", "*.wal"))
	if err != nil || len(logs) == 0 {
		t.Fatal(logs, err)
	}
	if err := os.Truncate(logs[len(logs)-1], 1000); err != nil {
		t.Fatal(err)
	}
}
