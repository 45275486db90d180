package etcdctl

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/etcd"
	"quorate.dev/apiserver/etcd/etcdtest"
)

// TestRestoredDataIsNoFormerVoter: data that 'quorate etcd restore' or 'quorate etcd recover' has put in the place of a
// member's data does not start as that member, whether the record in the pod or only the hosting cluster knows the
// member.
func TestRestoredDataIsNoFormerVoter(t *testing.T) {
	for _, command := range []string{"restore", "recover"} {
		t.Run(command, func(t *testing.T) {
			flags := etcdtest.Flags(t)
			flags.DataDirectory = filepath.Join(t.TempDir(), "etcd")
			flags.Record = config.MemberRecord{Directory: t.TempDir(), Volume: "volume"}
			member := etcdtest.Start(t, flags)
			if _, err := member.Client().Put(t.Context(), "key", "value"); err != nil {
				t.Fatal(err)
			}
			status, err := member.Status(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "snapshot.db")
			if _, err := run(t, "snapshot", "save", file, "--data-dir", flags.DataDirectory); err != nil {
				t.Fatal(err)
			}
			if err := member.Stop(t.Context()); err != nil {
				t.Fatal(err)
			}
			if command == "restore" {
				if err := os.RemoveAll(flags.DataDirectory); err != nil {
					t.Fatal(err)
				}
				_, err = run(t, "restore", file, "--unverified", "--data-dir", flags.DataDirectory, "--name", flags.Name)
			} else {
				_, err = run(t, "recover", "--data-dir", flags.DataDirectory, "--name", flags.Name, "--uid", "one")
			}
			if err != nil {
				t.Fatal(err)
			}
			expectLost(t, flags, "has no member.json")
			flags.Record = config.MemberRecord{
				Directory: t.TempDir(), Volume: "volume", Started: true, MemberID: status.MemberID,
			}
			expectLost(t, flags, "it has the data of etcd member")
			flags.Record = config.MemberRecord{Directory: t.TempDir(), Volume: "volume", Started: true}
			etcdtest.Start(t, flags) // a new member, as after a restore or a recovery by the operator
		})
	}
}

func expectLost(t *testing.T, flags config.Member, words string) {
	t.Helper()
	member, err := etcd.Start(t.Context(), flags)
	if err == nil {
		err = errors.Join(errors.New("it has started"), member.Stop(t.Context()))
	}
	if !errors.Is(err, etcd.ErrLost) || !strings.Contains(err.Error(), words) {
		t.Errorf("got error %v, want ErrLost with %q", err, words)
	}
}
