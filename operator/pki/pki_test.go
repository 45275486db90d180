package pki

import (
	"crypto/x509"
	"encoding/pem"
	"net"
	"strings"
	"testing"
	"time"
)

var start = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func authority(t *testing.T, name string) Authority {
	t.Helper()
	a, err := NewAuthority(name, AuthorityLifetime, start)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

var serving = Leaf{
	CommonName: "kube-apiserver", DNSNames: []string{"demo.ns.svc", "*.demo-members.ns.svc"},
	Addresses: []net.IP{net.IPv4(127, 0, 0, 1)}, Server: true,
}

func certificate(t *testing.T, pair Pair) *x509.Certificate {
	t.Helper()
	block, _ := pem.Decode(pair.Certificate)
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestLeafIsTrustedInItsDomainOnly(t *testing.T) {
	domains := map[string]Authority{
		"serving": authority(t, "serving"), "client": authority(t, "client"), "etcd-peer": authority(t, "etcd-peer"),
	}
	for signer, a := range domains {
		leaf := serving
		leaf.Client = signer == "client"
		pair, err := a.Issue(leaf, start)
		if err != nil {
			t.Fatal(err)
		}
		for trustedDomain, b := range domains {
			pool := x509.NewCertPool()
			pool.AppendCertsFromPEM(b.Certificate)
			for _, name := range []string{"demo.ns.svc", "demo-7.demo-members.ns.svc", "127.0.0.1"} {
				_, err := certificate(t, pair).Verify(x509.VerifyOptions{
					Roots: pool, DNSName: name, CurrentTime: start.Add(time.Hour),
				})
				if (err == nil) != (signer == trustedDomain) {
					t.Errorf("a leaf of %s, verified for %s by one who trusts %s: %v", signer, name, trustedDomain, err)
				}
			}
		}
	}
}

func TestUsagesAreSeparate(t *testing.T) {
	a := authority(t, "client")
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(a.Certificate)
	pair, err := a.Issue(Leaf{CommonName: "admin", Organizations: []string{"system:masters"}, Client: true}, start)
	if err != nil {
		t.Fatal(err)
	}
	for usage, want := range map[x509.ExtKeyUsage]bool{
		x509.ExtKeyUsageClientAuth: true, x509.ExtKeyUsageServerAuth: false,
	} {
		_, err := certificate(t, pair).Verify(x509.VerifyOptions{
			Roots: pool, KeyUsages: []x509.ExtKeyUsage{usage}, CurrentTime: start,
		})
		if (err == nil) != want {
			t.Errorf("usage %v: %v", usage, err)
		}
	}
}

func TestEvaluate(t *testing.T) {
	a, other := authority(t, "serving"), authority(t, "serving")
	pair, err := a.Issue(serving, start)
	if err != nil {
		t.Fatal(err)
	}
	foreign, err := other.Issue(serving, start)
	if err != nil {
		t.Fatal(err)
	}
	further := serving
	further.DNSNames = append([]string{"api.example.org"}, serving.DNSNames...)
	reordered := serving
	reordered.DNSNames = []string{serving.DNSNames[1], serving.DNSNames[0]}
	address := serving
	address.Addresses = nil

	renamed, regrouped, both := serving, serving, serving
	renamed.CommonName = "other"
	regrouped.Organizations = []string{"system:masters"}
	both.Client = true

	for name, c := range map[string]struct {
		pair Pair
		leaf Leaf
		now  time.Time
		want string // part of the reason; "" for none
	}{
		"fresh":                {pair, serving, start, ""},
		"order does not count": {pair, reordered, start, ""},
		"before renewal":       {pair, serving, start.Add(LeafLifetime * 66 / 100), ""},
		"renewal due":          {pair, serving, start.Add(LeafLifetime * 67 / 100), "renewal was due"},
		"expired":              {pair, serving, start.Add(2 * LeafLifetime), "renewal was due"},
		"by a clock ahead":     {pair, serving, start.Add(-time.Hour), "not valid before"},
		"by another clock":     {pair, serving, start.Add(-time.Minute), ""},
		"another name wanted":  {pair, further, start, "DNS names"},
		"no address wanted":    {pair, address, start, "addresses"},
		"common name wanted":   {pair, renamed, start, "common name"},
		"organization wanted":  {pair, regrouped, start, "organizations"},
		"client usage wanted":  {pair, both, start, "usages"},
		"another authority":    {foreign, serving, start, "another authority"},
		"keys mixed up":        {Pair{pair.Certificate, foreign.Key}, serving, start, "does not match"},
		"empty":                {Pair{}, serving, start, "unreadable"},
	} {
		got := a.Evaluate(c.pair, c.leaf, c.now)
		if (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q, want %q", name, got, c.want)
		}
	}
}

func TestLeafDoesNotOutliveItsAuthority(t *testing.T) {
	a := authority(t, "serving")
	pair, err := a.Issue(serving, start.Add(AuthorityLifetime-time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	if got := certificate(t, pair).NotAfter; got.After(a.Expiry()) {
		t.Errorf("leaf expires at %v, its authority at %v", got, a.Expiry())
	}
}

func TestReasonsHoldNoSecrets(t *testing.T) {
	a := authority(t, "serving")
	reason := a.Evaluate(Pair{Certificate: a.Certificate, Key: []byte("hunter2")}, serving, start)
	if strings.Contains(reason, "hunter2") {
		t.Errorf("the reason shows the key: %s", reason)
	}
}
