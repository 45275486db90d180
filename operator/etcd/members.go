package etcd

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/emptypb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"quorate.dev/apiserver/config"
	"quorate.dev/operator/parallel"
	"quorate.dev/panics"
)

// Member is an entry of the member list together with the status that the member itself reports. Healthy and the fields
// after it are zero if the member does not respond.
type Member struct {
	ID      uint64
	Name    string // name of the replica, from the peer URL; etcd's own name is empty until the member has started
	PeerURL string
	Learner bool
	Started bool // the member has published its client URLs, which it does when it first starts
	Healthy bool // the member responds and knows a leader
	Leader  bool
	Applied uint64 // index of the last applied raft entry
	Term    uint64 // raft term
	// Revision is the revision of the last applied change.
	Revision int64
	Version  string
	DBSize   int64 // size of the database file in bytes
	InUse    int64 // bytes of DBSize that hold data
	Quota    int64 // maximum of DBSize in bytes
	NoSpace  bool  // the alarm NOSPACE of any member is raised
	Alarms   []string
	// Report is Quorate's own report of the member, which is not part of etcd's status. It is the zero value for learners
	// and for members of releases without reports.
	Report config.MemberReport
}

// Members returns the members with their status, or an error that wraps ErrUnreachable. It reads the member list from
// the last known leader, and if that fails from all members at the same time. It requests the status only of members in
// the list, because etcd panics on a status request to a member that has just been removed.
func (c *Client) Members(ctx context.Context) ([]Member, error) {
	ctx, cancel := context.WithTimeout(ctx, 2*readTimeout)
	defer cancel()
	entries, err := c.list(ctx)
	if err != nil {
		return nil, err
	}
	c.leader, c.followers = nil, nil
	members := make([]Member, len(entries))
	parallel.Each(len(entries), func(i int) {
		members[i] = memberOf(entries[i])
		if client := c.clientOf(members[i].Name); client != nil {
			members[i].readStatus(ctx, client)
		}
	})
	for _, m := range members {
		if m.Leader {
			c.leader = c.clientOf(m.Name)
		} else if m.Healthy && !m.Learner {
			c.followers = append(c.followers, c.clientOf(m.Name))
		}
	}
	return members, nil
}

// list returns the linearizable member list from the leader, or else from the first member that responds.
func (c *Client) list(ctx context.Context) ([]*etcdserverpb.Member, error) {
	if c.leader != nil {
		leaderCtx, cancel := context.WithTimeout(ctx, readTimeout)
		response, err := c.leader.MemberList(leaderCtx)
		cancel()
		if err == nil {
			return response.Members, nil
		}
		c.leader = nil
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		endpoint int
		response *clientv3.MemberListResponse
		err      error
	}
	results := make(chan result, len(c.endpoints))
	for i, e := range c.endpoints {
		go func() {
			r := result{endpoint: i}
			r.err = panics.Catch(func() (err error) {
				r.response, err = e.client.MemberList(ctx)
				return err
			})
			results <- r
		}()
	}
	// The errors become part of a status message, which must not change with the order of the responses.
	errs := make([]error, len(c.endpoints))
	for range c.endpoints {
		r := <-results
		if r.err == nil {
			return r.response.Members, nil
		}
		errs[r.endpoint] = fmt.Errorf("%s: %w", c.endpoints[r.endpoint].name, plain(r.err))
	}
	return nil, errors.Join(append([]error{ErrUnreachable}, errs...)...)
}

// plain returns the text of an error without gRPC's notation ("rpc error: code = ..."), because it becomes part of a
// status message.
func plain(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || status.Code(err) == codes.DeadlineExceeded {
		return errors.New("no response")
	}
	if s, ok := status.FromError(err); ok {
		return errors.New(s.Message())
	}
	return err
}

// memberOf returns an entry of the member list as a Member, without a status.
func memberOf(entry *etcdserverpb.Member) Member {
	m := Member{ID: entry.ID, Learner: entry.IsLearner, Started: len(entry.ClientURLs) > 0}
	if len(entry.PeerURLs) > 0 {
		m.PeerURL = entry.PeerURLs[0]
		m.Name = nameOf(m.PeerURL)
	}
	return m
}

// readStatus sets the fields that the member itself reports. They stay zero if the member does not respond, or if a
// member with another ID responds at its address.
func (m *Member) readStatus(ctx context.Context, client *clientv3.Client) {
	status, err := client.Status(ctx, client.Endpoints()[0])
	if err != nil || status.Header.MemberId != m.ID {
		return
	}
	m.Healthy, m.Leader = status.Leader != 0, status.Leader == m.ID
	m.Applied, m.Version, m.DBSize, m.Alarms = status.RaftAppliedIndex, status.Version, status.DbSize, status.Errors
	m.Term, m.Revision = status.RaftTerm, status.Header.Revision
	m.InUse, m.Quota = status.DbSizeInUse, status.DbSizeQuota
	m.NoSpace = slices.ContainsFunc(status.Errors, func(problem string) bool {
		return strings.Contains(problem, "NOSPACE")
	})
	m.readReport(ctx, client)
}

