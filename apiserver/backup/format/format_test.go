package format

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"strings"
	"testing"
	"time"

	"filippo.io/age"
)

// TestResultOfARestoreIsATerminationMessage checks that the keys of a cluster fit into the message of the pod that
// restores them: RSA keys, as kubeadm creates them, and the state of encryption at rest during a change, sealed for
// two recipients.
func TestResultOfARestoreIsATerminationMessage(t *testing.T) {
	key, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	random := make([]byte, 32)
	if _, err := rand.Read(random); err != nil {
		t.Fatal(err)
	}
	scheme := `{"resources":["secrets"],"provider":{"kind":"secretbox","name":"key1767225600000000000","secret":"` +
		base64.StdEncoding.EncodeToString(random) + `"},"created":"2026-01-01T00:00:00Z"}`
	keys := Keys{
		ServiceAccountPublic: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
		ServiceAccountPrivate: pem.EncodeToMemory(&pem.Block{
			Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(key),
		}),
		Encryption: []byte(`{"current":` + scheme + `,"previous":` + scheme + `}`),
	}
	var recipients, identities []string
	for range 2 {
		identity, err := age.GenerateX25519Identity()
		if err != nil {
			t.Fatal(err)
		}
		recipients, identities = append(recipients, identity.Recipient().String()), append(identities, identity.String())
	}
	sealed, err := Seal(keys, []byte(strings.Join(recipients, "\n")))
	if err != nil {
		t.Fatal(err)
	}
	opened, err := Open(sealed, []byte(identities[1]))
	if err != nil || !bytes.Equal(opened.ServiceAccountPrivate, keys.ServiceAccountPrivate) ||
		!bytes.Equal(opened.Encryption, keys.Encryption) {
		t.Errorf("opened %v, %v", opened, err)
	}
	hash := strings.Repeat("0", 64)
	result := Result{Location: "s3://backups/" + strings.Repeat("x", 120), Manifest: Manifest{
		FormatVersion: Version, UID: "01234567-0123-0123-0123-0123456789ab", Namespace: strings.Repeat("n", 40),
		Cluster: strings.Repeat("c", 45), Created: time.Now(), Member: "https://" + strings.Repeat("m", 120),
		File:        SnapshotFile("uid", true),
		StoredBytes: 1 << 33, StoredSHA256: hash, ServiceAccountKey: hash[:32], SealedKeys: sealed, Snapshot: Snapshot{
			SizeBytes: 1 << 33, SHA256: hash, Revision: 1 << 40, Keys: 1 << 20, Version: "3.6.0",
			EncryptionKeys: []string{"secretbox:v1:key1767225600000000000", "secretbox:v1:key1767225600000000001"},
		},
	}}
	message, err := result.Message()
	if err != nil || len(message) > maxMessage || !bytes.Contains(message, []byte("sealedKeys")) {
		t.Errorf("the message has %d bytes, and %d of sealed keys, %v: %s", len(message), len(sealed), err, message)
	}
	result.Manifest.SealedKeys = make([]byte, maxMessage)
	if message, err := result.Message(); err != nil || len(message) > maxMessage || !json.Valid(message) {
		t.Errorf("the message without keys has %d bytes, %v", len(message), err)
	}
}

// TestOpenUncompressedKeys checks that the keys of older backups can be read.
func TestOpenUncompressedKeys(t *testing.T) {
	identity, err := age.GenerateX25519Identity()
	if err != nil {
		t.Fatal(err)
	}
	var sealed bytes.Buffer
	w, err := Encrypt(&sealed, []byte(identity.Recipient().String()))
	if err != nil {
		t.Fatal(err)
	}
	text, err := json.Marshal(Keys{ServiceAccountPublic: []byte("public")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(text); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if keys, err := Open(sealed.Bytes(), []byte(identity.String())); err != nil ||
		string(keys.ServiceAccountPublic) != "public" {
		t.Errorf("%+v, %v", keys, err)
	}
}
