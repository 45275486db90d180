package servingcert

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	clocktesting "k8s.io/utils/clock/testing"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"quorate.dev/operator/pki"
)

var (
	start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	leaf  = pki.Leaf{CommonName: "metrics", DNSNames: []string{"metrics.ns.svc"}, Server: true}
)

func newKeeper(c client.Client, clock *clocktesting.FakeClock) *Keeper {
	return &Keeper{
		Client: c, Leaf: leaf, Clock: clock, Logger: logr.Discard(),
		Secret: &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
			Name: "metrics", Namespace: "ns", Labels: map[string]string{"managed-by": "operator"},
		}},
	}
}

func stored(t *testing.T, c client.Client) *corev1.Secret {
	t.Helper()
	secret := &corev1.Secret{}
	if err := c.Get(t.Context(), client.ObjectKey{Namespace: "ns", Name: "metrics"}, secret); err != nil {
		t.Fatal(err)
	}
	return secret
}

// served returns the certificate that the keeper serves after a refresh.
func served(t *testing.T, k *Keeper) []byte {
	t.Helper()
	if err := k.refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	certificate, err := k.GetCertificate(nil)
	if err != nil {
		t.Fatal(err)
	}
	return certificate.Certificate[0]
}

func TestCreateShareAndRenew(t *testing.T) {
	clock := clocktesting.NewFakeClock(start)
	c := fake.NewClientBuilder().Build()
	first, second := newKeeper(c, clock), newKeeper(c, clock)
	if _, err := first.GetCertificate(nil); err == nil {
		t.Error("GetCertificate() before the first refresh: no error")
	}
	created := served(t, first)
	if !bytes.Equal(served(t, second), created) {
		t.Error("two keepers of one Secret serve different certificates")
	}
	authority := stored(t, c).Data[AuthorityKey]
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(authority)
	parsed, err := x509.ParseCertificate(created)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := parsed.Verify(
		x509.VerifyOptions{Roots: roots, DNSName: "metrics.ns.svc", CurrentTime: start},
	); err != nil {
		t.Errorf("the certificate does not verify: %v", err)
	}

	clock.Step(pki.LeafLifetime / 2)
	if !bytes.Equal(served(t, first), created) {
		t.Error("renewed with half of the lifetime remaining")
	}
	clock.Step(pki.LeafLifetime / 5)
	renewed := served(t, second)
	if bytes.Equal(renewed, created) || !bytes.Equal(served(t, first), renewed) {
		t.Error("not renewed, or not by all keepers, with 30% of the lifetime remaining")
	}
	if !bytes.Equal(stored(t, c).Data[AuthorityKey], authority) {
		t.Error("the renewal of the certificate replaced its authority")
	}
}

func TestForeignSecretIsNotWritten(t *testing.T) {
	authority, err := pki.NewAuthority("foreign", pki.AuthorityLifetime, start)
	if err != nil {
		t.Fatal(err)
	}
	foreign := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: "metrics", Namespace: "ns"},
		Data:       map[string][]byte{corev1.TLSCertKey: authority.Certificate, corev1.TLSPrivateKeyKey: authority.Key},
	}
	c := fake.NewClientBuilder().WithObjects(foreign).Build()
	before := stored(t, c).ResourceVersion
	got := served(t, newKeeper(c, clocktesting.NewFakeClock(start.Add(20*pki.LeafLifetime))))
	pair, err := tls.X509KeyPair(authority.Certificate, authority.Key)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, pair.Certificate[0]) || stored(t, c).ResourceVersion != before {
		t.Error("a Secret of another owner was not served as it is, or was written")
	}
}

func TestConcurrentWriteIsAConflict(t *testing.T) {
	c := fake.NewClientBuilder().Build()
	k := newKeeper(c, clocktesting.NewFakeClock(start))
	served(t, k)
	stale, concurrent := stored(t, c), stored(t, c)
	if err := k.write(t.Context(), concurrent); err != nil {
		t.Fatal(err)
	}
	if err := k.write(t.Context(), stale); !apierrors.IsConflict(err) {
		t.Errorf("writing an outdated Secret: error %v, want a conflict", err)
	}
}

func TestBundleIsReplaced(t *testing.T) {
	valid, reason, err := bundle(nil).renewed(leaf, start)
	if err != nil || reason == "" {
		t.Fatalf("a missing bundle: reason %q, error %v", reason, err)
	}
	if _, reason, err := valid.renewed(leaf, start); err != nil || reason != "" {
		t.Errorf("a valid bundle: reason %q, error %v", reason, err)
	}
	other := leaf
	other.DNSNames = []string{"other.ns.svc"}
	if _, reason, _ := valid.renewed(other, start); reason == "" {
		t.Error("a bundle with other DNS names is not replaced")
	}
	corrupted := bundle{AuthorityKey: []byte("x"), authorityPrivateKey: valid[authorityPrivateKey]}
	next, reason, err := corrupted.renewed(leaf, start)
	if err != nil || reason == "" || bytes.Equal(next[AuthorityKey], valid[AuthorityKey]) {
		t.Errorf("a corrupted authority: reason %q, error %v", reason, err)
	}
	expired, reason, err := valid.renewed(leaf, start.Add(pki.AuthorityLifetime))
	if err != nil || reason == "" || bytes.Equal(expired[AuthorityKey], valid[AuthorityKey]) {
		t.Errorf("an expired authority: reason %q, error %v", reason, err)
	}
}

func TestInMemory(t *testing.T) {
	k := &Keeper{Leaf: leaf, Clock: clocktesting.NewFakeClock(start), Logger: logr.Discard()}
	if !bytes.Equal(served(t, k), served(t, k)) {
		t.Error("a keeper without a Secret serves another certificate after each refresh")
	}
}
