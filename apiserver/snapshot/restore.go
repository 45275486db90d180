package snapshot

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	etcdutl "go.etcd.io/etcd/etcdutl/v3/snapshot"
	"go.uber.org/zap"
)

// DefaultRevisionBump is the number of revisions that a restored etcd skips. It exceeds the number of changes that
// the former cluster can have made after the snapshot, so that no revision has two meanings.
const DefaultRevisionBump = 1_000_000_000

// RestoreOptions describe a snapshot and the data directory to create from it.
type RestoreOptions struct {
	Snapshot  string // file of the snapshot
	SHA256    string // SHA-256 that the database must have; "": unknown
	Directory string // data directory; must not exist, or be empty
	// Name, PeerURL and Token describe the only member of the new cluster. The IDs of the cluster and the member
	// differ from all former IDs, even if the token is the same.
	Name    string
	PeerURL string
	Token   string
	// RevisionBump is added to the revision. All revisions before the result are marked as compacted, so that a watch
	// that continues from there fails with 410 Gone instead of missing changes. 0 keeps the revision; use it only if
	// no client has seen a later one.
	RevisionBump uint64
	// Progress is called before each part of the restore. It may be nil.
	Progress func(part string)
}

func (o RestoreOptions) progress(part string) {
	if o.Progress != nil {
		o.Progress(part)
	}
}

// Restore verifies a snapshot and creates a data directory from it, with a new member and cluster ID. The data
// directory appears only when it is complete, so that an interrupted restore can be repeated. If the context is
// canceled, etcd's part of the restore still runs to its end; its result is then deleted.
func Restore(ctx context.Context, o RestoreOptions) (Info, error) {
	if err := checkEmpty(o.Directory); err != nil {
		return Info{}, err
	}
	o.progress("Verifying " + o.Snapshot)
	info, err := Verify(ctx, o.Snapshot)
	if err != nil {
		return info, fmt.Errorf("verify snapshot %s: %w", o.Snapshot, err)
	}
	if o.SHA256 != "" && o.SHA256 != info.SHA256 {
		return info, fmt.Errorf("snapshot %s has the SHA-256 %s, want %s", o.Snapshot, info.SHA256, o.SHA256)
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
	if ctx.Err() != nil {
		return info, context.Cause(ctx)
	}
	if err := os.Remove(o.Directory); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return info, err
	}
	if err := os.Rename(partial, o.Directory); err != nil {
		return info, err
	}
	return info, syncDirectory(filepath.Dir(filepath.Clean(o.Directory)))
}

// write runs etcd's restore. It returns panics as errors, because etcd panics if it cannot write a file.
func (o RestoreOptions) write(directory string) (err error) {
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("etcd panicked: %v", reason)
		}
	}()
	if err := os.MkdirAll(directory, 0o700); err != nil {
		return err
	}
	// etcd derives the IDs from the peer URL and the token. Members that remember a former cluster with the same IDs
	// would accept the restored member as a voter that they know.
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
