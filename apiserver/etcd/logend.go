package etcd

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"

	"go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// logEnd is the last position of a write-ahead log, and the ID of the member that has written the log.
type logEnd struct {
	progress
	memberID uint64
}

// logOf returns the path of the write-ahead log in a data directory.
func logOf(directory string) string { return filepath.Join(directory, "member", "wal") }

// readLogEnd reads the newest files of a write-ahead log until one contains an entry or a snapshot. It does not verify
// the rest, which etcd does when it starts. It returns false if there is no log.
func readLogEnd(directory string) (end logEnd, found bool, err error) {
	files, err := filepath.Glob(filepath.Join(directory, "*.wal"))
	if err != nil || len(files) == 0 {
		return end, false, err
	}
	slices.Sort(files) // names begin with the sequence number in hexadecimal
	for _, file := range slices.Backward(files) {
		var segment logEnd
		if err := readSegment(file, &segment); err != nil {
			return end, true, fmt.Errorf("wal: read %s: %w", file, err)
		}
		end.progress = end.newest(segment.progress)
		end.memberID = max(end.memberID, segment.memberID)
		if segment.Index > 0 {
			break
		}
	}
	return end, true, nil
}

// recordReader is called with the records of a write-ahead log in their order.
type recordReader interface {
	advance(record *walpb.Record) error
}

// readSegment reads one file of a write-ahead log, until its end or an incomplete record.
func readSegment(path string, reader recordReader) error {
	file, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer file.Close()
	decoder := wal.NewDecoder(fileutil.NewFileReader(file))
	var record walpb.Record
	for {
		err := decoder.Decode(&record)
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if record.GetType() == wal.CrcType {
			decoder.UpdateCRC(record.GetCrc())
			continue
		}
		if err := reader.advance(&record); err != nil {
			return err
		}
	}
}

// advance moves the end of the log by one record. An entry replaces all entries with the same or a higher index.
func (l *logEnd) advance(record *walpb.Record) error {
	switch record.GetType() {
	case wal.MetadataType:
		var metadata etcdserverpb.Metadata
		if err := proto.Unmarshal(record.GetData(), &metadata); err != nil {
			return err
		}
		l.memberID = metadata.GetNodeID()
	case wal.EntryType:
		var entry raftpb.Entry
		if err := proto.Unmarshal(record.GetData(), &entry); err != nil {
			return err
		}
		l.Index, l.Term = entry.GetIndex(), max(l.Term, entry.GetTerm())
	case wal.StateType:
		var state raftpb.HardState
		if err := proto.Unmarshal(record.GetData(), &state); err != nil {
			return err
		}
		l.Term = max(l.Term, state.GetTerm())
	case wal.SnapshotType:
		var snapshot walpb.Snapshot
		if err := proto.Unmarshal(record.GetData(), &snapshot); err != nil {
			return err
		}
		l.Index, l.Term = max(l.Index, snapshot.GetIndex()), max(l.Term, snapshot.GetTerm())
	}
	return nil
}
