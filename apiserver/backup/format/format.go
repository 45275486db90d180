// Package format defines the files of a backup: a directory, or an S3 prefix, with a snapshot and a manifest. The
// manifest is written last; a backup without a manifest is incomplete.
package format

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"
	"time"

	"filippo.io/age"
)

// ManifestFile is the name of the manifest.
const ManifestFile = "backup.json"

const encryptedSuffix = ".age"

var snapshotFile = regexp.MustCompile(`^snapshot(-[0-9a-z]+-[0-9a-z]+)?\.db(\.age)?$`)

// SnapshotFile returns the name for the snapshot of one attempt to create the backup with a UID. Each call returns
// another name, so that concurrent attempts do not overwrite each other's snapshots.
func SnapshotFile(uid string, encrypted bool) string {
	name := SnapshotPrefix(uid) + strings.ToLower(rand.Text()[:8]) + ".db"
	if encrypted {
		name += encryptedSuffix
	}
	return name
}

// IsSnapshot reports whether a file has the name of a snapshot.
func IsSnapshot(file string) bool { return snapshotFile.MatchString(file) }

// SnapshotPrefix returns the prefix of the names of the snapshots of all attempts with a UID.
func SnapshotPrefix(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	return "snapshot-" + hex.EncodeToString(sum[:6]) + "-"
}

// Version is the version of the format that this release writes. It reads no later version.
const Version = 1

// Manifest describes a backup. It contains no secret in plain text.
type Manifest struct {
	FormatVersion int    `json:"formatVersion"`
	UID           string `json:"uid"` // identifies the creation of the backup, with all of its attempts
	Namespace     string `json:"namespace,omitempty"`
	Cluster       string `json:"cluster,omitempty"`
	// Path is the directory of the backup in its store, so that a signed manifest is not accepted elsewhere. Empty in
	// backups of earlier releases.
	Path         string    `json:"path,omitempty"`
	Created      time.Time `json:"created"` // the snapshot contains every write that was acknowledged before this time
	Member       string    `json:"member"`  // client URL of the member that the snapshot was taken from
	File         string    `json:"file"`
	StoredBytes  int64     `json:"storedBytes"`  // size of File
	StoredSHA256 string    `json:"storedSHA256"` // SHA-256 of File, in hexadecimal
	Snapshot     Snapshot  `json:"snapshot"`
	// ServiceAccountKey is the fingerprint of the public key of service-account tokens.
	ServiceAccountKey string `json:"serviceAccountKey,omitempty"`
	// SealedKeys is the JSON of Keys, compressed and encrypted for the same recipients as the snapshot. Empty if the
	// snapshot is not encrypted.
	SealedKeys []byte `json:"sealedKeys,omitempty"`
}

// Snapshot describes the etcd snapshot of a backup.
type Snapshot struct {
	SizeBytes      int64    `json:"sizeBytes"`
	SHA256         string   `json:"sha256"` // SHA-256 of the database, in hexadecimal
	Revision       int64    `json:"revision"`
	Keys           int      `json:"keys"`
	Version        string   `json:"version"` // version of etcd's storage
	EncryptionKeys []string `json:"encryptionKeys,omitempty"`
}

// Encrypted reports whether the snapshot is encrypted.
func (m Manifest) Encrypted() bool { return strings.HasSuffix(m.File, encryptedSuffix) }

// Result is the report of a backup process, which it writes as its termination message.
type Result struct {
	Location string   `json:"location"`
	Manifest Manifest `json:"manifest"`
	// ManifestSHA256 is the digest of the manifest's file, in hexadecimal. Empty in results of earlier releases.
	ManifestSHA256 string `json:"manifestSHA256,omitempty"`
	// VerificationKey is the public key that verifies the signature of the created manifest. Empty: the manifest is not
	// signed.
	VerificationKey VerificationKey `json:"verificationKey,omitempty"`
	// Verification is the way in which a backup was verified before it was restored. Empty in results of releases that
	// did not verify backups.
	Verification Verification `json:"verification,omitempty"`
}

// Verification names the evidence that a backup is the expected one.
type Verification string

// The kinds of verification.
const (
	// VerifiedByManifestDigest means that the manifest has a known digest.
	VerifiedByManifestDigest Verification = "ManifestDigest"
	// VerifiedBySignature means that a known key has signed the manifest, for the path of the backup.
	VerifiedBySignature Verification = "Signature"
	// VerifiedBySnapshotDigest means that the stored snapshot has a known digest. The manifest is not verified.
	VerifiedBySnapshotDigest Verification = "SnapshotDigest"
	// Unverified means that the backup was not verified, which the user has accepted.
	Unverified Verification = "None"
)

// maxMessage is the maximum size of a termination message that the kubelet reads completely, in bytes.
const maxMessage = 4096

// Message returns the result as a termination message. It leaves out the sealed keys if the message would be too long
// with them; the operator then requires a Secret with the service-account key.
func (r Result) Message() ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil || len(text) <= maxMessage {
		return text, err
	}
	r.Manifest.SealedKeys = nil
	return json.Marshal(r)
}

// ErrManifest is returned for a file that is not a manifest of this format.
var ErrManifest = errors.New(ManifestFile + " is not a manifest of a backup")

