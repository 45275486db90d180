package backup

import (
	"bytes"
	"context"
	"errors"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"quorate.dev/apiserver/backup/format"
	"quorate.dev/apiserver/etcd/etcdtest"
)

// newSigningKey returns a file with a key that signs backups, and its verification key.
func newSigningKey(t *testing.T) (file, public string) {
	t.Helper()
	file = filepath.Join(t.TempDir(), "key")
	var printed string
	for range 2 { // the second call reads the key
		out, err := run(t, destination{}, "key", file)
		if err != nil || printed != "" && printed != out {
			t.Fatalf("%q, then %q: %v", printed, out, err)
		}
		printed = out
	}
	return file, strings.TrimSpace(printed)
}

// files has the contents of the files of a backup by name.
type files map[string][]byte

func (d destination) read(t *testing.T, backup string) files {
	t.Helper()
	content := files{}
	for _, name := range storedFiles(t, d, backup) {
		text, err := os.ReadFile(filepath.Join(d.files, backup, name))
		if err != nil {
			t.Fatal(err)
		}
		content[name] = text
	}
	return content
}

func (d destination) replace(t *testing.T, backup string, content files) {
	t.Helper()
	directory := filepath.Join(d.files, backup)
	if err := errors.Join(os.RemoveAll(directory), os.MkdirAll(directory, 0o700)); err != nil {
		t.Fatal(err)
	}
	for name, text := range content {
		if err := os.WriteFile(filepath.Join(directory, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// edited returns files with a changed manifest.
func (f files) edited(change func(manifest []byte) []byte) files {
	copied := maps.Clone(f)
	copied[format.ManifestFile] = change(copied[format.ManifestFile])
	return copied
}

// testReplaced replaces and edits a backup like a user who can write to the storage but knows no key of the cluster.
// The recipients of encrypted backups are not secret.
func testReplaced(t *testing.T, d destination, member string, keys ageKeys) {
	t.Helper()
	own, public := newSigningKey(t)
	foreign, _ := newSigningKey(t)
	create := func(backup string, flags ...string) (format.Result, files) {
		t.Helper()
		made := mustRun(t, d, append([]string{"create", "--data-dir", member, "--path", backup}, flags...)...)
		return made, d.read(t, backup)
	}
	const target = "default/demo/monday"
	encrypted := []string{"--recipients-file", keys.recipients}
	made, good := create(target, append(encrypted, "--signing-key-file", own)...)
	_, older := create("default/demo/sunday", append(encrypted, "--signing-key-file", own)...)
	_, others := create("default/other/monday", append(encrypted, "--signing-key-file", foreign)...)
	_, unsigned := create("unsigned", encrypted...)
	_, plain := create("plain")
	_, signedPlain := create("default/demo/plain", "--signing-key-file", own)
	if string(made.VerificationKey) != public || made.ManifestSHA256 != format.Digest(good[format.ManifestFile]) {
		t.Errorf("created %+v", made)
	}

	directory := filepath.Join(t.TempDir(), "etcd")
	restore := []string{
		"restore", "--path", target, "--data-dir", directory, "--name", "demo-0", "--identities-file", keys.identities,
	}
	bySignature := append(restore[:len(restore):len(restore)], "--verification-key", public)
	byDigest := append(restore[:len(restore):len(restore)], "--manifest-sha256", made.ManifestSHA256)
	byStored := append(restore[:len(restore):len(restore)], "--stored-sha256", made.Manifest.StoredSHA256)

	swapped := maps.Clone(good)
	for name, text := range older {
		if name != format.ManifestFile {
			swapped[made.Manifest.File] = text
		}
	}
	truncated, longer := maps.Clone(good), maps.Clone(good)
	truncated[made.Manifest.File] = good[made.Manifest.File][:len(good[made.Manifest.File])/2]
	longer[made.Manifest.File] = append(bytes.Clone(good[made.Manifest.File]), "more"...)
	for name, test := range map[string]struct {
		stored files
		want   string // error of the restore by signature
	}{
		"a plain backup":                   {plain, "the signature of backup.json is not valid"},
		"a plain backup of the cluster":    {signedPlain, `it is the backup of the path "default/demo/plain"`},
		"a backup for the same recipients": {unsigned, "the signature of backup.json is not valid"},
		"an older backup of the cluster":   {older, `it is the backup of the path "default/demo/sunday"`},
		"a backup of another cluster":      {others, "has not signed this content"},
		"the snapshot of another backup":   {swapped, "is damaged"},
		"half of the snapshot":             {truncated, "is damaged"},
		"bytes after the snapshot":         {longer, "is damaged"},
		"another cluster in the manifest":  {good.edited(changing(`"uid"`, `"cluster": "other", "uid"`)), "has not signed"},
		"a cluster after the signature": {
			good.edited(changing("\"\n}\n", "\",\n  \"cluster\": \"other\"\n}\n")), "it has none",
		},
		"another path in the manifest": {older.edited(changing("sunday", "monday")), "has not signed"},
		"half of the manifest":         {good.edited(func(m []byte) []byte { return m[:len(m)/2] }), "is not a manifest"},
		"two manifests": {
			good.edited(func(m []byte) []byte { return append(bytes.Clone(m), m...) }), "is not a manifest",
		},
		"an endless manifest": {
			good.edited(func([]byte) []byte { return make([]byte, maxManifest+1) }), "is larger than",
		},
		"a file outside of the directory": {
			good.edited(changing(made.Manifest.File, "../sunday/"+made.Manifest.File)), "it names an unknown file",
		},
		"no manifest": {files{made.Manifest.File: good[made.Manifest.File]}, "is not a complete backup"},
		"no snapshot": {files{format.ManifestFile: good[format.ManifestFile]}, "not found"},
	} {
		d.replace(t, target, test.stored)
		if out, err := run(t, d, bySignature...); err == nil || !strings.Contains(err.Error(), test.want) {
			t.Errorf("%s: %q and %v, want an error with %q", name, out, err, test.want)
		}
		if out, err := run(t, d, byDigest...); err == nil {
			t.Errorf("%s: restored by the digest of the manifest: %s", name, out)
		}
	}
	d.replace(t, target, plain) // with identities, a replacement without encryption is never restored
	wantError(t, "the backup is not encrypted, although identities are given", d, append(restore, "--unverified")...)
	if left, err := filepath.Glob(directory + "*"); err != nil || len(left) > 0 {
		t.Errorf("failed restores left %q, %v", left, err)
	}

	d.replace(t, target, good)
	d.replace(t, "moved", good) // a copied backup is identified by its digest
	byDigest[2] = "moved"
	for want, args := range map[format.Verification][]string{
		format.VerifiedBySignature: bySignature, format.VerifiedByManifestDigest: byDigest,
		format.VerifiedBySnapshotDigest: byStored, format.Unverified: append(restore, "--unverified"),
	} {
		args[4] = filepath.Join(t.TempDir(), "etcd")
		restored := mustRun(t, d, args...)
		if keys := len(restored.Manifest.SealedKeys) > 0; restored.Verification != want ||
			keys == (want == format.VerifiedBySnapshotDigest) {
			t.Errorf("verified by %s with keys: %t, want %s", restored.Verification, keys, want)
		}
	}
}

func changing(old, replacement string) func([]byte) []byte {
	return func(manifest []byte) []byte { return bytes.Replace(manifest, []byte(old), []byte(replacement), 1) }
}

// TestExpectations checks that everything which the caller knows about a backup must match.
func TestExpectations(t *testing.T) {
	m := manifestFile{Manifest: format.Manifest{StoredSHA256: "abc", SealedKeys: []byte("keys")}}
	for _, test := range []struct {
		expected expectation
		want     format.Verification
	}{
		{expectation{storedSHA256: "abc"}, format.VerifiedBySnapshotDigest},
		{expectation{storedSHA256: "abc", manifestSHA256: format.Digest(nil)}, format.VerifiedByManifestDigest},
		{expectation{storedSHA256: "def", manifestSHA256: format.Digest(nil)}, ""},
		{expectation{storedSHA256: "abc", manifestSHA256: "def"}, ""},
		{expectation{unverified: true}, format.Unverified},
	} {
		if got, err := test.expected.verify("a", m); got != test.want || (err != nil) != (test.want == "") {
			t.Errorf("%+v: %s, %v", test.expected, got, err)
		}
	}
}

// TestForgedUID checks that an attempt does not accept a manifest that another user has stored with the UID of the
// operation. Otherwise the digest of that manifest would become the known one.
func TestForgedUID(t *testing.T) {
	flags := etcdtest.Flags(t)
	if _, err := etcdtest.Start(t, flags).Client().Put(t.Context(), "/registry/a", "value"); err != nil {
		t.Fatal(err)
	}
	volume := t.TempDir()
	d := destination{[]string{"--directory", volume}, volume}
	own, _ := newSigningKey(t)
	foreign, _ := newSigningKey(t)
	create := []string{"create", "--data-dir", flags.DataDirectory, "--path", "a", "--uid", "1"}
	made := mustRun(t, d, append(create, "--signing-key-file", own)...)
	if again := mustRun(t, d, append(create, "--signing-key-file", own)...); again.ManifestSHA256 != made.ManifestSHA256 {
		t.Errorf("repeated: %+v, want %+v", again, made)
	}
	wantError(t, "a manifest that this operation has not written", d, append(create, "--signing-key-file", foreign)...)
	d.replace(t, "a", d.read(t, "a").edited(changing("file:", "other:")).edited(changing(`"keys": 1`, `"keys": 2`)))
	wantError(t, "a manifest that this operation has not written", d, append(create, "--signing-key-file", own)...)
	t.Setenv(signingKeyVariable, own)
	wantError(t, "a manifest that this operation has not written", d, create...)
}

// replacing is a store in which each manifest is replaced as soon as it is written.
type replacing struct {
	store
	other []byte
}

func (r replacing) create(ctx context.Context, name string, content []byte) error {
	if err := r.store.create(ctx, name, content); err != nil {
		return err
	}
	return r.put(ctx, name, bytes.NewReader(r.other), int64(len(r.other)))
}

// TestReplacedWhileItIsStored checks that an attempt fails if the manifest is replaced by another one with the same
// UID, also without a signature.
func TestReplacedWhileItIsStored(t *testing.T) {
	d, err := openDirectory(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	c := &creation{path: "a", log: t.Logf}
	c.manifest.UID, c.manifest.File, c.manifest.FormatVersion = "1", format.SnapshotFile("1", false), format.Version
	other := c.manifest
	other.Cluster = "other"
	text, err := other.Text(nil)
	if err != nil {
		t.Fatal(err)
	}
	c.store = replacing{d, text}
	if m, err := c.complete(t.Context()); !errors.Is(err, errReplaced) {
		t.Errorf("%+v, %v", m, err)
	}
}

// TestProgressAndCancellation checks that a download reports its progress, and stops when its operation is canceled.
func TestProgressAndCancellation(t *testing.T) {
	const size = 5*progressStep + 1
	var lines []string
	ctx, cancel := context.WithCancelCause(t.Context())
	r := &progressReader{
		Reader: io.LimitReader(zeros{}, size), total: size, canceled: func() error { return context.Cause(ctx) },
		log: func(format string, _ ...any) { lines = append(lines, format) },
	}
	if n, err := io.CopyN(io.Discard, r, size-1); err != nil || len(lines) != 5 {
		t.Errorf("%d bytes, %v, %d reports", n, err, len(lines))
	}
	cause := errors.New("timed out")
	cancel(cause)
	if n, err := io.Copy(io.Discard, r); n != 0 || !errors.Is(err, cause) {
		t.Errorf("%d bytes, %v, want %v", n, err, cause)
	}
}

type zeros struct{}

func (zeros) Read(into []byte) (int, error) { return len(into), nil }

// TestCanceledRestore checks that a canceled restore reports the reason and leaves no files.
func TestCanceledRestore(t *testing.T) {
	flags := etcdtest.Flags(t)
	if _, err := etcdtest.Start(t, flags).Client().Put(t.Context(), "/registry/a", "value"); err != nil {
		t.Fatal(err)
	}
	volume := t.TempDir()
	d := destination{[]string{"--directory", volume}, volume}
	mustRun(t, d, "create", "--data-dir", flags.DataDirectory, "--path", "a")
	directory := filepath.Join(t.TempDir(), "etcd")
	wantError(t, "timed out after 1ns", d, "restore", "--path", "a", "--data-dir", directory, "--unverified",
		"--timeout", "1ns")
	if left, err := filepath.Glob(directory + "*"); err != nil || len(left) > 0 {
		t.Errorf("left %q, %v", left, err)
	}
}
