package backup

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/apiserver/snapshot"
)

// maxManifest bounds the size of a manifest, in bytes.
const maxManifest = 1 << 20

// manifestFile is a manifest with the content of its file, which digests and signatures cover.
type manifestFile struct {
	format.Manifest
	text []byte
}

// readManifest returns the manifest of a backup, or errNotFound.
func readManifest(ctx context.Context, s store, backup string) (m manifestFile, err error) {
	name := path.Join(backup, format.ManifestFile)
	content, err := s.get(ctx, name)
	if err != nil {
		return m, err
	}
	defer content.Close()
	m.text, err = io.ReadAll(io.LimitReader(content, maxManifest+1))
	switch {
	case err != nil:
		return m, fmt.Errorf("read %s: %w", s.location(name), err)
	case len(m.text) > maxManifest:
		return m, fmt.Errorf("%w: %s is larger than %d bytes", format.ErrManifest, s.location(name), maxManifest)
	}
	m.Manifest, err = format.ParseManifest(m.text)
	return m, err
}

// verifyStored reads the stored snapshot and compares it with the manifest.
func verifyStored(ctx context.Context, s store, backup string, m format.Manifest) error {
	return readStored(ctx, s, backup, m, func(r io.Reader) error {
		_, err := io.Copy(io.Discard, r)
		return err
	})
}

