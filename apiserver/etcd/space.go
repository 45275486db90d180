package etcd

import (
	"context"
	"os"
	"time"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/client/pkg/v3/types"
	clientv3 "go.etcd.io/etcd/client/v3"
	etcdstorage "go.etcd.io/etcd/server/v3/storage"
)

const (
	// defragmentShare: a member defragments its database when it starts if 1/defragmentShare of the quota is unused
	// space.
	defragmentShare = 4
	// disarmReserve: 1/disarmReserve of the quota must be free before the alarm NOSPACE is disarmed.
	disarmReserve = 20
	// alarmInterval is the interval at which alarms are read, because etcd has no notification of them.
	alarmInterval = time.Second
)

// Space describes the used and the free space of a member's database and file system.
type Space struct {
	Size  int64 // bytes of the file
	InUse int64 // bytes of Size that hold data
	Quota int64 // bytes; 0: unlimited
	// NoSpace is set while the alarm NOSPACE is raised, by this member or another.
	NoSpace bool
	// DiskFree is the number of bytes that are free in the file system of the data directory. DiskReserve is the number
	// of these bytes that must remain free for etcd's log. Both are 0 if they are unknown.
	DiskFree    int64
	DiskReserve int64
}

const (
	// diskReserve is the number of bytes to keep free for etcd's log. etcd preallocates log segments of 64 MiB, keeps
	// several of them, and exits if it cannot write. On small file systems, 1/diskReserveShare of the size is kept free
	// instead.
	diskReserve      = 256 << 20
	diskReserveShare = 5
)

// disk is the state of the file system of the data directory, in bytes.
type disk struct{ size, free int64 }

// measureDisk updates the values about the file system that Space returns.
func (m *Member) measureDisk() {
	d, err := diskOf(m.directory)
	if err != nil {
		return
	}
	before := m.disk.Swap(&d)
	full := d.free < d.reserve()
	if full && (before == nil || before.free >= before.reserve()) {
		m.log.Error(nil,
			"The file system of the etcd data directory is nearly full; objects cannot be created until it has space",
			"directory", m.directory, "free", d.free, "reserve", d.reserve())
	}
}

func (d disk) reserve() int64 { return min(diskReserve, d.size/diskReserveShare) }

// databaseReserve is the disk space in bytes that is allocated beyond the end of the database file. bbolt enlarges the
// file in steps of this size.
const databaseReserve = 16 << 20

// allocateDatabase allocates the blocks of the database file, and the next databaseReserve bytes beyond its end.
// Otherwise, the blocks would be allocated when etcd writes a page, and etcd would exit if other files had filled the
// file system.
func (m *Member) allocateDatabase() {
	path := databaseOf(m.directory)
	info, err := os.Stat(path)
	if err != nil || m.allocated != nil && os.SameFile(info, m.allocated) && info.Size() == m.allocated.Size() {
		return
	}
	if err := allocate(path, info.Size()+databaseReserve); err != nil {
		m.log.V(1).Info("Failed to allocate disk space for the etcd database; retrying", "reason", err.Error())
		return
	}
	m.allocated = info
}

// allocate allocates blocks for the first bytes of a file without changing its size. It does nothing on file systems
// that do not support this.
func allocate(path string, bytes int64) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	return fileutil.Preallocate(file, bytes, false)
}

// Space returns the current use of the database. It is cheap.
func (m *Member) Space() Space {
	backend := m.server.Backend()
	space := Space{
		Size: backend.Size(), InUse: backend.SizeInUse(), Quota: quotaOf(m.server.Cfg.QuotaBackendBytes),
		NoSpace: len(m.alarms(func(types.ID) bool { return true })) > 0,
	}
	if d := m.disk.Load(); d != nil {
		space.DiskFree, space.DiskReserve = d.free, d.reserve()
	}
	return space
}

// quotaOf returns the quota in bytes for the value of --etcd-quota-backend-bytes.
func quotaOf(flag int64) int64 {
	if flag == 0 {
		return etcdstorage.DefaultQuotaBytes
	}
	return max(flag, 0)
}

// alarms returns the members for which matches returns true and which have raised the alarm NOSPACE.
func (m *Member) alarms(matches func(member types.ID) bool) []types.ID {
	var raised []types.ID
	for _, alarm := range m.server.Alarms() {
		if id := types.ID(alarm.GetMemberID()); alarm.GetAlarm() == etcdserverpb.AlarmType_NOSPACE && matches(id) {
			raised = append(raised, id)
		}
	}
	return raised
}

// disarms reports whether this member may disarm the alarm NOSPACE of a member. It disarms its own alarm, and alarms of
// members that are no longer in the cluster: etcd keeps their alarms when it removes a member or restores a snapshot.
func (m *Member) disarms(member types.ID) bool {
	return member == m.server.MemberID() || m.server.Cluster().Member(member) == nil
}

// watchSpace measures the file system and allocates space for the database, until ctx ends. It checks the alarm NOSPACE
// only when the member is ready: before, etcd may be applying the snapshot with which a new member joins, and it
// replaces its alarms then without a lock.
func (m *Member) watchSpace(ctx context.Context) {
	ticker := time.NewTicker(alarmInterval)
	defer ticker.Stop()
	ready, isReady, raised := m.ready, false, false
	for {
		m.measureDisk()
		m.allocateDatabase()
		if isReady {
			raised = m.checkAlarm(ctx, raised)
		}
		select {
		case <-ready:
			ready, isReady = nil, true
		case <-ticker.C:
		case <-ctx.Done():
			return
		}
	}
}

// checkAlarm disarms the alarm NOSPACE when this member's database has enough free space again, because it was
// defragmented or its quota was raised. Without this, etcd rejects writes until an administrator disarms the alarm.
// While the alarm is raised or more than half of the quota is in use, checkAlarm also commits backend transactions,
// because the space that a compaction frees is counted only after the second commit. before is the result of the
// previous check.
func (m *Member) checkAlarm(ctx context.Context, before bool) (raised bool) {
	alarms, space := m.alarms(m.disarms), m.Space()
	raised = len(alarms) > 0
	if space.NoSpace || space.Quota > 0 && space.InUse > space.Quota/2 {
		// KV().Commit excludes a snapshot that replaces the backend at the same time; Backend().ForceCommit could use a
		// backend that etcd has just closed.
		m.server.KV().Commit()
	}
	switch {
	case raised && space.Size < space.Quota-space.Quota/disarmReserve || raised && space.Quota == 0:
		m.disarm(ctx, alarms)
	case raised && !before:
		m.log.Error(nil, "The etcd database has reached its quota; only deletions succeed until it has space. "+
			"Delete objects, then run 'quorate etcd defrag'; or raise --etcd-quota-backend-bytes",
			"size", space.Size, "inUse", space.InUse, "quota", space.Quota)
	}
	return raised
}

func (m *Member) disarm(ctx context.Context, members []types.ID) {
	ctx, cancel := context.WithTimeout(ctx, m.server.Cfg.ReqTimeout())
	defer cancel()
	for _, member := range members {
		_, err := m.client.AlarmDisarm(ctx, &clientv3.AlarmMember{
			MemberID: uint64(member), Alarm: etcdserverpb.AlarmType_NOSPACE,
		})
		if err != nil {
			m.log.V(1).Info("Failed to disarm the alarm NOSPACE; retrying", "reason", err.Error())
			return
		}
	}
	m.log.Info("The etcd database has space again; disarmed the alarm NOSPACE")
}
