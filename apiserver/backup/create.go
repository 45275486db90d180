package backup

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"k8s.io/apimachinery/pkg/util/wait"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/apiserver/snapshot"
)

// scratchFile is the name of a snapshot in the directory for temporary files.
const scratchFile = "snapshot.db"

// requestTimeout bounds requests that move no data.
const requestTimeout = 10 * time.Second

// creation describes a backup to create.
type creation struct {
	store      store
	path       string // directory of the backup in the store
	etcd       clientv3.Config
	scratch    string          // directory for the snapshot before it is stored
	recipients []byte          // encrypts the backup; nil: not encrypted
	manifest   format.Manifest // the fields that the snapshot does not determine
	now        func() time.Time
	log        func(format string, args ...any)
}

// create saves a snapshot, verifies it, stores it, reads it back, and finally writes the manifest. If a backup of the
// same UID is complete, it only returns the backup: an interrupted attempt can be repeated.
func (c *creation) create(ctx context.Context) (format.Manifest, error) {
	switch existing, err := readManifest(ctx, c.store, c.path); {
	case err == nil:
		return existing, c.accept(ctx, existing)
	case !errors.Is(err, errNotFound):
		return existing, err
	}
	scratch, err := os.MkdirTemp(c.scratch, "backup-")
	if err != nil {
		return c.manifest, err
	}
	defer os.RemoveAll(scratch)
	file := filepath.Join(scratch, scratchFile)
	if err := c.save(ctx, file); err != nil {
		return c.manifest, err
	}
	if file, err = c.encrypt(file); err != nil {
		return c.manifest, fmt.Errorf("encrypt the snapshot: %w", err)
	}
	if err := c.upload(ctx, file); err != nil {
		return c.manifest, err
	}
	return c.complete(ctx)
}

// accept returns nil if a backup that exists already is a good one of this UID.
func (c *creation) accept(ctx context.Context, existing format.Manifest) error {
	if existing.UID != c.manifest.UID {
		return fmt.Errorf("%s contains another backup, created at %s; it is not overwritten",
			c.store.location(c.path), existing.Created.Format(time.RFC3339))
	}
	c.log("The backup is complete already")
	return verifyStored(ctx, c.store, c.path, existing)
}

// save takes the snapshot from the first member that is able to provide it. The snapshot contains every write that was
// acknowledged before: a member that lags behind a linearizable read is skipped.
func (c *creation) save(ctx context.Context, file string) error {
	c.manifest.Created = c.now().UTC().Truncate(time.Second)
	client, err := clientv3.New(c.etcd)
	if err != nil {
		return err
	}
	defer client.Close()
	revision, err := currentRevision(ctx, client)
	if err != nil {
		return fmt.Errorf("read the current revision of etcd, which needs a quorum: %w", err)
	}
	return c.saveFrom(ctx, candidates(ctx, client), revision, file)
}

// saveFrom saves a snapshot of the first endpoint that has a revision.
func (c *creation) saveFrom(ctx context.Context, endpoints []string, revision int64, file string) error {
	var failures []error
	for _, endpoint := range endpoints {
		c.log("Saving a snapshot of %s, at revision %d or later", endpoint, revision)
		config := c.etcd
		config.Endpoints = []string{endpoint}
		info, err := snapshot.Save(ctx, config, file)
		if err == nil && info.Revision < revision {
			err = fmt.Errorf("the member lags: its snapshot has revision %d, want %d or later", info.Revision, revision)
		}
		if err == nil {
			c.manifest.Member, c.manifest.Snapshot = endpoint, format.Snapshot(info)
			return nil
		}
		failures = append(failures, fmt.Errorf("%s: %w", endpoint, err))
	}
	return errors.Join(append([]error{errors.New("no member provided a snapshot")}, failures...)...)
}

// currentRevision does a linearizable read.
func currentRevision(ctx context.Context, client *clientv3.Client) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := client.Get(ctx, "\x00", clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return response.Header.Revision, nil
}

