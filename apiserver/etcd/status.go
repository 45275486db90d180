package etcd

import (
	"context"
	"fmt"

	clientv3 "go.etcd.io/etcd/client/v3"
)

// Status is the status of a member.
type Status struct {
	MemberID      uint64
	LeaderID      uint64 // 0: unknown
	RaftTerm      uint64
	RaftIndex     uint64 // committed
	AppliedIndex  uint64
	DatabaseSize  int64 // bytes on disk
	DatabaseInUse int64 // bytes of DatabaseSize that hold data
	Quota         int64 // bytes
	Learner       bool
	Version       string
	Problems      []string // alarms, no leader
}

// MemberStatus returns the status of the member at an endpoint of a client. In-process clients have the endpoint "".
func MemberStatus(ctx context.Context, client *clientv3.Client, endpoint string) (Status, error) {
	response, err := client.Status(ctx, endpoint)
	if err != nil {
		return Status{}, fmt.Errorf("get the status of etcd: %w", err)
	}
	return Status{
		MemberID: response.Header.MemberId, LeaderID: response.Leader,
		RaftTerm: response.RaftTerm, RaftIndex: response.RaftIndex, AppliedIndex: response.RaftAppliedIndex,
		DatabaseSize: response.DbSize, DatabaseInUse: response.DbSizeInUse, Quota: response.DbSizeQuota,
		Learner: response.IsLearner, Version: response.Version, Problems: response.Errors,
	}, nil
}

// Status returns the status of this member. A member that does not know its role yet counts as a learner.
func (m *Member) Status(ctx context.Context) (Status, error) {
	status, err := MemberStatus(ctx, m.client, "")
	status.Learner = !m.voter() || status.AppliedIndex == 0
	return status, err
}

// Peer is an entry of a cluster's member list.
type Peer struct {
	ID         uint64
	Name       string // empty: the member has never started
	PeerURLs   []string
	ClientURLs []string
	Learner    bool
}

// MemberList returns the members of a cluster. It is linearizable.
func MemberList(ctx context.Context, client *clientv3.Client) ([]Peer, error) {
	response, err := client.MemberList(ctx)
	if err != nil {
		return nil, fmt.Errorf("list the members of etcd: %w", err)
	}
	peers := make([]Peer, len(response.Members))
	for i, member := range response.Members {
		peers[i] = Peer{
			ID: member.ID, Name: member.Name, PeerURLs: member.PeerURLs,
			ClientURLs: member.ClientURLs, Learner: member.IsLearner,
		}
	}
	return peers, nil
}

// MemberList returns the members of this member's cluster. It is linearizable.
func (m *Member) MemberList(ctx context.Context) ([]Peer, error) { return MemberList(ctx, m.client) }
