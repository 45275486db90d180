package etcd

import (
	"fmt"
	"hash/crc32"
	"path/filepath"
	"slices"
	"sort"

	"go.etcd.io/etcd/server/v3/storage/wal"
	"go.etcd.io/etcd/server/v3/storage/wal/walpb"
	"go.etcd.io/raft/v3/raftpb"
	"google.golang.org/protobuf/proto"
)

// termHistory has the term of every entry of a raft log between two indexes. Invariant: the terms and the indexes of
// Starts increase. In raft, two logs that have an entry with the same index and term are equal up to that entry,
// because each term has at most one leader. If a member has lost its vote, a term may have two leaders. Therefore a
// history also identifies the leader of each term, by a checksum of the entry after the empty entry with which the term
// begins.
type termHistory struct {
	Starts []termStart `json:"starts,omitempty"`
	// Last is the index of the last entry.
	Last uint64 `json:"last,omitempty"`
}

// termStart describes the first entry of a term. The first termStart of a termHistory describes the first known entry,
// which may be in the middle of its term.
type termStart struct {
	Term  uint64 `json:"term"`
	Index uint64 `json:"index"`
	// NextSum is a checksum of the data of the entry after Index. The data contains the unique ID of a request, so that
	// it identifies the leader. 0: unknown.
	NextSum uint32 `json:"nextSum,omitempty"`
}

// until returns the termStart as it was known when index was the last entry of the log.
func (s termStart) until(index uint64) termStart {
	if index <= s.Index {
		s.NextSum = 0
	}
	return s
}

// after returns the number of terms that begin at index or earlier, which is the position in Starts of the next term.
func (h termHistory) after(index uint64) int {
	return sort.Search(len(h.Starts), func(i int) bool { return h.Starts[i].Index > index })
}

// term returns the term of an entry, or 0 if it is unknown.
func (h termHistory) term(index uint64) uint64 {
	if after := h.after(index); after > 0 && index <= h.Last {
		return h.Starts[after-1].Term
	}
	return 0
}

// lastTerm returns the term of the last entry, or 0 if there is none.
func (h termHistory) lastTerm() uint64 { return h.term(h.Last) }

// upTo returns the part of the history that ends with index.
func (h termHistory) upTo(index uint64) termHistory {
	starts := slices.Clone(h.Starts[:h.after(index)])
	if n := len(starts); n > 0 {
		starts[n-1] = starts[n-1].until(index)
	}
	return termHistory{Starts: starts, Last: min(h.Last, index)}
}

// append adds an entry, and removes all entries with the same or a higher index. If there is a gap before the entry, a
// snapshot has replaced the log, and the history begins with the entry.
func (h *termHistory) append(index, term uint64, data []byte) {
	switch {
	case index > h.Last+1:
		h.Starts = nil
	case index <= h.Last:
		*h = h.upTo(index - 1)
	}
	if n := len(h.Starts); n == 0 || h.Starts[n-1].Term != term {
		h.Starts = append(h.Starts, termStart{Term: term, Index: index})
	}
	if last := &h.Starts[len(h.Starts)-1]; len(data) > 0 && index == last.Index+1 {
		last.NextSum = crc32.ChecksumIEEE(data)
	}
	h.Last = index
}

// identified reports whether the leader of the last term is identified. It also returns true if the entry that would
// identify the leader is not among the entries up to index.
func (h termHistory) identified(index uint64) bool {
	n := len(h.Starts)
	return n > 0 && (h.Starts[n-1].NextSum != 0 || index <= h.Starts[n-1].Index)
}

// extendedBy returns the history, extended by the older entries of another history of the same log.
func (h termHistory) extendedBy(other termHistory) termHistory {
	if len(h.Starts) == 0 || len(other.Starts) == 0 {
		return h
	}
	first := h.Starts[0]
	if other.Starts[0].Index >= first.Index || other.term(first.Index) != first.Term {
		return h
	}
	starts := other.upTo(first.Index).Starts
	if last := &starts[len(starts)-1]; last.Index == first.Index {
		*last = first
	}
	return termHistory{Starts: append(starts, h.Starts[1:]...), Last: h.Last}
}

// contradicts reports whether two histories cannot be histories of the same log.
func (h termHistory) contradicts(other termHistory) bool {
	if len(h.Starts) == 0 || len(other.Starts) == 0 {
		return false
	}
	first, last := max(h.Starts[0].Index, other.Starts[0].Index), min(h.Last, other.Last)
	if first > last { // no entry is known in both histories, but terms never decrease
		return h.Last < first && h.lastTerm() > other.Starts[0].Term ||
			other.Last < first && other.lastTerm() > h.Starts[0].Term
	}
	return h.common(other) < last
}

