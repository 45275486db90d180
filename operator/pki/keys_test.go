package pki_test

import (
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
