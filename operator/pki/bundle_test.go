package pki

import (
	"crypto/x509"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"
)

// verify verifies the leaf in pair for a client that trusts the given certificates, with the certificates that follow
// the leaf as intermediates.
func verify(t *testing.T, pair Pair, trusted []byte) error {
	t.Helper()
	chain, err := cert.ParseCertsPEM(pair.Certificate)
	if err != nil {
		t.Fatal(err)
	}
	options := x509.VerifyOptions{
		Roots: x509.NewCertPool(), Intermediates: x509.NewCertPool(), CurrentTime: start, DNSName: "demo.ns.svc",
	}
	options.Roots.AppendCertsFromPEM(trusted)
	for _, intermediate := range chain[1:] {
		options.Intermediates.AddCert(intermediate)
	}
	_, err = chain[0].Verify(options)
	return err
}

// TestEveryStageIsAcceptedByItsNeighbours checks the leaves of each stage against the trusted certificates of the
// stages before and after it, because replicas and clients enter a stage at different times.
func TestEveryStageIsAcceptedByItsNeighbours(t *testing.T) {
	t.Run("another name", func(t *testing.T) { testStages(t, "serving@2") })
	t.Run("same name", func(t *testing.T) { testStages(t, "serving") }) // cert-manager renews authorities like this
}

func testStages(t *testing.T, successor string) {
	initial := Bundle{Signer: authority(t, "serving")}
	both, err := initial.Add(authority(t, successor), start)
	if err != nil {
		t.Fatal(err)
	}
	stages := []Bundle{initial, both, both.Promote(), both.Promote().Drop()}
	for i, signing := range stages {
		stored, err := ParseBundle(signing.Data())
		if err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(stored.Data(), signing.Data()) {
			t.Errorf("stage %d: data changes when it is read and written", i)
		}
		pair, err := stored.Issue(serving, start)
		if err != nil {
			t.Fatal(err)
		}
		for j, trusting := range stages {
			accepted := verify(t, pair, trusting.Trusted()) == nil
			if neighbours := i-j <= 1 && j-i <= 1; neighbours && !accepted {
				t.Errorf("a leaf of stage %d is rejected in stage %d", i, j)
			}
			if i == 3 && j == 0 && accepted {
				t.Error("a leaf of the new authority is accepted by the old one after it was dropped")
			}
		}
		if reason := stored.Signer.Evaluate(pair, serving, start); reason != "" {
			t.Errorf("stage %d: a fresh leaf is to be replaced: %s", i, reason)
		}
	}
	if verify(t, must(stages[2].Issue(serving, start))(t), initial.Trusted()) != nil {
		t.Error("a client that trusts only the old authority rejects the new leaf while both are trusted")
	}
}

func must(pair Pair, err error) func(*testing.T) Pair {
	return func(t *testing.T) Pair {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return pair
	}
}

func TestRechainDropsTheCrossSignedCertificate(t *testing.T) {
	both, err := Bundle{Signer: authority(t, "a")}.Add(authority(t, "b"), start)
	if err != nil {
		t.Fatal(err)
	}
	reissued := both.Promote()
	pair := must(reissued.Issue(serving, start))(t)
	if _, differs := reissued.Rechain(pair); differs {
		t.Error("a fresh leaf changes")
	}
	plain, differs := reissued.Drop().Rechain(pair)
	if !differs || strings.Count(string(plain.Certificate), "BEGIN") != 1 || !slices.Equal(plain.Key, pair.Key) {
		t.Errorf("got differs %t and %s", differs, plain.Certificate)
	}
}

func TestPromoteForgetsTheOldKey(t *testing.T) {
	old := authority(t, "a")
	both, err := Bundle{Signer: old}.Add(authority(t, "b"), start)
	if err != nil {
		t.Fatal(err)
	}
	for name, data := range both.Promote().Data() {
		if strings.Contains(string(data), string(old.Key)) {
			t.Errorf("%s contains the key of the former authority", name)
		}
	}
	if _, err := both.Promote().Add(authority(t, "c"), start); err == nil {
		t.Error("a third authority was added before the first was dropped")
	}
}

func TestKeysThroughTheStages(t *testing.T) {
	first, second := must(NewServiceAccountKey())(t), must(NewServiceAccountKey())(t)
	initial := Keys{Signer: first}
	ids := func(pairs ...Pair) (all []string) {
		for _, pair := range pairs {
			all = append(all, KeyIDs(pair.Certificate)...)
		}
		return all
	}
	both := initial.Add(second)
	for name, c := range map[string]struct {
		keys Keys
		want []string
	}{
		"initial": {initial, ids(first)}, "both": {both, ids(first, second)},
		"signing": {both.Promote(), ids(second, first)}, "dropped": {both.Promote().Drop(), ids(second)},
	} {
		stored := ParseKeys(c.keys.Data())
		if !reflect.DeepEqual(stored, c.keys) {
			t.Errorf("%s: keys change when they are written and read", name)
		}
		if got := KeyIDs(stored.Verifying()); !slices.Equal(got, c.want) {
			t.Errorf("%s: got key IDs %v, want %v", name, got, c.want)
		}
	}
}

