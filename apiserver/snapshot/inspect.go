package snapshot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"runtime/debug"
	"slices"
	"time"

	bolt "go.etcd.io/bbolt"
	"go.etcd.io/etcd/api/v3/mvccpb"
	"go.etcd.io/etcd/server/v3/storage/mvcc"
	"go.etcd.io/etcd/server/v3/storage/schema"
	"google.golang.org/protobuf/proto"
)

// openTimeout bounds the wait for the lock of a process that has the database open.
const openTimeout = time.Second

// inspect opens the database in a snapshot file, checks its pages and decodes its keys. bbolt panics, or faults on
// mapped memory, on some damaged files; inspect returns both as errors. The checksum must have been verified, because
// bbolt also panics in goroutines that it starts, where inspect cannot recover.
func inspect(ctx context.Context, file string) (info Info, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if reason := recover(); reason != nil {
			err = fmt.Errorf("the database is corrupt: %v", reason)
		}
	}()
	stat, err := os.Stat(file)
	if err != nil {
		return Info{}, err
	}
	db, err := bolt.Open(file, 0o400, &bolt.Options{ReadOnly: true, Timeout: openTimeout})
	if err != nil {
		return Info{}, fmt.Errorf("open the database: %w", err)
	}
	defer db.Close()
	info.SizeBytes = stat.Size()
	return info, db.View(func(tx *bolt.Tx) error { return info.read(ctx, tx) })
}

// read fills Info from the database. It stops when the context is canceled, except during the check of the pages.
func (i *Info) read(ctx context.Context, tx *bolt.Tx) error {
	var problems []error
	for problem := range tx.Check() {
		if len(problems) < 10 {
			problems = append(problems, problem)
		}
	}
	if len(problems) > 0 {
		return fmt.Errorf("the database is corrupt: %w", errors.Join(problems...))
	}
	if version := schema.ReadStorageVersionFromSnapshot(tx); version != nil {
		i.Version = version.String()
	}
	bucket := tx.Bucket(schema.Key.Name())
	if bucket == nil {
		return errors.New("the database has no bucket of keys")
	}
	encrypted := map[string]string{} // encryption keys by the etcd key of the value
	live := map[string]struct{}{}
	err := bucket.ForEach(func(revision, value []byte) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return i.count(revision, value, live, encrypted)
	})
	i.Revision = max(i.Revision, compactedRevision(tx))
	i.Keys = len(live)
	i.EncryptionKeys = slices.Compact(slices.Sorted(maps.Values(encrypted)))
	return err
}

// compactedRevision returns the revision of the last compaction, 0 if there was none. It is greater than the revision
// of every change in the database if the last change was a deletion, and the release of etcd removes tombstones at
// the compacted revision, as older releases do.
func compactedRevision(tx *bolt.Tx) int64 {
	var revision int64
	bucket := tx.Bucket(schema.Meta.Name())
	if bucket == nil {
		return 0
	}
	for _, name := range [][]byte{schema.ScheduledCompactKeyName, schema.FinishedCompactKeyName} {
		if value := bucket.Get(name); len(value) >= revisionLength {
			revision = max(revision, mvcc.BytesToRev(value).Main)
		}
	}
	return revision
}

// revisionLength is the minimum length of an encoded revision: main revision, underscore, sub revision.
const revisionLength = 17

// count adds one change to the keys and encryption keys that exist. It must be called in the order of revisions.
func (i *Info) count(revision, value []byte, live map[string]struct{}, encrypted map[string]string) error {
	var kv mvccpb.KeyValue
	if err := proto.Unmarshal(value, &kv); err != nil {
		return fmt.Errorf("decode the change at revision key %x: %w", revision, err)
	}
	if len(revision) < revisionLength {
		return fmt.Errorf("revision key %x is too short", revision)
	}
	i.Revision = mvcc.BytesToRev(revision).Main
	key := string(kv.Key)
	if key == "" { // etcdutl marks skipped revisions by an empty key
		return nil
	}
	delete(encrypted, key)
	if mvcc.IsTombstone(revision) {
		delete(live, key)
		return nil
	}
	live[key] = struct{}{}
	if id := encryptionKey(kv.Value); id != "" {
		encrypted[key] = id
	}
	return nil
}

var encryptionPrefix = []byte("k8s:enc:")

// encryptionKey returns the provider, version and name of the key in the prefix of an encrypted value, "" for other
// values.
func encryptionKey(value []byte) string {
	rest, ok := bytes.CutPrefix(value, encryptionPrefix)
	if !ok {
		return ""
	}
	parts := bytes.SplitN(rest[:min(len(rest), 512)], []byte(":"), 4)
	return string(bytes.Join(parts[:min(len(parts), 3)], []byte(":")))
}
