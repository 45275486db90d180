package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"quorate.dev/apiserver/config"
	"quorate.dev/test/upstream"
)

// voters starts members that bootstrap a cluster, keep few raft entries, and have no record outside their volumes.
func voters(t *testing.T, size int) (flags []config.Member, members []*Member) {
	t.Helper()
	peers := newAuthority(t, "peers")
	var cluster []string
	for i := range size {
		flags = append(flags, secured(t, fmt.Sprintf("m%d", i), peers))
		flags[i].HeartbeatInterval, flags[i].ElectionTimeout, flags[i].SnapshotCount = 50*time.Millisecond, time.Second, 100
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

// loss is a sequence that loses an acknowledged write without the notice of raft. The voters that are neither in
// holders nor the voter earlier are stopped. The other voters acknowledge the write, and stop. The volume of the voter
// earlier is replaced by an earlier copy. That voter and the stopped voters then start, and form a quorum without the
// write.
type loss struct {
	size     int
	earlier  int   // its volume is put back
	holders  []int // have acknowledged the write
	snapshot bool  // the new quorum compacts its log, so that the holders get a snapshot
	learner  bool  // a learner holds the write, too
}

// losses returns every earlier member and holder of three voters, and the first, the middle and the last one of five.
// Without QUORATE_RESTARTS=full, each position of three occurs once. With it (make restarts), there are all, with a
// snapshot and with a learner.
func losses() []loss {
	all := []loss{
		{size: 3, earlier: 0, holders: []int{2}},
		{size: 3, earlier: 1, holders: []int{0}, learner: true},
		{size: 3, earlier: 2, holders: []int{1}, snapshot: true},
		{size: 5, earlier: 4, holders: []int{0, 2}},
	}
	if os.Getenv("QUORATE_RESTARTS") != "full" {
		return all
	}
	for earlier := range 3 {
		for _, holder := range []int{(earlier + 1) % 3, (earlier + 2) % 3} {
			for _, form := range []loss{{}, {snapshot: true}, {learner: true}} {
				form.size, form.earlier, form.holders = 3, earlier, []int{holder}
				all = append(all, form)
			}
		}
	}
	for _, earlier := range []int{0, 2} {
		all = append(all, loss{size: 5, earlier: earlier, holders: []int{1, 3}}, loss{
			size: 5, earlier: earlier, holders: []int{1, 4}, learner: true,
		})
	}
	return all
}

func TestLostWritesAreNoticed(t *testing.T) {
	upstream.NeedsTime(t)
	for _, l := range losses() {
		t.Run(fmt.Sprintf("%+v", l), func(t *testing.T) {
			t.Parallel()
			l.run(t)
		})
	}
}

func (l loss) run(t *testing.T) {
	flags, members := voters(t, l.size)
	var learner *Member
	if l.learner {
		flags = append(flags, addLearner(t, flags[0], members[0], "learner"))
		learner = start(t, flags[l.size])
	}
	stop(t, members[l.earlier])
	copy := copied(t, flags[l.earlier].DataDirectory)
	members[l.earlier] = start(t, flags[l.earlier])
	await(t, "ready", members[l.earlier].Ready())
	others := make([]int, 0, l.size)
	for i, m := range members {
		if i != l.earlier && !slices.Contains(l.holders, i) {
			others = append(others, i)
			stop(t, m)
		}
	}
	put(t, members[l.earlier], "acknowledged")
	for _, i := range append(slices.Clone(l.holders), l.earlier) {
		awaitKey(t, members[i], "acknowledged")
		stop(t, members[i])
	}
	if l.learner {
		awaitKey(t, learner, "acknowledged")
		stop(t, learner)
	}
	replace(t, flags[l.earlier].DataDirectory, copy)
	for _, i := range append(slices.Clone(others), l.earlier) {
		members[i] = start(t, flags[i])
	}
	await(t, "a quorum without the write", members[l.earlier].Ready())
	if l.snapshot {
		write(t, members[l.earlier].Client())
	}
	put(t, members[l.earlier], "later")
	for _, i := range l.holders {
		expectLostWrites(t, flags[i])
		expectKept(t, flags[i])
	}
	if l.learner {
		expectLostWrites(t, flags[l.size])
	}
	put(t, members[l.earlier], "the others go on")
}

func put(t *testing.T, m *Member, key string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	eventually(t, "a write of "+key, func() bool {
		_, err := m.Client().Put(ctx, key, "value")
		return err == nil
	})
}

// awaitKey waits until a member has applied the creation of a key.
func awaitKey(t *testing.T, m *Member, key string) {
	t.Helper()
	eventually(t, key+" is applied", func() bool {
		got, err := m.Client().Get(t.Context(), key, clientv3.WithSerializable())
		return err == nil && len(got.Kvs) == 1
	})
}

// expectLostWrites checks that a member stops and does not start again.
func expectLostWrites(t *testing.T, flags config.Member) {
	t.Helper()
	m, err := Start(t.Context(), flags)
	if err != nil {
		t.Fatal(err)
	}
	select {
	case err = <-m.Err():
	case <-m.Ready():
		err = errors.New("the member is ready")
	case <-time.After(30 * time.Second):
		err = errors.New("timed out")
	}
	stop(t, m)
	var coded interface{ ExitCode() int }
	if !errors.Is(err, ErrWritesLost) || !errors.As(err, &coded) || coded.ExitCode() != config.LostWritesExitCode {
		t.Fatalf("%s: got error %v, want ErrWritesLost with its exit code", flags.Name, err)
	}
	if _, again := Start(t.Context(), flags); !errors.Is(again, ErrWritesLost) ||
		!strings.Contains(again.Error(), err.Error()) {
		t.Errorf("%s: the next start: got error %v, want %v", flags.Name, again, err)
	}
}

// expectKept checks that the data of a voter that has stopped has the acknowledged write.
func expectKept(t *testing.T, flags config.Member) {
	t.Helper()
	flags.ListenPeerURLs, flags.AdvertisePeerURLs, flags.InitialCluster = nil, nil, ""
	survivor, err := Start(t.Context(), flags, WithoutFormerMembers())
	if err != nil {
		t.Fatal(err)
	}
	defer stop(t, survivor)
	await(t, "ready", survivor.Ready())
	awaitKey(t, survivor, "acknowledged")
}

// TestMembersAgreeAboutTerms moves the leadership and restarts members while they write. All of them know the same
// terms, also of entries that their logs do not contain any more, and no member stops.
func TestMembersAgreeAboutTerms(t *testing.T) {
	upstream.NeedsTime(t)
	t.Parallel()
	flags, members := voters(t, 3)
	for round := range 6 {
		write(t, members[round%3].Client())
		if round%2 == 1 {
			stop(t, members[round%3])
			write(t, members[(round+1)%3].Client())
			members[round%3] = start(t, flags[round%3])
			await(t, "ready", members[round%3].Ready())
			continue
		}
		if err := leaderOf(t, members).MoveLeadership(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	put(t, members[0], "last")
	var known []termHistory
	for _, m := range members {
		awaitKey(t, m, "last")
		eventually(t, "a comparison", func() bool { return m.compare(t.Context()) == nil })
		committed, terms, err := m.ledger.committed()
		if err != nil || committed == 0 || terms.Starts[0].Index > 10 {
			t.Errorf("the terms of %s up to %d: %+v, %v", m.server.Cfg.Name, committed, terms, err)
		}
		known = append(known, terms.upTo(committed))
	}
	for _, terms := range known[1:] {
		if last := min(terms.Last, known[0].Last); terms.common(known[0]) != last || last < 300 {
			t.Errorf("%+v and %+v differ", terms, known[0])
		}
	}
}

// TestLogBehindDatabase gives a member a database with entries that its log does not have: the log ends with an entry
// of a former leader that was never committed, and the other members have agreed on another entry with the same index.
// This is the state after a crash of a member that applied entries while its disk delayed the write of its log. After a
// restart, neither the database nor the ledger makes the member count its uncommitted entry as acknowledged.
func TestLogBehindDatabase(t *testing.T) {
	upstream.NeedsTime(t)
	for _, withLedger := range []bool{false, true} {
		t.Run(fmt.Sprintf("ledger %v", withLedger), func(t *testing.T) {
			t.Parallel()
			flags, members := voters(t, 3)
			put(t, members[0], "earlier")
			former := slices.Index(members, leaderOf(t, members))
			others := []int{(former + 1) % 3, (former + 2) % 3}
			for _, i := range others {
				awaitKey(t, members[i], "earlier")
				stop(t, members[i])
			}
			log := logOf(flags[former].DataDirectory)
			end := logEndOf(t, log)
			go func() { _, _ = members[former].Client().Put(t.Context(), "uncommitted", "value") }()
			eventually(t, "the former leader writes an entry", func() bool { return logEndOf(t, log).Index > end.Index })
			stop(t, members[former])
			behind := copied(t, log)
			for _, i := range others {
				members[i] = start(t, flags[i])
			}
			put(t, members[others[0]], "acknowledged")
			members[former] = start(t, flags[former])
			awaitKey(t, members[former], "acknowledged")
			await(t, "ready", members[former].Ready())
			eventually(t, "the ledger has the term", func() bool {
				return members[former].ledger.update() == nil && members[former].ledger.saved.Terms.lastTerm() > end.Term
			})
			for _, m := range members { // so that the next leader does not know the entries of the member
				stop(t, m)
			}
			replace(t, log, behind)
			if !withLedger {
				remove(t, filepath.Join(flags[former].DataDirectory, ledgerFile))
			}
			for _, i := range others {
				members[i] = start(t, flags[i])
			}
			put(t, members[others[0]], "without the member")
			members[former] = start(t, flags[former])
			select {
			case err := <-members[former].Err():
				t.Fatal(err)
			case <-members[former].Ready():
			}
			awaitKey(t, members[former], "acknowledged")
			put(t, members[former], "later")
		})
	}
}

func logEndOf(t *testing.T, log string) logEnd {
	t.Helper()
	end, _, err := readLogEnd(log)
	if err != nil {
		t.Fatal(err)
	}
	return end
}

// TestSnapshotsAreCompared: a snapshot is accepted only if its sender responds and has all entries, or is of a release
// that does not report its terms. A response of another member, such as a former one with the same name, decides
// nothing.
func TestSnapshotsAreCompared(t *testing.T) {
	t.Parallel()
	_, members := voters(t, 3)
	leader := leaderOf(t, members)
	var follower *Member
	for _, m := range members {
		if m != leader {
			follower = m
		}
	}
	other := func(report string) string {
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if report == "" {
				http.NotFound(w, r)
				return
			}
			_, _ = w.Write([]byte(report))
		}))
		t.Cleanup(server.Close)
		return server.URL
	}
	unreachable := httptest.NewServer(http.NotFoundHandler())
	unreachable.Close()
	cluster := leader.server.Cluster().ID().String()
	for _, c := range []struct {
		name, sender, url string
		want              int
	}{
		{"the leader", leader.server.MemberID().String(), leader.peerURLs(leader.server.MemberID())[0], http.StatusOK},
		{"a follower", follower.server.MemberID().String(), "", http.StatusServiceUnavailable},
		{"no sender", "", "", http.StatusServiceUnavailable},
		{"an unreachable sender", "abc", unreachable.URL, http.StatusServiceUnavailable},
		{"an earlier release", "abc", other(""), http.StatusOK},
		{"no report", "abc", other("{"), http.StatusServiceUnavailable},
		{
			"another incarnation", "abc", other(`{"cluster":"` + cluster + `","member":"abd","applied":1}`),
			http.StatusServiceUnavailable,
		},
		{"another cluster", "abc", other(`{"cluster":"1","member":"abc","applied":1}`), http.StatusServiceUnavailable},
	} {
		request := httptest.NewRequest(http.MethodPost, "/raft/snapshot", nil)
		request.Header.Set("X-Server-From", c.sender)
		request.Header.Set("X-PeerURLs", c.url)
		response := httptest.NewRecorder()
		follower.guardSnapshots(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(response, request)
		if response.Code != c.want {
			t.Errorf("a snapshot of %s: %d %s, want %d", c.name, response.Code, response.Body, c.want)
		}
	}
	if err := readRefusal(follower.directory); err != nil {
		t.Errorf("the member refuses: %v", err)
	}
}
