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

// readManifest returns the manifest of a backup, or errNotFound.
func readManifest(ctx context.Context, s store, backup string) (format.Manifest, error) {
	content, err := s.get(ctx, path.Join(backup, format.ManifestFile))
	if err != nil {
		return format.Manifest{}, err
	}
	defer content.Close()
	text, err := io.ReadAll(io.LimitReader(content, maxManifest))
	if err != nil {
		return format.Manifest{}, fmt.Errorf("read %s: %w", s.location(path.Join(backup, format.ManifestFile)), err)
	}
	return format.ParseManifest(text)
}

// verifyStored reads the stored file and compares it with the manifest.
func verifyStored(ctx context.Context, s store, backup string, m format.Manifest) error {
	return readStored(ctx, s, backup, m, func(r io.Reader) error {
		_, err := io.Copy(io.Discard, r)
		return err
	})
}

// readStored passes the stored file to use, and returns an error unless it is the one that the manifest describes.
func readStored(ctx context.Context, s store, backup string, m format.Manifest, use func(io.Reader) error) error {
	name := path.Join(backup, m.File)
	content, err := s.get(ctx, name)
	if err != nil {
		return fmt.Errorf("read %s: %w", s.location(name), err)
	}
	defer content.Close()
	sum := sha256.New()
	tee := io.TeeReader(content, sum)
	used := use(tee)
	if errors.Is(used, format.ErrNoIdentity) {
		return used
	}
	// Damage is reported as such, not as what it made of the content.
	if _, err := io.Copy(io.Discard, tee); err != nil {
		return fmt.Errorf("read %s: %w", s.location(name), err)
	}
	if got := hex.EncodeToString(sum.Sum(nil)); got != m.StoredSHA256 {
		return fmt.Errorf("%s is damaged: its SHA-256 is %s, the manifest has %s", s.location(name), got, m.StoredSHA256)
	}
	return used
}

// fetch downloads the snapshot of a backup to a new file in scratch, decrypts and verifies it. identities is nil if the
// caller has none.
func fetch(ctx context.Context, s store, backup, scratch string, identities []byte) (format.Manifest, string, error) {
	m, err := readManifest(ctx, s, backup)
	if errors.Is(err, errNotFound) {
		return m, "", fmt.Errorf("%s is not a complete backup: it has no %s", s.location(backup), format.ManifestFile)
	}
	if err != nil {
		return m, "", err
	}
	if m.Encrypted() && identities == nil {
		return m, "", errors.New("the backup is encrypted: identities to decrypt it are required")
	}
	file := filepath.Join(scratch, scratchFile)
	err = readStored(ctx, s, backup, m, func(r io.Reader) error {
		if m.Encrypted() {
			if r, err = format.Decrypt(r, identities); err != nil {
				return err
			}
		}
		return write(file, r)
	})
	if err != nil {
		return m, "", err
	}
	info, err := snapshot.Verify(file)
	if err == nil && info.SHA256 != m.Snapshot.SHA256 {
		err = fmt.Errorf("SHA-256 is %s, the manifest has %s", info.SHA256, m.Snapshot.SHA256)
	}
	if err != nil {
		return m, "", fmt.Errorf("verify the snapshot: %w", err)
	}
	return m, file, nil
}

func write(file string, content io.Reader) error {
	f, err := os.OpenFile(file, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(f, content)
	return errors.Join(err, f.Close())
}

// remove deletes a backup, the manifest first: a backup that is partly deleted is not a backup. With a UID, it deletes only
// the backup with that UID, and snapshots of unfinished attempts to create it.
func remove(ctx context.Context, s store, backup, uid string) error {
	m, err := readManifest(ctx, s, backup)
	switch {
	case errors.Is(err, errNotFound):
	case err != nil:
		return err
	case uid == "" || m.UID == uid: // otherwise, another backup has the path
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

// removeUnfinished deletes the snapshots with a prefix of attempts that ended without a manifest, except for that of the
// manifest.
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

// entry is a listed backup.
type entry struct {
	Path     string          `json:"path"`
	Manifest format.Manifest `json:"manifest"`
}

// list returns the complete backups, oldest first. It reports and skips files that are not manifests: one that is damaged, or
// of another program that uses the bucket, must not hide the backups.
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
			continue // deleted since
		}
		if errors.Is(err, format.ErrManifest) {
			logf("Skipped %s: %s", s.location(file), err)
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.location(file), err)
		}
		entries = append(entries, entry{path.Dir(file), m})
	}
	slices.SortStableFunc(entries, func(a, b entry) int {
		return cmp.Or(a.Manifest.Created.Compare(b.Manifest.Created), cmp.Compare(a.Path, b.Path))
	})
	return entries, nil
}
