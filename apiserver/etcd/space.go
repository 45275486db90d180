package etcd

import (
	"context"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcdstorage "go.etcd.io/etcd/server/v3/storage"
)

const (
	// defragmentShare: a member defragments its database when it starts if 1/defragmentShare of the quota is unused space.
	defragmentShare = 4
	// disarmReserve: 1/disarmReserve of the quota must be free before the alarm NOSPACE is disarmed.
	disarmReserve = 20
	// alarmInterval is the interval at which alarms are read, because etcd has no notification of them.
	alarmInterval = time.Second
)

// Space is the use of a member's database.
type Space struct {
	Size  int64 // bytes of the file
	InUse int64 // bytes of Size that hold data
	Quota int64 // bytes; 0: unlimited
	// NoSpace is set while the alarm NOSPACE is raised, by this member or another.
	NoSpace bool
}

// Space returns the current use of the database. It is cheap.
func (m *Member) Space() Space {
	backend := m.server.Backend()
	return Space{
		Size: backend.Size(), InUse: backend.SizeInUse(), Quota: quotaOf(m.server.Cfg.QuotaBackendBytes),
		NoSpace: m.raised(func(types.ID) bool { return true }),
	}
}

// quotaOf returns the quota in bytes for the value of --etcd-quota-backend-bytes.
func quotaOf(flag int64) int64 {
	if flag == 0 {
		return etcdstorage.DefaultQuotaBytes
	}
	return max(flag, 0)
}

// raised reports whether a matching member has raised the alarm NOSPACE.
func (m *Member) raised(matches func(member types.ID) bool) bool {
	for _, alarm := range m.server.Alarms() {
		if alarm.GetAlarm() == etcdserverpb.AlarmType_NOSPACE && matches(types.ID(alarm.GetMemberID())) {
			return true
		}
	}
	return false
}

// watchSpace disarms this member's alarm NOSPACE when the database has space again, because it was defragmented or the
// quota was raised. etcd keeps the alarm, and rejects writes, until an administrator disarms it. While the alarm is
// raised watchSpace also commits, because the use after a compaction is updated only by the second commit that follows.
func (m *Member) watchSpace(ctx context.Context) {
	ticker := time.NewTicker(alarmInterval)
	defer ticker.Stop()
	raised := false
	for {
		before := raised
		raised = m.raised(func(member types.ID) bool { return member == m.server.MemberID() })
		space := m.Space()
		if space.NoSpace || space.Quota > 0 && space.InUse > space.Quota/2 {
			m.server.Backend().ForceCommit()
		}
		switch {
		case raised && space.Size < space.Quota-space.Quota/disarmReserve || raised && space.Quota == 0:
			m.disarm(ctx)
		case raised && !before:
			m.log.Error(nil, "The etcd database has reached its quota; only deletions succeed until it has space. "+
				"Delete objects, then run 'quorate etcd defrag'; or raise --etcd-quota-backend-bytes",
				"size", space.Size, "inUse", space.InUse, "quota", space.Quota)
		}
		select {
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

func (m *Member) disarm(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, m.server.Cfg.ReqTimeout())
	defer cancel()
	_, err := m.client.AlarmDisarm(ctx, &clientv3.AlarmMember{
		MemberID: uint64(m.server.MemberID()), Alarm: etcdserverpb.AlarmType_NOSPACE,
	})
	if err != nil {
		m.log.V(1).Info("Failed to disarm the alarm NOSPACE; retrying", "reason", err.Error())
		return
	}
	m.log.Info("The etcd database has space again; disarmed the alarm NOSPACE")
}
