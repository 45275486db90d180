package etcdctl

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"quorate.dev/apiserver/etcd"
)

// memberStatus is the status of one endpoint in JSON.
type memberStatus struct {
	Endpoint     string   `json:"endpoint"`
	MemberID     string   `json:"memberID"`
	Version      string   `json:"version"`
	Role         string   `json:"role"` // leader, follower, learner
	LeaderID     string   `json:"leaderID,omitempty"`
	SizeBytes    int64    `json:"sizeBytes"`
	InUseBytes   int64    `json:"inUseBytes"`
	QuotaBytes   int64    `json:"quotaBytes,omitempty"`
	RaftTerm     uint64   `json:"raftTerm"`
	RaftIndex    uint64   `json:"raftIndex"`
	AppliedIndex uint64   `json:"appliedIndex"`
	Problems     []string `json:"problems,omitempty"`
}

func (t *tool) statusCommand() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show role, version and size of members", Args: cobra.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error { return t.status(command.Context()) },
	}
}

// status prints the members that answer, and returns an error if one does not.
func (t *tool) status(ctx context.Context) error {
	ctx, cancel := t.limited(ctx, quickTimeout)
	defer cancel()
	client, err := t.connect(ctx)
	if err != nil {
		return err
	}
	defer client.Close()
	shown := []memberStatus{}
	var failures []error
	for _, endpoint := range client.Endpoints() {
		status, err := t.memberStatus(ctx, client, endpoint)
		if err != nil {
			failures = append(failures, err)
			continue
		}
		shown = append(shown, newMemberStatus(t.name(endpoint), status))
	}
	if len(shown) > 0 || t.format == "json" {
		failures = append(failures, t.print(shown, statusHeader, statusRows(shown)))
	}
	return errors.Join(failures...)
}

func newMemberStatus(endpoint string, s etcd.Status) memberStatus {
	m := memberStatus{
		Endpoint: endpoint, MemberID: memberID(s.MemberID), Version: s.Version, Role: "follower",
		SizeBytes: s.DatabaseSize, InUseBytes: s.DatabaseInUse, QuotaBytes: s.Quota,
		RaftTerm: s.RaftTerm, RaftIndex: s.RaftIndex, AppliedIndex: s.AppliedIndex, Problems: s.Problems,
	}
	switch {
	case s.Learner:
		m.Role = "learner"
	case s.MemberID == s.LeaderID:
		m.Role = "leader"
	}
	if s.LeaderID != 0 {
		m.LeaderID = memberID(s.LeaderID)
	}
	return m
}

var statusHeader = []string{"ENDPOINT", "ID", "VERSION", "ROLE", "SIZE", "IN USE", "QUOTA", "TERM", "INDEX", "PROBLEMS"}

func statusRows(members []memberStatus) [][]string {
	var rows [][]string
	for _, m := range members {
		quota := ""
		if m.QuotaBytes > 0 {
			quota = fmt.Sprintf("%s (%d%%)", mebibytes(m.QuotaBytes), m.SizeBytes*100/m.QuotaBytes)
		}
		rows = append(rows, []string{
			m.Endpoint, m.MemberID, m.Version, m.Role, mebibytes(m.SizeBytes), mebibytes(m.InUseBytes), orNone(quota),
			strconv.FormatUint(m.RaftTerm, 10), strconv.FormatUint(m.RaftIndex, 10), orNone(strings.Join(m.Problems, "; ")),
		})
	}
	return rows
}
