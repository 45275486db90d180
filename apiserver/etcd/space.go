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
	// defragmentShare is the share of the quota, 1/4, that a member gives back when it starts, if that much of its
	// database holds no data.
	defragmentShare = 4
	// disarmReserve is the share of the quota, 1/20, that must be free before the alarm NOSPACE is disarmed.
	disarmReserve = 20
	// alarmInterval is the time between looks at the alarms, of which etcd does not notify.
	alarmInterval = time.Second
)

// Space is how full a member's database is.
type Space struct {
	Size  int64 // bytes of the file
	InUse int64 // bytes of them that hold data
	Quota int64 // bytes; 0: unlimited
	// NoSpace is set while the alarm NOSPACE is raised, by this member or another.
	NoSpace bool
}

// Space measures the database. It is cheap.
func (m *Member) Space() Space {
	backend := m.server.Backend()
	return Space{
		Size: backend.Size(), InUse: backend.SizeInUse(), Quota: quotaOf(m.server.Cfg.QuotaBackendBytes),
		NoSpace: len(m.alarms(func(types.ID) bool { return true })) > 0,
	}
}

// quotaOf translates etcd's flag.
func quotaOf(flag int64) int64 {
	if flag == 0 {
		return etcdstorage.DefaultQuotaBytes
	}
	return max(flag, 0)
}

// alarms are the members that match and have raised the alarm NOSPACE.
func (m *Member) alarms(matches func(member types.ID) bool) []types.ID {
	var raised []types.ID
	for _, alarm := range m.server.Alarms() {
		if id := types.ID(alarm.GetMemberID()); alarm.GetAlarm() == etcdserverpb.AlarmType_NOSPACE && matches(id) {
			raised = append(raised, id)
		}
	}
	return raised
}

// disarms reports whether this member disarms the alarm of a member: its own, and those of members that are not in
// the cluster any more. etcd keeps the latter when it removes a member, and when a snapshot is restored.
func (m *Member) disarms(member types.ID) bool {
	return member == m.server.MemberID() || m.server.Cluster().Member(member) == nil
}

// watchSpace keeps the measurement right when space is short, and disarms the alarm NOSPACE once this member has
// room again, because the database was defragmented or the quota raised. etcd itself keeps the alarm, and with it the
// cluster read-only, until an administrator disarms it. What compaction frees is measured with the commit after the
// next only, which does not come by itself while all writes are refused.
func (m *Member) watchSpace(ctx context.Context) {
	ticker := time.NewTicker(alarmInterval)
	defer ticker.Stop()
	raised := false
	for {
		before, alarms := raised, m.alarms(m.disarms)
		raised = len(alarms) > 0
		space := m.Space()
		if space.NoSpace || space.Quota > 0 && space.InUse > space.Quota/2 {
			m.server.Backend().ForceCommit()
		}
		switch {
		case raised && space.Size < space.Quota-space.Quota/disarmReserve || raised && space.Quota == 0:
			m.disarm(ctx, alarms)
		case raised && !before:
			m.log.Error(nil, "The etcd database has reached its quota: only deletions succeed until there is room. "+
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

func (m *Member) disarm(ctx context.Context, members []types.ID) {
	ctx, cancel := context.WithTimeout(ctx, m.server.Cfg.ReqTimeout())
	defer cancel()
	for _, member := range members {
		_, err := m.client.AlarmDisarm(ctx, &clientv3.AlarmMember{
			MemberID: uint64(member), Alarm: etcdserverpb.AlarmType_NOSPACE,
		})
		if err != nil {
			m.log.V(1).Info("Disarming the alarm NOSPACE failed; trying again", "reason", err.Error())
			return
		}
	}
	m.log.Info("The etcd database has room again: disarmed the alarm NOSPACE")
}
