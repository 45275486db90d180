package etcd

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"quorate.dev/apiserver/config"
	"quorate.dev/test/upstream"
)

// reportOf requests the report of a member as the operator does.
func reportOf(t *testing.T, flags config.Member) config.MemberReport {
	t.Helper()
	local, err := LocalConfig(t.Context(), flags.DataDirectory)
	if err != nil {
		t.Fatal(err)
	}
	client, err := clientv3.New(local)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var text wrapperspb.StringValue
	if err := client.ActiveConnection().Invoke(
		t.Context(), config.MemberReportMethod, &emptypb.Empty{}, &text,
	); err != nil {
		t.Fatal(err)
	}
	report, err := config.ParseMemberReport(text.GetValue())
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// TestReport: a member reports that its log was compared with the leader's, and not while another leader has not been
// compared.
func TestReport(t *testing.T) {
	t.Parallel()
	flags, members := voters(t, 3)
	for i := range members {
		eventually(t, "the log is compared", func() bool { return reportOf(t, flags[i]).Compared })
	}
	if runs := []string{reportOf(t, flags[0]).Run, reportOf(t, flags[1]).Run}; runs[0] == "" || runs[0] == runs[1] {
		t.Errorf("runs %v, want two different ones", runs)
	}
	leader := leaderOf(t, members)
	for i, m := range members {
		if m == leader {
			continue
		}
		changed := m.LeaderChanged()
		if err := leaderOf(t, members).MoveLeadership(t.Context()); err != nil {
			t.Fatal(err)
		}
		await(t, "another leader", changed)
		eventually(t, "the log is compared again", func() bool { return reportOf(t, flags[i]).Compared })
		break
	}
	for _, m := range members {
		if m != leader {
			stop(t, m)
		}
	}
	for i, m := range members {
		if m == leader {
			if report := reportOf(t, flags[i]); report.Difference != "" {
				t.Errorf("got %+v without other members", report)
			}
		}
	}
}

// TestDifferenceWithoutMajority changes values in the databases of members so that no data has a majority. No member
// stops, and each reports the difference.
func TestDifferenceWithoutMajority(t *testing.T) {
	upstream.NeedsTime(t)
	for _, c := range []struct {
		changed, stopped int // number of members
		want             string
	}{
		{changed: 2, want: "the data of m0 differs from that of m1, and from that of m2; no data has a majority"},
		{changed: 1, stopped: 1, want: "the data of m0 differs from that of m1; m2 did not respond; no data has a majority"},
	} {
		t.Run(fmt.Sprintf("%d of %d", c.changed, 3-c.stopped), func(t *testing.T) {
			t.Parallel()
			flags, members := voters(t, 3)
			for i := range 10 {
				put(t, members[0], fmt.Sprintf("key-%d", i))
			}
			for _, m := range members {
				awaitKey(t, m, "key-9")
			}
			for i, m := range members {
				stop(t, m)
				if i < c.changed {
					flipValue(t, flags[i].DataDirectory, fmt.Sprintf("key-%d", i+3))
				}
			}
			running := 3 - c.stopped
			for i := range running {
				members[i] = start(t, flags[i], func(o *options) {
					o.hashDelay, o.hashRetry = time.Millisecond, 100*time.Millisecond
				})
			}
			for i := range running {
				eventually(t, "the difference is reported", func() bool {
					return strings.Contains(reportOf(t, flags[i]).Difference, c.want)
				})
			}
			put(t, members[0], "the members go on")
		})
	}
}

// TestComparedAfterReplacement: a member that reports a difference compares its data again when a voter has left, for
// example because the operator replaces it.
func TestComparedAfterReplacement(t *testing.T) {
	upstream.NeedsTime(t)
	t.Parallel()
	flags, members := voters(t, 3)
	difference := "a difference"
	members[0].report.difference.Store(&difference)
	due := make(chan struct{})
	go func() {
		if members[0].awaitDataComparison(t.Context(), time.Hour) {
			close(due)
		}
	}()
	if report := reportOf(t, flags[0]); report.Difference != difference {
		t.Errorf("the report has the difference %q", report.Difference)
	}
	eventually(t, "a voter is removed", func() bool {
		_, err := members[0].client.MemberRemove(t.Context(), uint64(members[2].server.MemberID()))
		return err == nil
	})
	await(t, "a comparison", due)
}

func TestDescribeHashes(t *testing.T) {
	names := map[types.ID]string{1: "m0", 2: "m1", 3: "m2", 4: "m3", 5: "m4"}
	got := describeHashes(deviates, 7, map[types.ID]string{1: "a", 2: "b", 4: "a", 5: "a"}, names)
	want := "at revision 7, the data of m0 and m3 and m4 differs from that of m1; m2 did not respond; a member that " +
		"differs from the majority stops when all voters respond, and is replaced"
	if got != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
