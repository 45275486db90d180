package serviceaccount_test

import (
	"bytes"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"k8s.io/utils/clock"

	"quorate.dev/apiserver/authentication/jwt/jwttest"
	"quorate.dev/apiserver/authentication/serviceaccount"
	"quorate.dev/apiserver/config"
)

// TestExternalSigner checks the preparation with a signer: the lifetimes that it limits, and documents that follow its
// keys. test/differential compares its tokens with kube-apiserver's.
func TestExternalSigner(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s.sock")
	signer := must[*jwttest.Signer](t)(jwttest.StartSigner(socket, 7200))
	t.Cleanup(signer.Close)
	c := config.Authentication{ServiceAccountIssuers: []string{issuer}, ServiceAccountSigningEndpoint: socket}

	c.ServiceAccountMaxLifetime = 3 * time.Hour
	if _, err := serviceaccount.New(t.Context(), c, clock.RealClock{}); err == nil ||
		!strings.Contains(err.Error(), "3h0m0s > 2h0m0s") {
		t.Errorf("a longer lifetime than the signer's: %v", err)
	}
	c.ServiceAccountMaxLifetime = time.Hour
	tokens := must[*serviceaccount.Tokens](t)(serviceaccount.New(t.Context(), c, clock.RealClock{}))
	t.Cleanup(tokens.Close)
	if tokens.Request(nil) == nil {
		t.Error("no tokens are issued")
	}
	metadata := must[serviceaccount.Metadata](t)(tokens.Metadata("10.0.0.1:6443"))
	for _, key := range []string{"signer-1", "signer-2"} {
		eventually(t, key+" is published", func() bool {
			body, _ := metadata.Keys()
			return bytes.Contains(body, []byte(key))
		})
		if err := signer.Rotate(1); err != nil {
			t.Fatal(err)
		}
	}
	c.ServiceAccountSigningEndpoint = filepath.Join(t.TempDir(), "s.sock")
	hasty := must[*jwttest.Signer](t)(jwttest.StartSigner(c.ServiceAccountSigningEndpoint, 60))
	t.Cleanup(hasty.Close)
	if _, err := serviceaccount.New(t.Context(), c, clock.RealClock{}); err == nil ||
		!strings.Contains(err.Error(), "less than acceptable") {
		t.Errorf("a lifetime of a minute: %v", err)
	}
}
