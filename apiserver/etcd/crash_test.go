package etcd

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/go-logr/logr/funcr"
	"go.etcd.io/etcd/api/v3/etcdserverpb"

	"quorate.dev/apiserver/config"
	"quorate.dev/test/upstream"
)

// crashPoints are parts of etcd's messages while a learner receives and applies the leader's snapshot.
var crashPoints = []string{
	"receiving database snapshot", "received and saved database snapshot",
	"starts to restore snapshot", "applying snapshot", "opened snapshot backend", "restoring mvcc store",
	"closing old backend file", "removed old peers from network", "applied snapshot",
}

// Variables of the process of a learner.
const (
	learnerVariable = "QUORATE_TEST_LEARNER" // the flags as JSON
	crashVariable   = "QUORATE_TEST_CRASH"   // the part of a message at which the process is killed
)

// TestLearnerCrashes kills the process of a learner while it joins, at each of crashPoints. The learner catches up when
// it has started again.
func TestLearnerCrashes(t *testing.T) {
	upstream.NeedsTime(t)
	if text := os.Getenv(learnerVariable); text != "" {
		runLearner(t, text, os.Getenv(crashVariable))
		return
	}
	points := crashPoints
	if testing.Short() {
		points = points[:1]
	}
	flags, members := voters(t, 3)
	for i := range 300 { // more than a snapshot keeps in the log
		put(t, members[0], fmt.Sprintf("key-%d", i))
	}
	for i, point := range points {
		t.Run(point, func(t *testing.T) {
			learner := addLearner(t, flags[0], members[0], fmt.Sprintf("learner-%d", i))
			if err := learnerProcess(t, learner, point).Wait(); err == nil {
				t.Fatal("the learner has not crashed")
			}
			process := learnerProcess(t, learner, "")
			id := learnerID(t, members[0])
			eventually(t, "the learner is promoted", func() bool {
				_, err := members[0].Client().MemberPromote(t.Context(), id)
				return err == nil
			})
			_ = process.Process.Kill()
			_ = process.Wait()
			eventually(t, "the member is removed", func() bool {
				_, err := members[0].Client().MemberRemove(t.Context(), id)
				return err == nil
			})
		})
	}
}

// learnerProcess starts this test in a process that runs a learner.
func learnerProcess(t *testing.T, learner config.Member, crash string) *exec.Cmd {
	t.Helper()
	text, err := json.Marshal(learner)
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLearnerCrashes$")
	command.Env = append(os.Environ(), learnerVariable+"="+string(text), crashVariable+"="+crash)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	return command
}

// runLearner runs a learner until the process is killed: at the message that contains crash, or by the other process.
func runLearner(t *testing.T, text, crash string) {
	var learner config.Member
	if err := json.Unmarshal([]byte(text), &learner); err != nil {
		t.Fatal(err)
	}
	log := funcr.New(func(_, line string) {
		if crash != "" && strings.Contains(line, crash) {
			_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
			select {} // until the signal has been delivered
		}
	}, funcr.Options{Verbosity: 2})
	m, err := Start(t.Context(), learner, WithLogger(log))
	if err != nil {
		t.Fatal(err)
	}
	<-m.Err()
}

func learnerID(t *testing.T, m *Member) uint64 {
	t.Helper()
	list, err := m.Client().MemberList(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(list.Members, func(one *etcdserverpb.Member) bool { return one.IsLearner })
	if at < 0 {
		t.Fatalf("no learner in %v", list.Members)
	}
	return list.Members[at].ID
}
