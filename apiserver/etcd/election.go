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

// elect makes the only voter of a cluster stand for election as soon as that is safe, instead of after an election
// timeout. If safety cannot be established, raft's own timer elects.
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

// campaign delivers the message with which a leader asks for an immediate election.
func (m *Member) campaign(ctx context.Context) error {
	id := uint64(m.server.MemberID())
	message := &raftpb.Message{Type: raftpb.MsgTimeoutNow.Enum(), From: proto.Uint64(id), To: proto.Uint64(id)}
	return m.server.Process(ctx, message)
}

// campaignDecision is whether a member may stand for election.
type campaignDecision int

const (
	campaignNever campaignDecision = iota // its raft state cannot be read
	campaignLater
	campaignNow
)

// canCampaign decides whether the only voter may stand for election. Two indexes must have reached what is committed:
//
//   - etcd's applied index: the member list, which says that there is no other voter, is complete only then.
//   - raft's applied index: raft scans the entries between its applied and its committed index before it campaigns, and
//     panics if one of them has been compacted. etcd compacts raft's log by its own applied index, which runs ahead.
//
// Without a leader nothing more is committed, so that what holds once continues to hold until the election.
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

// raftState is the part of raft.Status that decides about elections.
type raftState struct {
	ID        string `json:"id"` // hexadecimal
	Committed uint64 `json:"commit"`
	Applied   uint64 `json:"applied"`
}

// readRaftState reads the state of the raft node of a member. etcd exports it in one place only: a variable of the
// process, which belongs to the member that started last. It is not ok for any other member.
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