func TestShortLifetimes(t *testing.T) {
	a, err := NewAuthority("short", 6*time.Minute, start)
	if err != nil {
		t.Fatal(err)
	}
	leaf := serving
	leaf.Lifetime = 3 * time.Minute
	pair := must(a.Issue(leaf, start))(t)
	for after, due := range map[time.Duration]bool{0: false, 119 * time.Second: false, 2 * time.Minute: true} {
		if reason := a.Evaluate(pair, leaf, start.Add(after)); (reason != "") != due {
			t.Errorf("after %s: got %q, want due %t", after, reason, due)
		}
	}
	if got := a.Renewal(); !got.Equal(start.Add(4*time.Minute)) || !a.Created().Equal(start) {
		t.Errorf("got renewal of the authority at %s, created %s", got, a.Created())
	}
	leaf.Lifetime = time.Minute
	if reason := a.Evaluate(pair, leaf, start); !strings.Contains(reason, "lifetime") {
		t.Errorf("got %q for a leaf with a longer lifetime than described", reason)
	}
}

func TestCheckServing(t *testing.T) {
	a := authority(t, "user's")
	pair := must(a.Issue(serving, start))(t)
	client := must(a.Issue(Leaf{CommonName: "c", DNSNames: serving.DNSNames, Client: true}, start))(t)
	both, err := Bundle{Signer: a}.Add(authority(t, "intermediate"), start)
	if err != nil {
		t.Fatal(err)
	}
	chained := must(both.Promote().Issue(serving, start))(t)
	withoutChain := Pair{Certificate: encode(certificate(t, chained).Raw), Key: chained.Key}
	for name, c := range map[string]struct {
		pair    Pair
		trusted []byte
		host    string
		now     time.Time
		want    string // part of the error; "": no error
	}{
		"valid":                {pair, a.Certificate, "demo.ns.svc", start, ""},
		"address":              {pair, a.Certificate, "127.0.0.1", start, ""},
		"public issuer":        {pair, nil, "demo.ns.svc", start, ""},
		"another host":         {pair, a.Certificate, "other", start, "not other"},
		"another authority":    {pair, authority(t, "x").Certificate, "demo.ns.svc", start, "unknown authority"},
		"garbage as authority": {pair, []byte("x"), "demo.ns.svc", start, "ca.crt"},
		"client certificate":   {client, a.Certificate, "demo.ns.svc", start, "usage"},
		"intermediate":         {chained, a.Certificate, "demo.ns.svc", start, ""},
		"missing intermediate": {withoutChain, a.Certificate, "demo.ns.svc", start, "unknown authority"},
		"expired":              {pair, a.Certificate, "demo.ns.svc", start.Add(2 * LeafLifetime), "expired at"},
		"not yet valid":        {pair, a.Certificate, "demo.ns.svc", start.Add(-time.Hour), "not valid before 2025-12-31T"},
		"key of another":       {Pair{pair.Certificate, client.Key}, a.Certificate, "demo.ns.svc", start, "does not match"},
		"missing key":          {Pair{Certificate: pair.Certificate}, a.Certificate, "demo.ns.svc", start, "not a PEM"},
		"without any host":     {pair, a.Certificate, "", start, ""},
		"empty":                {Pair{}, nil, "demo.ns.svc", start, "parse a certificate"},
	} {
		err := CheckServing(c.pair, c.trusted, c.host, c.now)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", name, err, c.want)
		}
	}
}

func TestParseUserAuthority(t *testing.T) {
	root := authority(t, "root")
	both, err := Bundle{Signer: root}.Add(authority(t, "b"), start)
	if err != nil {
		t.Fatal(err)
	}
	leaf := must(root.Issue(serving, start))(t)
	for name, c := range map[string]struct {
		pair Pair
		now  time.Time
		want string // part of the error; "": no error
	}{
		"valid":        {root.Pair, start, ""},
		"leaf":         {leaf, start, "not a certificate authority"},
		"intermediate": {Pair{both.Cross, both.Next.Key}, start, "not self-signed"},
		"expired":      {root.Pair, start.Add(2 * AuthorityLifetime), "expired at"},
		"other key":    {Pair{root.Certificate, leaf.Key}, start, "does not match"},
		"empty":        {Pair{}, start, "parse a certificate"},
	} {
		_, err := ParseUserAuthority(c.pair, c.now)
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got error %v, want %q", name, err, c.want)
		}
	}
}