// readReport sets Report, and leaves it zero if the member does not implement the method.
func (m *Member) readReport(ctx context.Context, client *clientv3.Client) {
	var text wrapperspb.StringValue
	if err := client.ActiveConnection().Invoke(ctx, config.MemberReportMethod, &emptypb.Empty{}, &text); err != nil {
		return
	}
	if report, err := config.ParseMemberReport(text.GetValue()); err == nil {
		m.Report = report
	}
}

// Survivor is the state of a member's own data. A member reports it also without a quorum.
type Survivor struct {
	Name      string
	Reachable bool
	Revision  int64  // revision of the last applied change
	Term      uint64 // raft term
	Index     uint64 // index of the last entry in the raft log
}

// Survivors returns the state of the members with the given names, in the same order. It works without a quorum: each
// member reports its own data.
func (c *Client) Survivors(ctx context.Context, names []string) []Survivor {
	ctx, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	survivors := make([]Survivor, len(names))
	parallel.Each(len(names), func(i int) {
		survivors[i].Name = names[i]
		if client := c.clientOf(names[i]); client != nil {
			survivors[i].read(ctx, client)
		}
	})
	return survivors
}

// read sets the fields of the survivor if the member responds.
func (s *Survivor) read(ctx context.Context, client *clientv3.Client) {
	status, err := client.Status(ctx, client.Endpoints()[0])
	if err != nil {
		return
	}
	s.Reachable, s.Revision, s.Term, s.Index = true, status.Header.Revision, status.RaftTerm, status.RaftIndex
}

// nameOf returns the first label of the host in a peer URL, or "".
func nameOf(peerURL string) string {
	parsed, err := url.Parse(peerURL)
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(parsed.Hostname(), ".")
	return name
}

// AddLearner adds a learner to the member list. The learner starts later, with data from the leader.
//
// Before a member proposes a learner, it checks whether it has been connected to the voters for some seconds, and
// otherwise rejects the request with ErrUnhealthy. This check can be wrong until the connection ends: if a message that
// was sent during an interruption of the network fails after the streams are connected again, etcd marks the peer as
// inactive until the next connection. Therefore, if the leader returns ErrUnhealthy, AddLearner sends the request to
// the followers, which check their own connections. A learner does not count for the quorum; other changes depend on
// the leader's check.
func (c *Client) AddLearner(ctx context.Context, peerURL string) error {
	return c.change(ctx, "add learner "+peerURL, func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberAddAsLearner(ctx, []string{peerURL})
		for _, follower := range c.followers {
			if !errors.Is(err, rpctypes.ErrUnhealthy) {
				break
			}
			_, err = follower.MemberAddAsLearner(ctx, []string{peerURL})
		}
		return err
	})
}

// Promote makes a learner a voter. etcd rejects it while the learner has not caught up.
func (c *Client) Promote(ctx context.Context, id uint64) error {
	return c.change(ctx, fmt.Sprintf("promote member %x", id), func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberPromote(ctx, id)
		return err
	})
}

// Remove removes a member.
func (c *Client) Remove(ctx context.Context, id uint64) error {
	return c.change(ctx, fmt.Sprintf("remove member %x", id), func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MemberRemove(ctx, id)
		return err
	})
}

// MoveLeader transfers the leadership to another voter.
func (c *Client) MoveLeader(ctx context.Context, to uint64) error {
	return c.change(ctx, fmt.Sprintf("move leadership to member %x",
		to), func(ctx context.Context, client *clientv3.Client) error {
		_, err := client.MoveLeader(ctx, to)
		return err
	})
}

// change sends a request to the leader that the last call of Members has found: only the leader accepts MoveLeader, and
// other requests need not be forwarded. It never retries. If the response is lost, the next call of Members shows
// whether the change was executed.
func (c *Client) change(
	ctx context.Context, operation string, request func(context.Context, *clientv3.Client) error,
) error {
	if c.leader == nil {
		return fmt.Errorf("%s: the leader is unreachable", operation)
	}
	ctx, cancel := context.WithTimeout(ctx, changeTimeout)
	defer cancel()
	if err := request(ctx, c.leader); err != nil {
		return fmt.Errorf("%s: %w", operation, err)
	}
	return nil
}
