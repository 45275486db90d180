package etcd

import (
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.etcd.io/etcd/client/pkg/v3/fileutil"
	"go.etcd.io/etcd/client/pkg/v3/types"

	"quorate.dev/apiserver/config"
)

// identity identifies the data of a member. Before the member first starts, it is written both to the data directory
// and to the directory of the MemberRecord, which is outside the volume. Both copies must be equal at each later start.
type identity struct {
	Name string `json:"name"`
	// Volume is MemberRecord.Volume at the first start at which it was set.
	Volume string `json:"volume,omitempty"`
	// Incarnation is a random name of the data directory's content. A new data directory gets a new name.
	Incarnation string `json:"incarnation"`
	// Started is set when etcd has created its files, before the member serves requests. If it is set, the data
	// directory must have a write-ahead log.
	Started bool `json:"started,omitempty"`
}

const (
	identityFile = "member.json"   // in both directories
	progressFile = "progress.json" // in the directory of the MemberRecord
)

// readIdentity returns nil if the directory has no identity.
func readIdentity(directory string) (*identity, error) {
	if directory == "" {
		return nil, nil
	}
	text, err := os.ReadFile(filepath.Join(directory, identityFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var i identity
	if err := json.Unmarshal(text, &i); err != nil || i.Name == "" || i.Incarnation == "" {
		return nil, fmt.Errorf("%w: %s is not the identity of a member", ErrDamaged, filepath.Join(directory, identityFile))
	}
	return &i, nil
}

// writeIdentity replaces the identity in a directory and returns when it is on disk.
func writeIdentity(directory string, i identity) error {
	text, err := json.Marshal(i)
	if err != nil {
		return err
	}
	return replaceFile(directory, identityFile, text)
}

// replaceFile writes a file atomically and syncs it and its directory.
func replaceFile(directory, name string, text []byte) error {
	file, err := os.CreateTemp(directory, "."+name+"-")
	if err != nil {
		return err
	}
	_, err = file.Write(text)
	err = errors.Join(err, fileutil.Fsync(file), file.Close())
	if err == nil {
		err = os.Rename(file.Name(), filepath.Join(directory, name))
	}
	if err != nil {
		return errors.Join(err, os.Remove(file.Name()))
	}
	opened, err := os.Open(directory)
	if err != nil {
		return err
	}
	return errors.Join(fileutil.Fsync(opened), opened.Close())
}

// progress is the index and term of the newest entry of the raft log that a member is known to have on disk.
type progress struct {
	Index uint64 `json:"index"`
	Term  uint64 `json:"term"`
}

// newest returns the later of two positions in one log.
func (p progress) newest(other progress) progress {
	return progress{Index: max(p.Index, other.Index), Term: max(p.Term, other.Term)}
}

// readProgress reads the progress. It returns the zero value if there is no file or an incomplete one, which a crash of
// the machine can cause because the file is not synced.
func readProgress(directory string) progress {
	var p progress
	if directory == "" {
		return p
	}
	text, err := os.ReadFile(filepath.Join(directory, progressFile))
	if err != nil || json.Unmarshal(text, &p) != nil {
		return progress{}
	}
	return p
}

// writeProgress replaces the file without syncing it. After a crash of this process, the next process reads the new
// file. After a crash of the machine, the file may be lost, and the next start only detects fewer losses.
func writeProgress(directory string, p progress) error {
	text, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return writeUnsynced(directory, progressFile, text)
}

// writeUnsynced replaces a file atomically without syncing it.
func writeUnsynced(directory, name string, text []byte) error {
	temporary := filepath.Join(directory, "."+name)
	if err := os.WriteFile(temporary, text, 0o600); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(directory, name))
}

// admit decides whether a member may start with its data directory, and records its identity in both directories. When
// etcd has started, the caller must pass the returned identity to confirm. The error wraps ErrLost if the data
// directory does not contain the votes and entries that the member has sent to other members.
func admit(member config.Member) (identity, error) {
	found, err := gather(member)
	if err != nil {
		return identity{}, err
	}
	if reason := found.contradiction(); reason != "" {
		return identity{}, lost(member.DataDirectory, reason)
	}
	if err := found.clear(); err != nil {
		return identity{}, err
	}
	own := found.next()
	for _, directory := range []string{member.DataDirectory, member.Record.Directory} {
		if directory == "" {
			continue
		}
		if err := writeIdentity(directory, own); err != nil {
			return identity{}, fmt.Errorf("record the identity of the member: %w", err)
		}
	}
	return own, nil
}

// confirm records that etcd has created its files. No request may be served before it returns.
func confirm(member config.Member, own identity) error {
	if own.Started {
		return nil
	}
	own.Started = true
	for _, directory := range []string{member.DataDirectory, member.Record.Directory} {
		if directory == "" {
			continue
		}
		if err := writeIdentity(directory, own); err != nil {
			return fmt.Errorf("record that the member has started: %w", err)
		}
	}
	return nil
}

// evidence is the information about the data of a member, from inside and outside the data directory, that admit
// examines before the member starts.
type evidence struct {
	member      config.Member
	log         logEnd // end of the write-ahead log
	hasLog      bool   // the data directory has a write-ahead log
	hasDatabase bool   // the data directory has a database
	// owner is the member that wrote the log, according to the member list in the data. It is "" if the data directory has
	// an identity, or if the list has no other members.
	owner       string
	interrupted bool      // an unfinished recovery has renamed the data directory
	volume      *identity // in the data directory; nil: none
	outside     *identity // in the directory of the MemberRecord; nil: none
	progress    progress  // in the directory of the MemberRecord
}

func gather(member config.Member) (e evidence, err error) {
	e.member = member
	e.progress = readProgress(member.Record.Directory)
	if e.volume, err = readIdentity(member.DataDirectory); err != nil {
		return e, err
	}
	if e.outside, err = readIdentity(member.Record.Directory); err != nil {
		return e, err
	}
	if _, err := os.Stat(databaseOf(member.DataDirectory)); err == nil {
		e.hasDatabase = true
	}
	if _, err := os.Stat(filepath.Join(BeforeRecovery(member.DataDirectory), "member")); err == nil {
		e.interrupted = true
	}
	if e.log, e.hasLog, err = readLogEnd(logOf(member.DataDirectory)); err != nil {
		return e, corrupt(member.DataDirectory, err)
	}
	if e.volume == nil && e.hasLog && e.hasDatabase {
		e.owner = ownerOf(databaseOf(member.DataDirectory), types.ID(e.log.memberID))
	}
	return e, nil
}

// contradiction returns a clause for an error message that says why the member cannot have run with this data last, or
// "" if nothing contradicts it.
func (e evidence) contradiction() string {
	if reason := e.foreign(); reason != "" {
		return reason
	}
	if !e.hasLog {
		return e.missing()
	}
	record := e.member.Record
	known := progress{record.Index, record.Term}.newest(e.progress)
	switch {
	case e.outside != nil && e.outside.Started && e.volume == nil:
		return "it has no " + identityFile + ", which this member has written"
	case record.MemberID != 0 && record.MemberID != e.log.memberID:
		return fmt.Sprintf("it has the data of etcd member %x, and this is member %x", e.log.memberID, record.MemberID)
	case e.log.Index < known.Index || e.log.Term < known.Term:
		return fmt.Sprintf("its log ends at index %d of term %d, but this member has acknowledged index %d of term %d: the "+
			"volume is an earlier copy, or its last writes are lost", e.log.Index, e.log.Term, known.Index, known.Term)
	}
	return ""
}

// foreign returns the reason why the data directory belongs to another member or volume, or "".
func (e evidence) foreign() string {
	switch {
	case e.volume == nil && e.owner != "" && e.owner != e.member.Name:
		return fmt.Sprintf("it has the data of member %s, and this is member %s", e.owner, e.member.Name)
	case e.volume == nil:
		return ""
	case e.volume.Name != e.member.Name:
		return fmt.Sprintf("it has the data of member %s, and this is member %s", e.volume.Name, e.member.Name)
	case e.volume.Volume != "" && e.member.Record.Volume != "" && e.volume.Volume != e.member.Record.Volume:
		return fmt.Sprintf("its data was written on volume %s, and this is volume %s: the data is a copy",
			e.volume.Volume, e.member.Record.Volume)
	case e.outside != nil && e.outside.Incarnation != e.volume.Incarnation:
		return "its data is not the data that this member has started with"
	}
	return ""
}

// BeforeRecovery returns the path to which a recovery renames the former data directory of a member.
func BeforeRecovery(dataDirectory string) string {
	return filepath.Clean(dataDirectory) + ".before-recovery"
}

// missing returns the reason why a data directory without a write-ahead log cannot be new, or "". An interrupted first
// start may leave an identity and a database behind.
func (e evidence) missing() string {
	interrupted := e.volume != nil && !e.volume.Started
	switch {
	case e.volume != nil && e.volume.Started, e.outside != nil && e.outside.Started, e.member.Record.Started,
		e.member.Record.Index > 0, e.progress.Index > 0:
		return "it has no write-ahead log, although this member has run before: the volume was emptied or replaced"
	case e.interrupted:
		return "it is empty, because a recovery was interrupted, and its data is in " +
			BeforeRecovery(e.member.DataDirectory) +
			": repeat 'quorate etcd recover'"
	case e.outside != nil && e.volume == nil:
		return "it is empty, although this member has begun to use it: the volume was emptied or replaced"
	case e.hasDatabase && !interrupted:
		return "it has a database without a write-ahead log"
	}
	return ""
}

// clear removes the database of an interrupted first start, in which etcd had not yet created a write-ahead log.
func (e evidence) clear() error {
	if e.hasLog || !e.hasDatabase {
		return nil
	}
	return os.RemoveAll(filepath.Join(e.member.DataDirectory, "member"))
}

// next returns the identity to record for this start. Data of a release without identities gets a new identity.
func (e evidence) next() identity {
	own := identity{Name: e.member.Name, Incarnation: rand.Text(), Started: e.hasLog}
	if e.volume != nil {
		own.Incarnation, own.Volume = e.volume.Incarnation, e.volume.Volume
	}
	if own.Volume == "" {
		own.Volume = e.member.Record.Volume
	}
	return own
}
