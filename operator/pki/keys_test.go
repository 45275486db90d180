package pki_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"slices"
	"testing"

	"quorate.dev/operator/pki"
)

// TestRestoredKeys checks that tokens of all keys stay valid after the restore of a backup that was created during a
// rotation and contains several public keys.
func TestRestoredKeys(t *testing.T) {
	former, err := pki.NewServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	next, err := pki.NewServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	for name, stored := range map[string]pki.Keys{
		"single":   {Signer: former},
		"next":     pki.Keys{Signer: former}.Add(next),
		"previous": pki.Keys{Signer: former}.Add(next).Promote(),
	} {
		t.Run(name, func(t *testing.T) {
			backup := pki.Pair{Certificate: stored.Verifying(), Key: stored.Signer.Key}
			restored := pki.ParseKeys(pki.RestoredKeys(backup).Data())
			if string(restored.Signer.Certificate) != string(stored.Signer.Certificate) ||
				string(restored.Signer.Key) != string(stored.Signer.Key) {
				t.Error("another key signs after the restore")
			}
			got, want := pki.KeyIDs(restored.Verifying()), pki.KeyIDs(stored.Verifying())
			if !slices.Equal(got, want) {
				t.Errorf("accepted keys after the restore: %v, want %v", got, want)
			}
			if dropped := restored.Drop(); len(pki.KeyIDs(dropped.Verifying())) != 1 {
				t.Error("the resumed rotation does not drop the other keys")
			}
		})
	}
}

// ellipticKey returns a key of another type than the keys that the operator creates, in PKCS 8.
func ellipticKey(t *testing.T) pki.Pair {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	return pki.Pair{
		Certificate: pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: public}),
		Key:         pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}),
	}
}

// TestKeysCheck checks keys from users' Secrets.
func TestKeysCheck(t *testing.T) {
	first, err := pki.NewServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	second, err := pki.NewServiceAccountKey()
	if err != nil {
		t.Fatal(err)
	}
	curve := ellipticKey(t)
	const (
		mismatch  = "service-account.key does not match a key in service-account.pub"
		noPrivate = "service-account.key is not a PEM-encoded private key"
		noPublic  = "service-account.pub has no PEM-encoded public key"
	)
	for name, c := range map[string]struct {
		keys pki.Keys
		want string // "" for usable keys
	}{
		"valid":               {pki.Keys{Signer: first}, ""},
		"during a rotation":   {pki.Keys{Signer: first}.Add(second), ""},
		"after the promotion": {pki.Keys{Signer: first}.Add(second).Promote(), ""},
		"elliptic curve":      {pki.Keys{Signer: curve}, ""},
		"another public key":  {pki.Keys{Signer: pki.Pair{Certificate: second.Certificate, Key: first.Key}}, mismatch},
		"another key on a curve": {
			pki.Keys{Signer: pki.Pair{Certificate: ellipticKey(t).Certificate, Key: curve.Key}}, mismatch,
		},
		"another type of key": {pki.Keys{Signer: pki.Pair{Certificate: first.Certificate, Key: curve.Key}}, mismatch},
		"no private key":      {pki.Keys{Signer: pki.Pair{Certificate: first.Certificate}}, noPrivate},
		"no public key":       {pki.Keys{Signer: pki.Pair{Key: first.Key}}, noPublic},
	} {
		err := c.keys.Check()
		if (err == nil) != (c.want == "") || err != nil && err.Error() != c.want {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
