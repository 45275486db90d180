package etcdctl

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	clientv3 "go.etcd.io/etcd/client/v3"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/etcd"
	"quorate.dev/apiserver/etcd/etcdtest"
	"quorate.dev/apiserver/snapshot"
)

// TestRecover recovers the data of one of two members.
func TestRecover(t *testing.T) {
	flags := lostQuorum(t)
	recoverAs := func(uid string) (format.Result, error) {
		out, err := run(t, "recover", "--data-dir", flags.DataDirectory, "--name", flags.Name,
			"--initial-advertise-peer-url", flags.ListenPeerURLs[0], "--initial-cluster-token", "token", "--uid", uid)
		if err != nil {
			return format.Result{}, err
		}
		t.Log(out)
		return parse[format.Result](t, out), nil
	}
	// The process is killed after its first step.
	former := flags.DataDirectory + ".before-recovery"
	if err := os.Rename(flags.DataDirectory, former); err != nil {
		t.Fatal(err)
	}
	first, err := recoverAs("one")
	if err != nil {
		t.Fatal(err)
	}
	if first.Manifest.Snapshot.Revision != 4 || first.Manifest.Snapshot.Keys != 3 {
		t.Errorf("recovered %+v, want revision 4 with 3 keys", first.Manifest.Snapshot)
	}
	again, err := recoverAs("one")
	if err != nil || !again.Manifest.Created.Equal(first.Manifest.Created) {
		t.Errorf("a repetition recovered %+v, %v; want the result of the first", again, err)
	}
	checkRecovered(t, flags, 4+snapshot.DefaultRevisionBump)
	if files, err := filepath.Glob(flags.DataDirectory + ".*"); err != nil || len(files) != 1 {
		t.Errorf("the recovery left %v, %v, want only its record", files, err)
	}

	// Another request is another recovery, of what was written since.
	if second, err := recoverAs("two"); err != nil || second.Manifest.Snapshot.Keys != 4 {
		t.Errorf("the second recovery: %+v, %v", second, err)
	}
	if err := os.RemoveAll(flags.DataDirectory); err != nil {
		t.Fatal(err)
	}
	if _, err := recoverAs("three"); err == nil || !strings.Contains(err.Error(), "there is no data") {
		t.Errorf("recovery without data: %v", err)
	}
}

// TestInterruptedRecovery: a member whose recovery was interrupted starts neither with an empty data directory nor, as
// a former voter, with its former data, which has no other voters any more. Both would discard what the others have
// acknowledged.
func TestInterruptedRecovery(t *testing.T) {
	flags := lostQuorum(t)
	refuses := func(words string) {
		t.Helper()
		member, err := etcd.Start(t.Context(), flags)
		if err == nil {
			err = member.Stop(t.Context())
		}
		if !errors.Is(err, etcd.ErrLost) || !strings.Contains(err.Error(), words) {
			t.Errorf("got error %v, want ErrLost with %q", err, words)
		}
	}
	former := etcd.BeforeRecovery(flags.DataDirectory)
	if err := os.Rename(flags.DataDirectory, former); err != nil {
		t.Fatal(err)
	}
	refuses("a recovery was interrupted")
	recovered := flags
	recovered.DataDirectory, recovered.InitialCluster, recovered.ListenPeerURLs = former, "", nil
	member, err := etcd.Start(t.Context(), recovered, etcd.WithoutFormerMembers())
	if err != nil {
		t.Fatal(err)
	}
	<-member.Ready()
	if err := member.Stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.RemoveAll(flags.DataDirectory), os.Rename(former, flags.DataDirectory)); err != nil {
		t.Fatal(err)
	}
	refuses("without the other members")
	if _, err := run(t, "recover", "--data-dir", flags.DataDirectory, "--name", flags.Name,
		"--initial-advertise-peer-url", flags.ListenPeerURLs[0]); err != nil {
		t.Fatal(err)
	}
	checkRecovered(t, flags, 4+snapshot.DefaultRevisionBump)
}

// lostQuorum returns the flags of a member that stopped after the other voter of its cluster was lost.
func lostQuorum(t *testing.T) config.Member {
	t.Helper()
	flags, other := etcdtest.Flags(t), etcdtest.Flags(t)
	flags.DataDirectory = filepath.Join(t.TempDir(), "etcd")
	other.Name = "other"
	for _, f := range []*config.Member{&flags, &other} {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		f.ListenPeerURLs, f.AllowInsecureTransport = []string{"http://" + listener.Addr().String()}, true
		listener.Close()
	}
	flags.InitialCluster = flags.Name + "=" + flags.ListenPeerURLs[0] + "," + other.Name + "=" + other.ListenPeerURLs[0]
	other.InitialCluster = flags.InitialCluster
	started := make(chan *etcd.Member)
	go func() {
		member, err := etcd.Start(t.Context(), other)
		if err != nil {
			t.Error(err)
		}
		started <- member
	}()
	member, err := etcd.Start(t.Context(), flags)
	lost := <-started
	if err != nil || lost == nil {
		t.Fatal(err)
	}
	for _, key := range []string{"a", "b", "c"} {
		if _, err := member.Client().Put(t.Context(), key, "value"); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(lost.Stop(t.Context()), member.Stop(t.Context())); err != nil {
		t.Fatal(err)
	}
	return flags
}

// checkRecovered starts the recovered member, writes and stops it.
func checkRecovered(t *testing.T, flags config.Member, revision int64) {
	t.Helper()
	flags.InitialCluster = ""
	member, err := etcd.Start(t.Context(), flags)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := member.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	client := member.Client()
	if _, err := client.Put(t.Context(), "d", "value"); err != nil {
		t.Fatal(err)
	}
	list, err := client.Get(t.Context(), "", clientv3.WithPrefix())
	if err != nil || list.Count != 4 || list.Header.Revision <= revision {
		t.Errorf("%v, %v; want 4 keys after revision %d", list, err, revision)
	}
	members, err := client.MemberList(t.Context())
	if err != nil || len(members.Members) != 1 {
		t.Errorf("members %v, %v", members, err)
	}
}
