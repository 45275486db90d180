package etcd

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"quorate.dev/apiserver/config"
	"quorate.dev/test/upstream"
)

// recorded returns flags whose member keeps a record outside its data directory.
func recorded(t *testing.T, flags config.Member) config.Member {
	t.Helper()
	flags.Record.Directory, flags.Record.Volume = t.TempDir(), "volume-of-"+flags.Name
	return flags
}

// quorumOf starts members that bootstrap a cluster together, each with a record.
func quorumOf(t *testing.T, size int) (flags []config.Member, members []*Member) {
	t.Helper()
	peers := newAuthority(t, "peers")
	var cluster []string
	taken := map[string]bool{}
	for i := range size {
		flags = append(flags, recorded(t, secured(t, fmt.Sprintf("m%d", i), peers)))
		for taken[flags[i].ListenPeerURLs[0]] { // the port of a former member is free until the member starts
			flags[i].ListenPeerURLs = []string{freeURL(t)}
		}
		taken[flags[i].ListenPeerURLs[0]] = true
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

// expectLost checks that a member refuses to start, with a message that has the words.
func expectLost(t *testing.T, flags config.Member, words string) {
	t.Helper()
	m, err := Start(t.Context(), flags)
	if err == nil {
		stop(t, m)
	}
	if !errors.Is(err, ErrLost) || !strings.Contains(err.Error(), words) {
		t.Errorf("%s: got error %v, want ErrLost with %q", flags.Name, err, words)
	}
}

// faults change the data directory of a stopped member so that it is not what the member has voted with.
var faults = map[string]struct {
	apply func(t *testing.T, directory string)
	words string
}{
	"emptied": {func(t *testing.T, directory string) {
		remove(t, directory)
		if err := os.Mkdir(directory, 0o700); err != nil {
			t.Fatal(err)
		}
	}, "the volume was emptied or replaced"},
	"etcd's directory removed": {
		func(t *testing.T, directory string) { remove(t, filepath.Join(directory, "member")) }, "no write-ahead log",
	},
	"log removed": {
		func(t *testing.T, directory string) { remove(t, logOf(directory)) }, "no write-ahead log",
	},
	"identity removed": {
		func(t *testing.T, directory string) { remove(t, filepath.Join(directory, identityFile)) }, "has no member.json",
	},
	"identity of a restored copy": {
		func(t *testing.T, directory string) { rewrite(t, directory, "m0", "other") },
		"not the data that this member has started with",
	},
	"identity of another member": {
		func(t *testing.T, directory string) { rewrite(t, directory, "m9", "other") }, "the data of member m9",
	},
	"log without the newest entries": {truncateLog, "the volume is an earlier copy"},
}

func remove(t *testing.T, path string) {
	t.Helper()
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
}

func rewrite(t *testing.T, directory, name, incarnation string) {
	t.Helper()
	own, err := readIdentity(directory)
	if err != nil || own == nil {
		t.Fatal(own, err)
	}
	if name != "m0" {
		own.Name = name
	}
	own.Incarnation = incarnation
	if err := writeIdentity(directory, *own); err != nil {
		t.Fatal(err)
	}
}

func copied(t *testing.T, directory string) string {
	t.Helper()
	target := filepath.Join(t.TempDir(), "copy")
	if output, err := exec.CommandContext(t.Context(), "cp", "-a", directory, target).CombinedOutput(); err != nil {
		t.Fatal(err, string(output))
	}
	return target
}

func replace(t *testing.T, directory, by string) {
	t.Helper()
	remove(t, directory)
	if err := os.Rename(copied(t, by), directory); err != nil {
		t.Fatal(err)
	}
}

// TestMemberWithoutItsDataDoesNotVote applies each fault to the member in each position of clusters of one, three and
// five voters, while the other members are stopped.
func TestMemberWithoutItsDataDoesNotVote(t *testing.T) {
	for _, size := range []int{1, 3, 5} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			flags, members := quorumOf(t, size)
			write(t, members[0].Client())
			for _, m := range members {
				awaitProgress(t, m)
				stop(t, m)
			}
			for i := range flags {
				kept := copied(t, flags[i].DataDirectory)
				for name, fault := range faults {
					t.Run(fmt.Sprintf("m%d %s", i, name), func(t *testing.T) {
						fault.apply(t, flags[i].DataDirectory)
						expectLost(t, flags[i], fault.words)
						replace(t, flags[i].DataDirectory, kept)
					})
				}
			}
			for i := range flags { // with their own data, they start
				members[i] = start(t, flags[i])
			}
			await(t, "ready", members[0].Ready())
		})
	}
}

// awaitProgress waits until the member has recorded the last entry of its log.
func awaitProgress(t *testing.T, m *Member) {
	t.Helper()
	for deadline := time.Now().Add(20 * time.Second); readProgress(m.record).Index < m.server.CommittedIndex(); {
		if time.Now().After(deadline) {
			t.Fatal("the progress is not recorded")
		}
		<-time.After(progressPeriod)
	}
}

