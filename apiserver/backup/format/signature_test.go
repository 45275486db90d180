package format

import (
	"bytes"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"strings"
	"testing"
	"time"
)

func newKey(t testing.TB) (ed25519.PrivateKey, VerificationKey) {
	t.Helper()
	text, err := NewSigningKey()
	if err != nil {
		t.Fatal(err)
	}
	key, err := ParseSigningKey(text)
	if err != nil {
		t.Fatal(err)
	}
	return key, VerificationKeyOf(key)
}

func exampleManifest() Manifest {
	return Manifest{
		FormatVersion: Version, UID: "uid", Namespace: "default", Cluster: "demo", Path: "default/demo/monday",
		Created: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), Member: "https://demo-0:2379", File: SnapshotFile("uid", true),
		StoredBytes: 7, StoredSHA256: Digest([]byte("stored")), ServiceAccountKey: "0123", SealedKeys: []byte("sealed"),
		Snapshot: Snapshot{SizeBytes: 5, SHA256: Digest([]byte("plain")), Revision: 3, Keys: 2, Version: "3.6.0"},
	}
}

// TestSignatureCoversEveryByte checks that a signed manifest is valid JSON for every release, and that no change of
// its bytes is accepted: not a changed, removed or added byte, nor a field before or after the signature.
func TestSignatureCoversEveryByte(t *testing.T) {
	key, public := newKey(t)
	_, foreign := newKey(t)
	text, err := exampleManifest().Text(key)
	if err != nil {
		t.Fatal(err)
	}
	if err := Verify(text, public); err != nil {
		t.Errorf("%v: %s", err, text)
	}
	if m, err := ParseManifest(text); err != nil || m.Path != "default/demo/monday" || !json.Valid(text) {
		t.Errorf("%v: %s", err, text)
	}
	if err := Verify(text, foreign); !errors.Is(err, ErrSignature) {
		t.Errorf("another key has signed it: %v", err)
	}
	expectInvalid := func(changed []byte, what string) {
		t.Helper()
		if err := Verify(changed, public); !errors.Is(err, ErrSignature) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for i := range text {
		changed := bytes.Clone(text)
		changed[i] ^= 1
		expectInvalid(changed, "a changed byte")
		expectInvalid(append(bytes.Clone(text[:i]), text[i+1:]...), "a removed byte")
		expectInvalid(text[:i], "a truncated manifest")
	}
	for what, changed := range map[string]string{
		"white space before the manifest": " " + string(text),
		"white space after the manifest":  string(text) + "\n",
		"a second manifest":               string(text) + string(text),
		"a field after the signature":     strings.Replace(string(text), "\"\n}\n", "\",\n  \"cluster\": \"other\"\n}\n", 1),
		"a field before the others":       "{\n  \"cluster\": \"other\"," + string(text[1:]),
	} {
		expectInvalid([]byte(changed), what)
	}
	unsigned, err := exampleManifest().Text(nil)
	if err != nil {
		t.Fatal(err)
	}
	expectInvalid(unsigned, "an unsigned manifest")
	if m, err := ParseManifest(unsigned); err != nil || m.Cluster != "demo" {
		t.Errorf("%+v, %v", m, err)
	}
}

func TestKeys(t *testing.T) {
	_, public := newKey(t)
	if err := public.Check(); err != nil {
		t.Error(err)
	}
	for _, wrong := range []VerificationKey{
		"", "ed25519:", public[1:], public[:len(public)-1], public + "A", "ed25519:" + public, public + "\n",
	} {
		if err := wrong.Check(); err == nil {
			t.Errorf("accepted %q", wrong)
		}
		if err := Verify(nil, wrong); err == nil || errors.Is(err, ErrSignature) {
			t.Errorf("%q: %v", wrong, err)
		}
	}
	const other = "-----BEGIN PRIVATE KEY-----\naHVudGVyMg==\n-----END PRIVATE KEY-----\n"
	for _, wrong := range []string{"", "hunter2", other} {
		if _, err := ParseSigningKey([]byte(wrong)); !errors.Is(err, errSigningKey) ||
			strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%q: %v", wrong, err)
		}
	}
}

// FuzzManifest parses arbitrary manifests, which every user who can write to the storage can store. A manifest that
// is accepted names only a snapshot in the directory of the backup, is signed for no key that has not signed it, and
// stays the same when it is written, signed and parsed again.
func FuzzManifest(f *testing.F) {
	key, public := newKey(f)
	_, foreign := newKey(f)
	for _, signer := range []ed25519.PrivateKey{nil, key} {
		text, err := exampleManifest().Text(signer)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(text)
		f.Add(text[:len(text)/2])
	}
	f.Add([]byte(`{"formatVersion":1,"file":"../../etc/passwd"}`))
	f.Add(
		[]byte(`{"formatVersion":1,"file":"snapshot.db","FILE":"snapshot-0-0.db.age","storedBytes":-1,"created":"0000-01-01T00:00:00Z"}`),
	)
	f.Add(
		[]byte(`{"formatVersion":1e0,"file":"snapshot.db","sealedKeys":"AAAA","snapshot":{"encryptionKeys":["\u001b]0;x\u0007"]}}`),
	)
	f.Fuzz(func(t *testing.T, text []byte) {
		if Verify(text, foreign) == nil {
			t.Error("a key that has signed nothing verifies the manifest")
		}
		m, err := ParseManifest(text)
		if err != nil {
			return
		}
		if strings.ContainsAny(m.File, "/\\\x00") || !IsSnapshot(m.File) {
			t.Errorf("the file is %q", m.File)
		}
		signed, err := m.Text(key)
		if err != nil {
			return // JSON cannot represent the time
		}
		if err := Verify(signed, public); err != nil {
			t.Errorf("%v: %s", err, signed)
		}
		again, err := ParseManifest(signed)
		if err != nil {
			t.Fatal(err)
		}
		if repeated, err := again.Text(key); err != nil || !bytes.Equal(repeated, signed) {
			t.Errorf("%s, %v, want %s", repeated, err, signed)
		}
	})
}
