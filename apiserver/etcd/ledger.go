package etcd

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"go.etcd.io/etcd/server/v3/etcdserver"
)

const (
	// ledgerFile, in the data directory, has the terms of the committed entries.
	ledgerFile = "terms.json"
	// ledgerPeriod is the interval at which a member brings its ledger up to date.
	ledgerPeriod = time.Second
	// ledgerStep is the number of new entries after which the file is written although no new term has begun. It is far
	// less than the number of entries in the files of the log that etcd keeps.
	ledgerStep = 2000
)

// ledger has the terms of the entries in the log of a running member, including entries that the log files no longer
// contain. etcd does not export the terms of entries; therefore the ledger reads the write-ahead log. It does so only
// after an election, because all new entries have the same term until the leader changes.
type ledger struct {
	directory string
	server    *etcdserver.EtcdServer
	stored    progress // the last entry that the database had at the start

	mutex   sync.Mutex
	read    logTerms
	leader  termHistory     // terms reported by the last leader whose log agreed with this member's log
	changed <-chan struct{} // closed when a leader has been elected since the log was read
	saved   savedTerms
}

// savedTerms is the content of ledgerFile. It has only committed entries, whose terms never change.
type savedTerms struct {
	Cluster string      `json:"cluster"`
	Terms   termHistory `json:"terms"`
}

// newLedger returns the ledger of a member whose database had all entries up to stored when the member started.
func newLedger(directory string, server *etcdserver.EtcdServer, stored progress) *ledger {
	l := &ledger{directory: directory, server: server, stored: stored}
	text, err := os.ReadFile(filepath.Join(directory, ledgerFile))
	if err == nil && json.Unmarshal(text, &l.saved) == nil && l.saved.Cluster == l.cluster() {
		l.read = logTerms{history: l.saved.Terms, committed: l.saved.Terms.Last}
	}
	l.saved.Cluster = l.cluster()
	return l
}

func (l *ledger) cluster() string { return l.server.Cluster().ID().String() }

// keep updates the ledger every ledgerPeriod until ctx ends.
func (l *ledger) keep(ctx context.Context) {
	ticker := time.NewTicker(ledgerPeriod)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			_ = l.update() // the log may be unreadable while etcd writes it
		case <-ctx.Done():
			return
		}
	}
}

// update reads the write-ahead log if the log may have entries of a new term, and saves the terms if they have changed.
func (l *ledger) update() error {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	// etcd sets the index of an applied entry before its term. The entry before the last applied one has its term set.
	applied := l.server.AppliedIndex()
	term := l.server.Term() // 0: no entry has been applied since the start
	if l.outdated() || !l.read.history.identified(applied) || term != 0 && term != l.read.history.lastTerm() {
		if err := l.reread(); err != nil {
			return err
		}
	} else if term != 0 && applied > l.read.history.Last+1 {
		l.read.history.Last = applied - 1
		l.read.committed = applied - 1
	}
	return l.save()
}

// outdated reports whether the log may have entries of a term that the ledger does not know.
func (l *ledger) outdated() bool {
	select {
	case <-l.changed:
		return true
	default:
		return l.changed == nil || l.read.history.lastTerm() != l.read.term
	}
}

// reread reads the write-ahead log, starting at the last entry that is known to be committed.
func (l *ledger) reread() error {
	changed := l.server.LeaderChangedNotify()
	read, err := readTerms(logOf(l.directory), l.read.history.upTo(l.read.committed))
	if err == nil {
		read.history = read.history.extendedBy(l.leader)
		l.read, l.changed = read, changed
	}
	return err
}

// save writes the file when a new term has begun, or after ledgerStep entries. It does not sync the file: if the file
// is lost, comparisons detect fewer lost writes, but never report lost writes wrongly.
func (l *ledger) save() error {
	committed := l.read.history.upTo(l.read.committed)
	known := l.saved.Terms
	if committed.lastTerm() == known.lastTerm() && len(committed.Starts) == len(known.Starts) &&
		committed.Last < known.Last+ledgerStep {
		return nil
	}
	saved := savedTerms{Cluster: l.cluster(), Terms: committed}
	text, err := json.Marshal(saved)
	if err != nil {
		return err
	}
	if err := writeUnsynced(l.directory, ledgerFile, text); err != nil {
		return err
	}
	l.saved = saved
	return nil
}

// errUnwritten means that the write-ahead log does not contain the last applied entry yet. The caller tries again
// later.
var errUnwritten = errors.New("the last applied entry is being written to the log")

// committed returns the index of the last entry that this member knows to be committed, and the terms of the entries up
// to it. The index comes from the log and from the database, because etcd writes the committed index to the log only
// together with later entries.
func (l *ledger) committed() (uint64, termHistory, error) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	applied := progress{Index: l.server.AppliedIndex()}
	if err := l.reread(); err != nil {
		return 0, termHistory{}, err
	}
	applied.Term = l.server.Term() // etcd sets the index of an applied entry first
	if l.read.lacks(applied) {
		return 0, termHistory{}, errUnwritten
	}
	read := l.read
	read.committed = max(applied.Index, min(read.committed, read.history.Last))
	read.confirm(termHistory{Starts: []termStart{{Index: l.stored.Index, Term: l.stored.Term}}, Last: l.stored.Index})
	return read.committed, read.history.upTo(read.history.Last), nil
}

// leading returns the terms of this member's log and reports whether they are valid. They are valid if the member is
// the leader, has not lost leadership since the log was read, and the log has an entry of its term: all later entries
// then have the same term.
func (l *ledger) leading() (termHistory, bool) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	if (l.outdated() || !l.read.history.identified(l.server.AppliedIndex())) && (l.reread() != nil || l.outdated()) {
		return termHistory{}, false
	}
	history := l.read.history.upTo(l.read.history.Last)
	history.Last = max(history.Last, l.server.AppliedIndex())
	return history, !l.outdated() && l.server.Leader() == l.server.MemberID()
}

// adopt adds the terms of older entries from the report of a leader whose log agrees with this member's log. A later
// snapshot from this leader may contain such entries; their terms are then known.
func (l *ledger) adopt(leader termHistory) {
	l.mutex.Lock()
	defer l.mutex.Unlock()
	l.leader = leader.extendedBy(l.read.history)
	l.read.history = l.read.history.extendedBy(l.leader)
}