// TestLastAddedVoterWithEmptyVolume is a sequence that lost an acknowledged write: a follower is stopped, the other two
// acknowledge a write and stop, and then the follower and the last-added voter, whose volume is empty, start.
func TestLastAddedVoterWithEmptyVolume(t *testing.T) {
	upstream.NeedsTime(t)
	t.Parallel()
	peers := newAuthority(t, "peers")
	var flags []config.Member
	for i := range 3 {
		flags = append(flags, recorded(t, secured(t, fmt.Sprintf("m%d", i), peers)))
		flags[i].ListenClientURLs = nil
	}
	first := start(t, flags[0])
	await(t, "ready", first.Ready())
	cluster := flags[0].Name + "=" + flags[0].ListenPeerURLs[0]
	second := grow(t, first, cluster, flags[1])
	cluster += "," + flags[1].Name + "=" + flags[1].ListenPeerURLs[0]
	third := grow(t, first, cluster, flags[2])
	flags[2].InitialCluster = cluster + "," + flags[2].Name + "=" + flags[2].ListenPeerURLs[0]
	flags[2].InitialClusterState = "existing"
	stop(t, second)
	if _, err := first.Client().Put(t.Context(), "acknowledged", "write"); err != nil {
		t.Fatal(err)
	}
	stop(t, first)
	stop(t, third)
	faults["emptied"].apply(t, flags[2].DataDirectory)
	second = start(t, flags[1])
	expectLost(t, flags[2], "the volume was emptied or replaced")
	start(t, flags[0])
	await(t, "ready", second.Ready())
	got, err := second.Client().Get(t.Context(), "acknowledged")
	if err != nil || len(got.Kvs) != 1 {
		t.Errorf("the acknowledged write: %v, %v", got, err)
	}
}

// TestEarlierCopyDoesNotVote replaces the volume of a member by a copy that was made before the last writes.
func TestEarlierCopyDoesNotVote(t *testing.T) {
	t.Parallel()
	flags, members := quorumOf(t, 3)
	stop(t, members[1])
	earlier := copied(t, flags[1].DataDirectory)
	members[1] = start(t, flags[1])
	put, err := members[0].Client().Put(t.Context(), "acknowledged", "write")
	if err != nil {
		t.Fatal(err)
	}
	await(t, "ready", members[1].Ready())
	if _, err := members[1].Client().Get(t.Context(), "acknowledged", clientv3.WithRev(put.Header.Revision)); err != nil {
		t.Fatal(err)
	}
	awaitProgress(t, members[1])
	stop(t, members[1])
	replace(t, flags[1].DataDirectory, earlier)
	expectLost(t, flags[1], "the volume is an earlier copy")

	// The operator's record is another witness, for example in a new pod.
	end, _, err := readLogEnd(logOf(flags[1].DataDirectory))
	if err != nil {
		t.Fatal(err)
	}
	flags[1].Record = config.MemberRecord{Index: end.Index + 1, Term: end.Term}
	expectLost(t, flags[1], "the volume is an earlier copy")
	flags[1].Record = config.MemberRecord{Volume: "volume-of-a-snapshot"}
	expectLost(t, flags[1], "the data is a copy")
	flags[1].Record = config.MemberRecord{MemberID: end.memberID + 1}
	expectLost(t, flags[1], "this is member")
}

// TestDataWithoutIdentityIsAdopted starts a member on data of a release that recorded no identity.
func TestDataWithoutIdentityIsAdopted(t *testing.T) {
	t.Parallel()
	flags := single(t)
	m := start(t, flags)
	await(t, "ready", m.Ready())
	stop(t, m)
	remove(t, filepath.Join(flags.DataDirectory, identityFile))
	flags = recorded(t, flags)
	m = start(t, flags)
	await(t, "ready", m.Ready())
	stop(t, m)
	own, err := readIdentity(flags.DataDirectory)
	if err != nil || own == nil || !own.Started || own.Volume != flags.Record.Volume {
		t.Errorf("adopted identity %+v, %v", own, err)
	}
	remove(t, flags.DataDirectory)
	expectLost(t, flags, "emptied or replaced")
}

// TestCopyWithoutIdentity: the data of a voter without its identity, on the new volume of another member, is not
// adopted: etcd would run a second voter with the ID of the first.
func TestCopyWithoutIdentity(t *testing.T) {
	t.Parallel()
	flags, members := quorumOf(t, 3)
	put(t, members[0], "a write")
	stop(t, members[1])
	joining := recorded(t, single(t))
	joining.Name = "m3"
	replace(t, joining.DataDirectory, flags[1].DataDirectory)
	remove(t, filepath.Join(joining.DataDirectory, identityFile))
	expectLost(t, joining, "the data of member m1")
	remove(t, filepath.Join(flags[1].DataDirectory, identityFile))
	flags[1].Record = config.MemberRecord{Directory: t.TempDir()}
	await(t, "ready", start(t, flags[1]).Ready())
}

// TestInterruptedFirstStart repeats a first start that ended before etcd had created its log.
func TestInterruptedFirstStart(t *testing.T) {
	t.Parallel()
	flags := recorded(t, single(t))
	if _, err := admit(flags); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Dir(databaseOf(flags.DataDirectory)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(databaseOf(flags.DataDirectory), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	await(t, "ready", start(t, flags).Ready())
}

// TestDatabaseWithoutLog does not serve an empty cluster from a database whose write-ahead log is gone.
func TestDatabaseWithoutLog(t *testing.T) {
	t.Parallel()
	flags := single(t)
	m := start(t, flags)
	await(t, "ready", m.Ready())
	stop(t, m)
	remove(t, logOf(flags.DataDirectory))
	expectLost(t, flags, "no write-ahead log")
	remove(t, filepath.Join(flags.DataDirectory, identityFile))
	expectLost(t, flags, "a database without a write-ahead log")
}

// TestSettled: an entry counts as saved when a later one is announced, or after a while.
func TestSettled(t *testing.T) {
	var s settled
	for i, step := range []struct{ index, want uint64 }{
		{5, 0}, {5, 0}, {6, 5}, {6, 5}, {6, 5}, {6, 5}, {6, 5}, {6, 6}, {9, 6},
	} {
		if got := s.observe(progress{step.index, 1}, progressPeriod); got.Index != step.want {
			t.Errorf("step %d: %d is on disk, want %d", i, got.Index, step.want)
		}
	}
}
