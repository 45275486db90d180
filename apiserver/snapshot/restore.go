package snapshot

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	etcdutl "go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// DefaultRevisionBump is the number of revisions that a restored etcd skips. It exceeds the changes that the former
// cluster can have made after the snapshot, so that no revision has two meanings.
const DefaultRevisionBump = 1_000_000_000

// RestoreOptions describe the new data directory.
type RestoreOptions struct {
	Snapshot  string // file
	Directory string // must not exist, or be empty
	// Name, PeerURL and Token become the only member of a new cluster. The IDs of the cluster and of the member differ from all
	// former IDs, also with the same token.
	Name    string
	PeerURL string
	Token   string
	// RevisionBump is added to the revision. All revisions before are marked compacted, so that a watch from one of them
	// fails with 410 Gone instead of missing changes. 0 keeps the revision; use it only if no client has seen a later one.
	RevisionBump uint64
	// Progress is called before each part of the restore. May be nil.
	Progress func(part string)
}

func (o RestoreOptions) progress(part string) {
	if o.Progress != nil {
		o.Progress(part)
	}
}

// Restore verifies a snapshot and creates a data directory from it, with a new member and cluster ID. The data
// directory appears only when it is complete: an interrupted restore can be repeated.
func Restore(o RestoreOptions) (Info, error) {
	if err := checkEmpty(o.Directory); err != nil {
		return Info{}, err
	}
	o.progress("Verifying " + o.Snapshot)
	info, err := Verify(o.Snapshot)
	if err != nil {
		return info, fmt.Errorf("verify snapshot %s: %w", o.Snapshot, err)
	}
	partial := filepath.Clean(o.Directory) + ".restoring"
	if err := os.RemoveAll(partial); err != nil {
		return info, err
	}
	defer os.RemoveAll(partial)
	o.progress("Writing " + o.Directory)
	if err := o.write(partial); err != nil {
		return info, fmt.Errorf("write the data directory: %w", err)
	}
	if err := os.Remove(o.Directory); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return info, err
	}
	if err := os.Rename(partial, o.Directory); err != nil {
		return info, err
	}
	return info, syncDirectory(filepath.Dir(filepath.Clean(o.Directory)))
}

// write runs etcd's restore. It panics where it cannot write.
func (o RestoreOptions) write(directory string) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("etcd panicked: %v", reason)
		}
	}()
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return err
	}
	// etcd derives the IDs from the peer URL and the token. Members that remember a former cluster with the same IDs would
	// accept the restored member as a voter that they know.
	token := o.Token + "-" + rand.Text()
	return etcdutl.NewV3(zap.NewNop()).Restore(etcdutl.RestoreConfig{
		SnapshotPath: o.Snapshot, OutputDataDir: directory,
		Name: o.Name, PeerURLs: []string{o.PeerURL}, InitialCluster: o.Name + "=" + o.PeerURL, InitialClusterToken: token,
		RevisionBump: o.RevisionBump, MarkCompacted: o.RevisionBump > 0,
	})
}

// checkEmpty returns an error if a directory exists and is not empty.
func checkEmpty(directory string) error {
	entries, err := os.ReadDir(directory)
	if err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty: a snapshot is restored only into a new data directory", directory)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