// ParseManifest parses a manifest of this format.
func ParseManifest(text []byte) (Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return m, fmt.Errorf("%w: %w", ErrManifest, err)
	}
	switch {
	case m.FormatVersion < 1 || m.FormatVersion > Version:
		return m, fmt.Errorf("%w: its format version is %d; this release reads versions up to %d",
			ErrManifest, m.FormatVersion, Version)
	case !IsSnapshot(m.File):
		return m, fmt.Errorf("%w: it names an unknown file %q", ErrManifest, m.File)
	}
	return m, nil
}

// Keys has the keys that a restored cluster needs to accept the existing tokens of its service accounts and to read the
// values that are encrypted at rest.
type Keys struct {
	ServiceAccountPublic  []byte `json:"serviceAccountPublic"`  // PEM
	ServiceAccountPrivate []byte `json:"serviceAccountPrivate"` // PEM
	// Encryption is the state of the operator's package encryption. Empty if the cluster has never encrypted
	// anything.
	Encryption []byte `json:"encryption,omitempty"`
}

// ErrNoIdentity is returned if the backup is not encrypted for any of the given identities.
var ErrNoIdentity = errors.New("no identity matches: the backup is encrypted for other recipients")

// Seal compresses keys, so that they fit into a termination message, and encrypts them for recipients in the format
// of age's recipients files.
func Seal(keys Keys, recipients []byte) ([]byte, error) {
	text, err := json.Marshal(sealedKeys{
		string(keys.ServiceAccountPublic), string(keys.ServiceAccountPrivate), string(keys.Encryption),
	})
	if err != nil {
		return nil, err
	}
	var out bytes.Buffer
	w, err := Encrypt(&out, recipients)
	if err != nil {
		return nil, err
	}
	compressed, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	if _, err := compressed.Write(text); err != nil {
		return nil, err
	}
	if err := errors.Join(compressed.Close(), w.Close()); err != nil {
		return nil, err
	}
	return out.Bytes(), nil
}

// Open decrypts the result of Seal with identities in the format of age's identity files.
func Open(sealed, identities []byte) (Keys, error) {
	var keys Keys
	r, err := Decrypt(bytes.NewReader(sealed), identities)
	if err != nil {
		return keys, err
	}
	text := bufio.NewReader(io.LimitReader(r, maxKeys))
	first, err := text.Peek(1)
	if err != nil {
		return keys, fmt.Errorf("decrypt the keys: %w", err)
	}
	if first[0] == '{' { // keys of an earlier release, which did not compress them
		if err := json.NewDecoder(text).Decode(&keys); err != nil {
			return keys, errors.New("the decrypted keys are not JSON")
		}
		return keys, nil
	}
	return decompress(text)
}

// maxKeys bounds the size of keys, in bytes.
const maxKeys = 1 << 20

// sealedKeys is Keys with strings, which compress better than JSON's base64.
type sealedKeys struct {
	Public     string `json:"serviceAccountPublic"`
	Private    string `json:"serviceAccountPrivate"`
	Encryption string `json:"encryption,omitempty"`
}

func decompress(in io.Reader) (Keys, error) {
	r, err := gzip.NewReader(in)
	if err != nil {
		return Keys{}, errors.New("the decrypted keys are not compressed")
	}
	var keys sealedKeys
	if err := json.NewDecoder(io.LimitReader(r, maxKeys)).Decode(&keys); err != nil {
		return Keys{}, errors.New("the decrypted keys are not JSON")
	}
	return Keys{[]byte(keys.Public), []byte(keys.Private), []byte(keys.Encryption)}, nil
}

// Encrypt returns a writer that encrypts for recipients. Closing the writer completes the ciphertext.
func Encrypt(out io.Writer, recipients []byte) (io.WriteCloser, error) {
	parsed, err := age.ParseRecipients(bytes.NewReader(recipients))
	if err != nil {
		return nil, fmt.Errorf("recipients: %w", err)
	}
	return age.Encrypt(out, parsed...)
}

// Decrypt returns a reader of the plaintext. Reading fails at the first chunk that is damaged.
func Decrypt(in io.Reader, identities []byte) (io.Reader, error) {
	parsed, err := age.ParseIdentities(bytes.NewReader(identities))
	if err != nil {
		return nil, errIdentities
	}
	out, err := age.Decrypt(in, parsed...)
	if mismatch := (*age.NoIdentityMatchError)(nil); errors.As(err, &mismatch) {
		return nil, ErrNoIdentity
	}
	return out, err
}

// CheckIdentities returns an error if a text does not consist of identities of age.
func CheckIdentities(identities []byte) error {
	if _, err := age.ParseIdentities(bytes.NewReader(identities)); err != nil {
		return errIdentities
	}
	return nil
}

// errIdentities does not wrap the parser's error, because errors of age may contain parts of an identity.
var errIdentities = errors.New("the identities are not those of age: lines that begin with AGE-SECRET-KEY-")

// Fingerprint returns a short hash of a PEM-encoded public key.
func Fingerprint(public []byte) string {
	if block, _ := pem.Decode(public); block != nil {
		public = block.Bytes
	}
	sum := sha256.Sum256(public)
	return hex.EncodeToString(sum[:16])
}