// candidates returns the endpoints of members that answer, have a leader and report no problem: followers first, because
// a snapshot loads the member. Learners are excluded.
func candidates(ctx context.Context, client *clientv3.Client) []string {
	var followers, leaders []string
	for _, endpoint := range client.Endpoints() {
		limited, cancel := context.WithTimeout(ctx, requestTimeout)
		status, err := client.Status(limited, endpoint)
		cancel()
		switch {
		case err != nil || status.IsLearner || status.Leader == 0 || slices.ContainsFunc(status.Errors, isCorrupt):
		case status.Leader == status.Header.MemberId:
			leaders = append(leaders, endpoint)
		default:
			followers = append(followers, endpoint)
		}
	}
	return append(followers, leaders...)
}

// isCorrupt reports whether an error of a member's status is not one about its space.
func isCorrupt(problem string) bool { return !bytes.Contains([]byte(problem), []byte("NOSPACE")) }

// encrypt returns the file to store.
func (c *creation) encrypt(file string) (string, error) {
	c.manifest.File = format.SnapshotFile(c.manifest.UID, c.recipients != nil)
	if c.recipients == nil {
		return file, nil
	}
	in, err := os.Open(file)
	if err != nil {
		return "", err
	}
	defer in.Close()
	encrypted := file + ".age"
	out, err := os.OpenFile(encrypted, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	defer out.Close()
	w, err := format.Encrypt(out, c.recipients)
	if err != nil {
		return "", err
	}
	if _, err := io.Copy(w, in); err != nil {
		return "", err
	}
	if err := w.Close(); err != nil {
		return "", err
	}
	return encrypted, errors.Join(out.Close(), os.Remove(file))
}

// upload stores the file.
func (c *creation) upload(ctx context.Context, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	sum := sha256.New()
	if c.manifest.StoredBytes, err = io.Copy(sum, f); err != nil {
		return err
	}
	c.manifest.StoredSHA256, c.manifest.FormatVersion = hex.EncodeToString(sum.Sum(nil)), format.Version
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		return err
	}
	c.log("Storing %d bytes as %s", c.manifest.StoredBytes, c.store.location(path.Join(c.path, c.manifest.File)))
	if err := c.store.put(ctx, path.Join(c.path, c.manifest.File), f, c.manifest.StoredBytes); err != nil {
		return fmt.Errorf("store the snapshot: %w", err)
	}
	c.log("Verifying what is stored")
	return verifyStored(ctx, c.store, c.path, c.manifest)
}

// complete stores the manifest and deletes what earlier attempts have left. If another attempt, or an attempt to create another
// backup of the same path, has stored a manifest in the meantime, that one is kept and the own snapshot is deleted.
func (c *creation) complete(ctx context.Context) (format.Manifest, error) {
	text, err := json.MarshalIndent(c.manifest, "", "  ")
	if err != nil {
		return c.manifest, err
	}
	stored, err := c.storeManifest(ctx, append(text, '\n'))
	if err != nil {
		return c.manifest, err
	}
	var other error
	if stored.File != c.manifest.File {
		other = c.accept(ctx, stored)
	}
	return stored, errors.Join(other, removeUnfinished(ctx, c.store, c.path, format.SnapshotPrefix(c.manifest.UID), stored.File))
}

const (
	// manifestTimeout bounds how long an attempt waits for another attempt that is storing its manifest.
	manifestTimeout  = 10 * time.Second
	manifestInterval = 100 * time.Millisecond
)

// storeManifest stores the manifest unless there is one, and returns the manifest that is stored then. The manifest that exists
// may be this one, if the response to the first of several requests was lost. S3-compatible storage also reports a conflict
// while another write of the object is in progress. That write may fail, so that this one is repeated until a manifest can be
// read.
func (c *creation) storeManifest(ctx context.Context, text []byte) (stored format.Manifest, err error) {
	file := path.Join(c.path, format.ManifestFile)
	failure := wait.PollUntilContextTimeout(ctx, manifestInterval, manifestTimeout, true, func(ctx context.Context) (bool, error) {
		created := c.store.create(ctx, file, text)
		if created != nil && !errors.Is(created, errExists) {
			return false, fmt.Errorf("store the manifest: %w", created)
		}
		if stored, err = readManifest(ctx, c.store, c.path); err != nil {
			err = fmt.Errorf("verify the manifest: %w", err)
		}
		if errors.Is(err, errNotFound) && created != nil {
			return false, nil
		}
		return true, err
	})
	if err != nil {
		return stored, err
	}
	return stored, failure
}
