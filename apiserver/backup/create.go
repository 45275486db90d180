package backup

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
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

// scratchFile is the name of the snapshot in the directory for temporary files.
const scratchFile = "snapshot.db"

// requestTimeout bounds requests to etcd that move no data.
const requestTimeout = 10 * time.Second

// creation is an attempt to create a backup.
type creation struct {
	store      store
	path       string // directory of the backup in the store
	etcd       clientv3.Config
	scratch    string             // directory for the snapshot before it is stored
	recipients []byte             // recipients that the backup is encrypted for; nil: it is not encrypted
	key        ed25519.PrivateKey // key that signs the manifest; nil: it is not signed
	manifest   format.Manifest    // gets the fields that depend on the snapshot while the attempt runs
	now        func() time.Time
	log        func(format string, args ...any)
}

// create saves a snapshot, verifies it, stores it, reads it back, and finally writes the manifest. If a complete
// backup has the same UID, create only verifies and returns it, so that an interrupted attempt can be repeated.
func (c *creation) create(ctx context.Context) (format.Result, error) {
	switch existing, err := readManifest(ctx, c.store, c.path); {
	case err == nil:
		return c.result(existing), c.accept(ctx, existing)
	case !errors.Is(err, errNotFound):
		return format.Result{}, err
	}
	scratch, err := os.MkdirTemp(c.scratch, "backup-")
	if err != nil {
		return format.Result{}, err
	}
	defer os.RemoveAll(scratch)
	file := filepath.Join(scratch, scratchFile)
	if err := c.save(ctx, file); err != nil {
		return format.Result{}, err
	}
	if file, err = c.encrypt(file); err != nil {
		return format.Result{}, fmt.Errorf("encrypt the snapshot: %w", err)
	}
	if err := c.upload(ctx, file); err != nil {
		return format.Result{}, err
	}
	stored, err := c.complete(ctx)
	return c.result(stored), err
}

// result returns the result of a complete backup. If there is a key, accept or complete has verified the manifest.
func (c *creation) result(stored manifestFile) format.Result {
	result := format.Result{
		Location: c.store.location(c.path), Manifest: stored.Manifest, ManifestSHA256: format.Digest(stored.text),
	}
	if c.key != nil {
		result.VerificationKey = format.VerificationKeyOf(c.key)
	}
	return result
}

// accept returns nil if an existing backup has the UID of this attempt and is complete and undamaged. If a signing key
// is configured, the manifest must be signed with it: anyone who can write to the store can copy a UID.
func (c *creation) accept(ctx context.Context, existing manifestFile) error {
	if existing.UID != c.manifest.UID {
		return fmt.Errorf("%s contains another backup, created at %s; it is not overwritten",
			c.store.location(c.path), existing.Created.Format(time.RFC3339))
	}
	if c.key != nil {
		if err := existing.verifySignature(c.path, []string{string(format.VerificationKeyOf(c.key))}); err != nil {
			return fmt.Errorf("%s contains a manifest that this operation has not written: %w", c.store.location(c.path), err)
		}
	}
	c.log("The backup is complete already")
	return verifyStored(ctx, c.store, c.path, existing.Manifest)
}

// save takes the snapshot from the first member that can provide it. The snapshot contains every write that was
// acknowledged before save: a member that lags behind a linearizable read is skipped.
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

// saveFrom saves a snapshot of the first endpoint whose snapshot has the given revision or a later one.
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

// currentRevision returns the revision of a linearizable read.
func currentRevision(ctx context.Context, client *clientv3.Client) (int64, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	response, err := client.Get(ctx, "\x00", clientv3.WithCountOnly())
	if err != nil {
		return 0, err
	}
	return response.Header.Revision, nil
}

// candidates returns the endpoints of the members that respond, have a leader and report no problem except a lack of
// space. Learners are excluded. Followers come first, because a snapshot loads the member.
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

// isCorrupt reports whether an error in the status of a member is about something other than its space.
func isCorrupt(problem string) bool { return !bytes.Contains([]byte(problem), []byte("NOSPACE")) }

// encrypt encrypts the file if there are recipients, and returns the file to store.
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

// upload stores the file under the name in the manifest, and verifies the stored copy.
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
	c.log("Verifying the stored snapshot")
	return verifyStored(ctx, c.store, c.path, c.manifest)
}

// complete stores the manifest, and deletes the snapshots that unfinished attempts with the same UID have left. If
// another attempt, or an attempt to create another backup of the same path, has stored a manifest in the meantime,
// complete keeps that manifest and deletes the snapshot of this attempt.
func (c *creation) complete(ctx context.Context) (manifestFile, error) {
	c.manifest.Path = c.path
	text, err := c.manifest.Text(c.key)
	if err != nil {
		return manifestFile{}, err
	}
	stored, err := c.storeManifest(ctx, text)
	if err != nil {
		return stored, err
	}
	var other error
	if !bytes.Equal(stored.text, text) {
		other = c.accept(ctx, stored)
	}
	return stored, errors.Join(other,
		removeUnfinished(ctx, c.store, c.path, format.SnapshotPrefix(c.manifest.UID), stored.File))
}

const (
	// manifestTimeout bounds the time for which an attempt waits for another attempt that is storing its manifest.
	manifestTimeout  = 10 * time.Second
	manifestInterval = 100 * time.Millisecond
)

// errReplaced is returned if the manifest in the store is not the one that was just stored.
var errReplaced = errors.New("it was replaced while it was being stored")

// storeManifest stores the manifest if there is none, and returns the stored manifest. If it finds an existing
// manifest, this attempt may have stored it with an earlier request whose response was lost. S3-compatible storage also
// reports a conflict while another write of the object is in progress. That write may still fail; therefore
// storeManifest repeats the request until it can read a manifest.
func (c *creation) storeManifest(ctx context.Context, text []byte) (stored manifestFile, err error) {
	file := path.Join(c.path, format.ManifestFile)
	failure := wait.PollUntilContextTimeout(ctx, manifestInterval, manifestTimeout, true, func(
		ctx context.Context,
	) (bool, error) {
		created := c.store.create(ctx, file, text)
		if created != nil && !errors.Is(created, errExists) {
			return false, fmt.Errorf("store the manifest: %w", created)
		}
		stored, err = readManifest(ctx, c.store, c.path)
		if err == nil && created == nil && !bytes.Equal(stored.text, text) {
			err = errReplaced
		}
		if err != nil {
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