// common returns the index of the last entry that both histories are known to have, or 0.
func (h termHistory) common(other termHistory) uint64 {
	if len(h.Starts) == 0 || len(other.Starts) == 0 {
		return 0
	}
	first, last := max(h.Starts[0].Index, other.Starts[0].Index), min(h.Last, other.Last)
	if first > last {
		return 0
	}
	points := []uint64{first}
	for _, start := range slices.Concat(h.Starts, other.Starts) {
		if start.Index > first && start.Index <= last {
			points = append(points, start.Index)
		}
	}
	slices.Sort(points)
	for _, point := range points { // between two points, each log has a single term
		own, others := h.Starts[h.after(point)-1], other.Starts[other.after(point)-1]
		switch {
		case own.Term != others.Term && point == first:
			return 0
		case own.Term != others.Term:
			return point - 1
		case own.Index == others.Index && point < last && own.NextSum != others.NextSum &&
			own.NextSum != 0 && others.NextSum != 0:
			return max(own.Index, first)
		}
	}
	return last
}

// logTerms is the information about terms and commits that a write-ahead log contains.
type logTerms struct {
	history termHistory
	// committed is the highest index that the log's hard states and snapshots show to be committed. etcd saves a hard
	// state after the entries that it commits, so that these entries are never replaced.
	committed uint64
	// term is the highest term in the log's hard states: the member has voted or participated in this term.
	term uint64
}

// readTerms reads the files of a write-ahead log, starting with the file that contains the end of the known history.
// Without a known history, it reads only the newest files. The member may be writing the log at the same time; after an
// error, the caller should read it again.
func readTerms(directory string, known termHistory) (logTerms, error) {
	read := logTerms{history: known.upTo(known.Last), term: known.lastTerm()}
	files, err := filepath.Glob(filepath.Join(directory, "*.wal"))
	if err != nil {
		return read, err
	}
	slices.Sort(files)
	for _, file := range files[firstFile(files, known):] {
		if err := readSegment(file, &read); err != nil {
			return read, fmt.Errorf("read %s: %w", file, err)
		}
	}
	read.confirm(known)
	return read, nil
}

// confirm records that the last entry of known, and all entries before it, are committed. If the log has another entry
// with this index, or ends before it, known replaces the history of the log: etcd applies a committed entry to the
// database while it writes the entry to the log, so that a crash can lose the entry from the log only. The remaining
// entries of the log then count as committed only if a hard state of the log shows it.
func (l *logTerms) confirm(known termHistory) {
	if known.Last <= min(l.committed, l.history.Last) {
		return
	}
	switch term := known.lastTerm(); {
	case term == 0 || term == l.history.term(known.Last):
	case term == l.history.lastTerm() && known.Last > l.history.Last: // the missing entries have the same term
		l.history.Last = known.Last
	default:
		l.history = known.upTo(known.Last)
	}
	l.committed = known.Last
}

// lacks reports whether the log has not yet received the last applied entry. It also returns true if applied.Term is
// the term of another entry, because an entry of another term has been applied since the index was read. applied.Term
// is 0 if no entry has been applied since the start.
func (l *logTerms) lacks(applied progress) bool {
	known := l.history.term(applied.Index)
	return applied.Term != 0 && (applied.Index > l.history.Last || known != 0 && known != applied.Term)
}

// firstFile returns the position in files of the newest file that begins before the end of the known history.
func firstFile(files []string, known termHistory) int {
	if len(known.Starts) == 0 {
		return max(0, len(files)-2)
	}
	position := max(0, len(files)-1)
	for position > 0 && firstIndex(files[position]) > known.Last {
		position--
	}
	return position
}

// firstIndex returns the index of the first entry of a write-ahead log file, which is part of the file's name, or 0.
func firstIndex(file string) uint64 {
	var sequence, index uint64
	if _, err := fmt.Sscanf(filepath.Base(file), "%016x-%016x.wal", &sequence, &index); err != nil {
		return 0
	}
	return index
}

// advance implements recordReader.
func (l *logTerms) advance(record *walpb.Record) error {
	switch record.GetType() {
	case wal.EntryType:
		var entry raftpb.Entry
		if err := proto.Unmarshal(record.GetData(), &entry); err != nil {
			return err
		}
		l.history.append(entry.GetIndex(), entry.GetTerm(), entry.GetData())
	case wal.StateType:
		var state raftpb.HardState
		if err := proto.Unmarshal(record.GetData(), &state); err != nil {
			return err
		}
		l.committed, l.term = max(l.committed, state.GetCommit()), max(l.term, state.GetTerm())
	case wal.SnapshotType:
		var snapshot walpb.Snapshot
		if err := proto.Unmarshal(record.GetData(), &snapshot); err != nil {
			return err
		}
		// A leader's snapshot also replaces earlier entries that were not committed, so their terms become unknown.
		if term := l.history.term(snapshot.GetIndex()); snapshot.GetIndex() > l.history.Last ||
			term != 0 && term != snapshot.GetTerm() {
			l.history = termHistory{}
			l.history.append(snapshot.GetIndex(), snapshot.GetTerm(), nil)
		}
		l.committed = max(l.committed, snapshot.GetIndex())
	}
	return nil
}
