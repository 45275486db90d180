package etcd

import (
	"context"
	"encoding/json"
	"expvar"
	"strconv"
	"time"

	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// elect lets the only voter of a cluster campaign as soon as that is safe, instead of after an election timeout. If
// elect cannot determine whether it is safe, raft's election timer starts the campaign.
func (m *Member) elect(ctx context.Context) {
	ticker := time.NewTicker(pollInterval)
	defer ticker.Stop()
	for m.server.Lead() == 0 && m.onlyVoter() {
		switch m.canCampaign() {
		case campaignNever:
			return
		case campaignNow:
			if err := m.campaign(ctx); err != nil {
				return
			}
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// campaign sends MsgTimeoutNow to this member's raft node. A leader sends this message to make a follower campaign
// immediately.
func (m *Member) campaign(ctx context.Context) error {
	id := uint64(m.server.MemberID())
	message := &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: proto.Uint64(id), To: proto.Uint64(id)}
	return m.server.Process(ctx, message)
}

// campaignDecision is whether a member may campaign.
type campaignDecision int

const (
	campaignNever campaignDecision = iota // its raft state cannot be read
	campaignLater
	campaignNow
)

// canCampaign decides whether the only voter may campaign. Two indexes must have reached the committed index:
//
//   - etcd's applied index. Only then is the member list, which shows that there is no other voter, complete.
//   - raft's applied index. raft scans the entries from its applied to its committed index before it campaigns, and
//     panics if one has been compacted. etcd compacts raft's log up to its own applied index, which is ahead of raft's.
//
// Without a leader nothing is committed, so that both conditions hold until the election.
func (m *Member) canCampaign() campaignDecision {
	if committed := m.server.CommittedIndex(); committed == 0 || m.server.AppliedIndex() < committed {
		return campaignLater
	}
	raft, ok := readRaftState(uint64(m.server.MemberID()))
	switch {
	case !ok:
		return campaignNever
	case raft.Applied < raft.Committed:
		return campaignLater
	}
	return campaignNow
}

// raftState has the fields of raft.Status that canCampaign uses.
type raftState struct {
	ID        string `json:"id"` // hexadecimal
	Committed uint64 `json:"commit"`
	Applied   uint64 `json:"applied"`
}

// readRaftState returns the state of a member's raft node. etcd exports the state only as an expvar, and only for the
// member of the process that started last; ok is false for other members.
func readRaftState(member uint64) (state raftState, ok bool) {
	exported := expvar.Get("raft.status")
	if exported == nil {
		return raftState{}, false
	}
	if err := json.Unmarshal([]byte(exported.String()), &state); err != nil {
		return raftState{}, false
	}
	return state, state.ID == strconv.FormatUint(member, 16)
}
