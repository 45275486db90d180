package backup

import (
	"errors"
	"fmt"
	"io"

	"quorate.dev/apiserver/backup/format"
)

// expectation has the values that the caller expects of a backup. A user who can write to the store can replace a
// backup with an older backup, a backup of another cluster or a forged backup, each with a consistent manifest. Only
// values that the caller got from elsewhere detect this.
type expectation struct {
	manifestSHA256 string   // SHA-256 of the manifest's file, in hexadecimal; "": unknown
	storedSHA256   string   // SHA-256 of the stored snapshot, in hexadecimal; "": unknown
	keys           []string // verification keys, any of which may have signed the manifest; empty: unknown
	unverified     bool     // the caller accepts any backup
}

// check returns an error if no value is expected and unverified is not set, or if a value is expected and unverified is
// set.
func (e expectation) check() error {
	known := e.manifestSHA256 != "" || e.storedSHA256 != "" || len(e.keys) > 0
	switch {
	case known && e.unverified:
		return errors.New("--unverified excludes --manifest-sha256, --stored-sha256 and --verification-key")
	case !known && !e.unverified:
		return errors.New("nothing is known that shows whether the backup was replaced: set --manifest-sha256 or " +
			"--verification-key, which 'quorate backup create' has printed, or --unverified to restore the stored backup " +
			"without verification")
	}
	for _, key := range e.keys {
		if err := format.VerificationKey(key).Check(); err != nil {
			return err
		}
	}
	return nil
}

// verify compares the manifest with all expected values. All of them must match. It returns the strongest kind of
// verification that was made.
func (e expectation) verify(backup string, m manifestFile) (format.Verification, error) {
	if e.unverified {
		return format.Unverified, nil
	}
	var strongest format.Verification
	if e.storedSHA256 != "" {
		if m.StoredSHA256 != e.storedSHA256 {
			return "", fmt.Errorf("the SHA-256 of its snapshot is %s, want %s", m.StoredSHA256, e.storedSHA256)
		}
		strongest = format.VerifiedBySnapshotDigest
	}
	if len(e.keys) > 0 {
		if err := m.verifySignature(backup, e.keys); err != nil {
			return "", err
		}
		strongest = format.VerifiedBySignature
	}
	if e.manifestSHA256 != "" {
		if got := format.Digest(m.text); got != e.manifestSHA256 {
			return "", fmt.Errorf("the SHA-256 of its %s is %s, want %s", format.ManifestFile, got, e.manifestSHA256)
		}
		strongest = format.VerifiedByManifestDigest
	}
	return strongest, nil
}

// verifySignature returns an error if no key in keys has signed the manifest for the path of the backup.
func (m manifestFile) verifySignature(backup string, keys []string) error {
	var errs []error
	for _, key := range keys {
		err := format.Verify(m.text, format.VerificationKey(key))
		if err == nil && m.Path != backup {
			return fmt.Errorf("it is the backup of the path %q, which was copied to %q: "+
				"if you have copied it yourself, verify it by the SHA-256 of its %s", m.Path, backup, format.ManifestFile)
		}
		if err == nil {
			return nil
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// progressStep is the minimum number of bytes between two reports of a progressReader.
const progressStep = 16 << 20

// progressReader reports how much of a file has been read. It fails when its operation is canceled.
type progressReader struct {
	io.Reader
	total    int64 // size of the file, in bytes
	log      func(format string, args ...any)
	canceled func() error

	read, reported int64
}

func (r *progressReader) Read(into []byte) (int, error) {
	if err := r.canceled(); err != nil {
		return 0, err
	}
	n, err := r.Reader.Read(into)
	r.read += int64(n)
	if r.read-r.reported >= max(progressStep, r.total/10) {
		r.reported = r.read
		r.log("Downloaded %d of %d MiB", r.read>>20, r.total>>20)
	}
	return n, err
}