// readStored passes the content of the stored snapshot to use. It returns an error if the content is not what the
// manifest describes.
func readStored(ctx context.Context, s store, backup string, m format.Manifest, use func(io.Reader) error) error {
	name := path.Join(backup, m.File)
	content, err := s.get(ctx, name)
	if err != nil {
		return fmt.Errorf("read %s: %w", s.location(name), err)
	}
	defer content.Close()
	sum := sha256.New()
	// One byte more than the manifest states is sufficient to change the hash. Reading further could fill the volume.
	tee := io.TeeReader(io.LimitReader(content, max(m.StoredBytes, 0)+1), sum)
	used := use(tee)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(used, format.ErrNoIdentity) {
		return used
	}
	// If the file is damaged, the error must say so, instead of the error that use returned for the damaged content.
	if _, err := io.Copy(io.Discard, tee); err != nil {
		return fmt.Errorf("read %s: %w", s.location(name), err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != m.StoredSHA256 {
		return fmt.Errorf("%s is damaged: its SHA-256 is %s, the manifest has %s", s.location(name), got, m.StoredSHA256)
	}
	return used
}

// download describes a backup to fetch.
type download struct {
	store      store
	path       string // directory of the backup in the store
	scratch    string // directory for the decrypted snapshot
	identities []byte // identities that decrypt the backup; nil: the caller has none
	expected   expectation
	log        func(format string, args ...any)
}

// fetch verifies the manifest of a backup, downloads the snapshot to a new file in scratch, decrypts and verifies it.
// The result has the manifest and the way in which it was verified. The description of the snapshot in the result is
// read from the snapshot itself.
func (d *download) fetch(ctx context.Context) (result format.Result, file string, err error) {
	m, err := readManifest(ctx, d.store, d.path)
	result = format.Result{Location: d.store.location(d.path), Manifest: m.Manifest, ManifestSHA256: format.Digest(m.text)}
	if errors.Is(err, errNotFound) {
		return result, "", fmt.Errorf("%s is not a complete backup: it has no %s", result.Location, format.ManifestFile)
	}
	if err != nil {
		return result, "", err
	}
	if result.Verification, err = d.expected.verify(d.path, m); err != nil {
		return result, "", fmt.Errorf("%s is not the expected backup: %w", result.Location, err)
	}
	if result.Verification == format.VerifiedBySnapshotDigest {
		result.Manifest.SealedKeys = nil // nothing shows that these keys belong to the snapshot
	}
	if err := checkEncryption(m.Manifest, d.identities); err != nil {
		return result, "", err
	}
	file = filepath.Join(d.scratch, scratchFile)
	err = readStored(ctx, d.store, d.path, m.Manifest, func(r io.Reader) error {
		r = &progressReader{Reader: r, total: m.StoredBytes, log: d.log, canceled: func() error { return context.Cause(ctx) }}
		if m.Encrypted() {
			if r, err = format.Decrypt(r, d.identities); err != nil {
				return err
			}
		}
		return write(file, r)
	})
	if err != nil {
		return result, "", err
	}
	d.log("Verifying the snapshot")
	info, err := snapshot.Verify(ctx, file)
	if err == nil && info.SHA256 != m.Snapshot.SHA256 {
		err = fmt.Errorf("SHA-256 is %s, the manifest has %s", info.SHA256, m.Snapshot.SHA256)
	}
	if err != nil {
		return result, "", fmt.Errorf("verify the snapshot: %w", err)
	}
	result.Manifest.Snapshot = format.Snapshot(info)
	return result, file, nil
}

// checkEncryption returns an error if a backup is encrypted and the caller has no identities, or if it is not
// encrypted although the caller has identities.
func checkEncryption(m format.Manifest, identities []byte) error {
	switch {
	case m.Encrypted() && identities == nil:
		return errors.New("the backup is encrypted: identities to decrypt it are required")
	case !m.Encrypted() && identities != nil:
		return errors.New("the backup is not encrypted, although identities are given: " +
			"it may have been replaced. To restore a backup that is not encrypted, leave out the identities")
	}
	return nil
}

func write(file string, content io.Reader) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// remove deletes a backup, the manifest first: a backup that is partly deleted is not a backup any more. With a UID,
// it deletes only the backup with that UID, and the snapshots of unfinished attempts to create it.
func remove(ctx context.Context, s store, backup, uid string) error {
	m, err := readManifest(ctx, s, backup)
	switch {
	case errors.Is(err, errNotFound):
	case err != nil:
		return err
	case uid == "" || m.UID == uid: // with another UID, another backup has the path
		for _, file := range []string{format.ManifestFile, m.File} {
			if err := s.remove(ctx, path.Join(backup, file)); err != nil {
				return fmt.Errorf("delete %s: %w", s.location(path.Join(backup, file)), err)
			}
		}
	}
	prefix := ""
	if uid != "" {
		prefix = format.SnapshotPrefix(uid)
	}
	return removeUnfinished(ctx, s, backup, prefix, m.File)
}

// removeUnfinished deletes the snapshots whose names have a prefix, which attempts without a manifest have left. It
// keeps the file except, the snapshot of the manifest.
func removeUnfinished(ctx context.Context, s store, backup, prefix, except string) error {
	files, err := s.find(ctx, backup)
	if err != nil {
		return fmt.Errorf("list %s: %w", s.location(backup), err)
	}
	for _, file := range files {
		name := path.Base(file)
		if path.Dir(file) != backup || name == except || !strings.HasPrefix(name, prefix) ||
			!format.IsSnapshot(strings.TrimSuffix(name, partialSuffix)) {
			continue
		}
		if err := s.remove(ctx, file); err != nil {
			return fmt.Errorf("delete %s: %w", s.location(file), err)
		}
	}
	return nil
}

// entry is a backup in the list.
type entry struct {
	Path     string          `json:"path"`
	Manifest format.Manifest `json:"manifest"`
}

// list returns the complete backups, oldest first. It reports and skips files that are not manifests: a damaged file,
// or a file of another program that uses the bucket, must not hide the backups.
func list(ctx context.Context, s store, logf func(format string, args ...any)) ([]entry, error) {
	files, err := s.find(ctx, ".")
	if err != nil {
		return nil, err
	}
	entries := []entry{}
	for _, file := range files {
		if path.Base(file) != format.ManifestFile {
			continue
		}
		m, err := readManifest(ctx, s, path.Dir(file))
		if errors.Is(err, errNotFound) {
			continue // the backup has been deleted since
		}
		if errors.Is(err, format.ErrManifest) {
			logf("Skipped %s: %s", s.location(file), err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.location(file), err)
		}
		entries = append(entries, entry{path.Dir(file), m.Manifest})
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		return cmp.Or(a.Manifest.Created.Compare(b.Manifest.Created), cmp.Compare(a.Path, b.Path))
	})
	return entries, nil
}
