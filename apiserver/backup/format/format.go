// Package format defines what a backup consists of: a directory, or an S3 prefix, with a snapshot and a manifest. The
// manifest is written last: a backup without one is incomplete.
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

// SnapshotFile returns the name of the snapshot of one attempt to create the backup with a UID. Each attempt has a file of its
// own, so that attempts that run at the same time do not replace each other's.
func SnapshotFile(uid string, encrypted bool) string {
	name := SnapshotPrefix(uid) + strings.ToLower(rand.Text()[:8]) + ".db"
	if encrypted {
		name += encryptedSuffix
	}
	return name
}

// IsSnapshot reports whether a file has the name of a snapshot.
func IsSnapshot(file string) bool { return snapshotFile.MatchString(file) }

// SnapshotPrefix returns the prefix of the names of all snapshots of a UID.
func SnapshotPrefix(uid string) string {
	sum := sha256.Sum256([]byte(uid))
	return "snapshot-" + hex.EncodeToString(sum[:6]) + "-"
}

// Version of the format that this release writes. It reads no later one.
const Version = 1

// Manifest describes a backup. It contains no secret in plain text.
type Manifest struct {
	FormatVersion int       `json:"formatVersion"`
	UID           string    `json:"uid"` // identifies the attempt to create the backup
	Namespace     string    `json:"namespace,omitempty"`
	Cluster       string    `json:"cluster,omitempty"`
	Created       time.Time `json:"created"` // every write acknowledged before is in the snapshot
	Member        string    `json:"member"`  // client URL that the snapshot was taken from
	File          string    `json:"file"`
	StoredBytes   int64     `json:"storedBytes"`  // of File
	StoredSHA256  string    `json:"storedSHA256"` // of File, hexadecimal
	Snapshot      Snapshot  `json:"snapshot"`
	// ServiceAccountKey is the fingerprint of the public key of service-account tokens.
	ServiceAccountKey string `json:"serviceAccountKey,omitempty"`
	// SealedKeys are Keys, encrypted like the snapshot. Empty if the snapshot is not encrypted.
	SealedKeys []byte `json:"sealedKeys,omitempty"`
}

// Snapshot describes the etcd snapshot of a backup.
type Snapshot struct {
	SizeBytes      int64    `json:"sizeBytes"`
	SHA256         string   `json:"sha256"` // of the database, hexadecimal
	Revision       int64    `json:"revision"`
	Keys           int      `json:"keys"`
	Version        string   `json:"version"` // of the storage
	EncryptionKeys []string `json:"encryptionKeys,omitempty"`
}

// Encrypted reports whether the snapshot is encrypted.
func (m Manifest) Encrypted() bool { return strings.HasSuffix(m.File, encryptedSuffix) }

// Result is what a backup process reports in its termination message.
type Result struct {
	Location string   `json:"location"`
	Manifest Manifest `json:"manifest"`
}

// maxMessage is the size of a termination message of which the kubelet reads everything, in bytes.
const maxMessage = 4096

// Message returns the result as a termination message. It has no sealed keys if it would be too long with them: the operator
// then asks for a Secret with the service-account key.
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
		return m, fmt.Errorf("%w: its format version is %d; this release reads versions up to %d", ErrManifest, m.FormatVersion, Version)
	case !IsSnapshot(m.File):
		return m, fmt.Errorf("%w: it names an unknown file %q", ErrManifest, m.File)
	}
	return m, nil
}

// Keys are the keys without which a restored cluster does not accept the tokens of its service accounts, or cannot read what
// is encrypted at rest.
type Keys struct {
	ServiceAccountPublic  []byte `json:"serviceAccountPublic"`  // PEM
	ServiceAccountPrivate []byte `json:"serviceAccountPrivate"` // PEM
	// Encryption is the state of the operator's package encryption. Empty if the cluster has never encrypted anything.
	Encryption []byte `json:"encryption,omitempty"`
}

// ErrNoIdentity is returned if none of the identities can decrypt.
var ErrNoIdentity = errors.New("no identity matches: the backup is encrypted for other recipients")

// Seal compresses keys, so that they fit into a termination message, and encrypts them for recipients, which are in the format
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

// Open decrypts the result of Seal with identities, which are in the format of age's identity files.
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
	if first[0] == '{' { // an older backup
		if err := json.NewDecoder(text).Decode(&keys); err != nil {
			return keys, errors.New("the decrypted keys are not JSON")
		}
		return keys, nil
	}
	return decompress(text)
}

// maxKeys bounds the size of keys, in bytes.
const maxKeys = 1 << 20

// sealedKeys are Keys as strings, which compress better than JSON's base64.
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

// Encrypt returns a writer that encrypts for recipients. Closing it completes the ciphertext.
func Encrypt(out io.Writer, recipients []byte) (io.WriteCloser, error) {
	parsed, err := age.ParseRecipients(bytes.NewReader(recipients))
	if err != nil {
		return nil, fmt.Errorf("recipients: %w", err)
	}
	return age.Encrypt(out, parsed...)
}

// Decrypt returns a reader of the plaintext. It fails at the first part that is damaged.
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

// CheckIdentities returns an error unless these are identities of age.
func CheckIdentities(identities []byte) error {
	if _, err := age.ParseIdentities(bytes.NewReader(identities)); err != nil {
		return errIdentities
	}
	return nil
}

// errIdentities has no cause: errors of age may contain parts of an identity.
var errIdentities = errors.New("the identities are not those of age: lines that begin with AGE-SECRET-KEY-")

// Fingerprint returns a short hash of a PEM-encoded public key.
func Fingerprint(public []byte) string {
	if block, _ := pem.Decode(public); block != nil {
		public = block.Bytes
	}
	sum := sha256.Sum256(public)
	return hex.EncodeToString(sum[:16])
}
