package pki

import (
	"bytes"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/util/cert"
)

// TestRecover replaces an authority whose private key is lost during a rotation. Existing leaves stay valid, the
// successor signs new leaves immediately, and the bundle survives being stored.
func TestRecover(t *testing.T) {
	former, lost, next := authority(t, "a"), authority(t, "b"), authority(t, "c")
	// The signer is the first trusted certificate. A successor that is trusted already is not trusted twice.
	trusted := slices.Concat(lost.Certificate, former.Certificate, next.Certificate)
	recovered, err := Recover(trusted, next)
	if err != nil {
		t.Fatal(err)
	}
	b, err := ParseBundle(recovered.Data())
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(b.Data(), recovered.Data()) {
		t.Error("data changes when it is read and written")
	}
	if !b.SignerLost() {
		t.Error("the bundle has the lost key")
	}
	if got := commonNames(t, b.Trusted()); !slices.Equal(got, []string{"b", "c", "a"}) {
		t.Errorf("trusted are %v", got)
	}

	issued := must(b.Issue(serving, start))(t)
	ofLost, ofFormer := must(lost.Issue(serving, start))(t), must(former.Issue(serving, start))(t)
	ofOther := must(authority(t, "b").Issue(serving, start))(t)
	due := start.Add(LeafLifetime * 67 / 100)
	for name, c := range map[string]struct {
		pair           Pair
		now            time.Time
		issued, signed bool
		reason         string // part of the reason to reissue the leaf; "" for none
	}{
		"new leaf":                {issued, start, true, true, ""},
		"leaf of the lost signer": {ofLost, start, true, true, ""},
		"leaf of the lost signer, due for renewal": {ofLost, due, true, true, "another authority"},
		"leaf of the former signer":                {ofFormer, start, true, false, "another authority"},
		"leaf of another authority":                {ofOther, start, false, false, "another authority"},
		"leaf that cannot be parsed":               {Pair{}, start, false, false, "unreadable"},
	} {
		if got := b.Issued(c.pair); got != c.issued {
			t.Errorf("%s: issued by a trusted authority: %t", name, got)
		}
		if got := b.Signed(c.pair); got != c.signed {
			t.Errorf("%s: signed by the signer or its successor: %t", name, got)
		}
		got := b.Evaluate(c.pair, serving, c.now)
		if (got == "") != (c.reason == "") || !strings.Contains(got, c.reason) {
			t.Errorf("%s: %q, want %q", name, got, c.reason)
		}
	}
	if count := bytes.Count(issued.Certificate, []byte("BEGIN")); count != 1 {
		t.Errorf("a new leaf has %d certificates; only the lost key could cross-sign the successor", count)
	}

	// The rotation goes on like any other.
	dropped := b.Promote().Drop()
	if dropped.SignerLost() || !dropped.Signer.Equal(next) || dropped.Signed(ofLost) {
		t.Error("the successor is not the only signer after the rotation")
	}
	if got := commonNames(t, dropped.Trusted()); !slices.Equal(got, []string{"c"}) {
		t.Errorf("trusted after the rotation are %v", got)
	}
	if _, err := Recover([]byte("no certificate"), next); err == nil {
		t.Error("recovered without a trusted certificate")
	}
}

// TestEvaluateWithTheKey: while the signer has its key, leaves of a successor have to be reissued, because clients may
// not trust the successor yet.
func TestEvaluateWithTheKey(t *testing.T) {
	both, err := Bundle{Signer: authority(t, "a")}.Add(authority(t, "b"), start)
	if err != nil {
		t.Fatal(err)
	}
	ofNext := must(both.Next.Issue(serving, start))(t)
	if both.SignerLost() || both.Signed(ofNext) || both.Evaluate(ofNext, serving, start) != "signed by another authority" {
		t.Errorf("a leaf of the successor is kept: %q", both.Evaluate(ofNext, serving, start))
	}
	if leaf := must(both.Issue(serving, start))(t); !both.Signer.Signed(leaf) || !both.Issued(leaf) {
		t.Error("the successor signs a leaf before it is promoted")
	}
}

func commonNames(t *testing.T, certificates []byte) (names []string) {
	t.Helper()
	all, err := cert.ParseCertsPEM(certificates)
	if err != nil {
		t.Fatal(err)
	}
	for _, certificate := range all {
		names = append(names, certificate.Subject.CommonName)
	}
	return names
}

// TestSetsOfCertificates compares and selects PEM certificates of several authorities.
func TestSetsOfCertificates(t *testing.T) {
	a, b := authority(t, "a"), authority(t, "b")
	both, reversed := slices.Concat(a.Certificate, b.Certificate), slices.Concat(b.Certificate, a.Certificate)

	if got := commonNames(t, Without(both, a.Certificate)); !slices.Equal(got, []string{"b"}) {
		t.Errorf("without a: %v", got)
	}
	if got := Without(both, reversed); len(got) > 0 {
		t.Errorf("without all: %s", got)
	}
	isA := func(name string) bool { return name == "a" }
	if got := commonNames(t, Select(reversed, isA)); !slices.Equal(got, []string{"a"}) {
		t.Errorf("selected %v", got)
	}
	if got := Select([]byte("no certificate"), isA); got != nil {
		t.Errorf("selected %s", got)
	}
	for certificates, want := range map[string]bool{
		string(both): true, string(b.Certificate): false, "no certificate": false,
	} {
		if got := a.Contains([]byte(certificates)); got != want {
			t.Errorf("contains a: %t, want %t: %s", got, want, certificates)
		}
	}

	leaf := must(a.Issue(serving, start))(t)
	for name, c := range map[string]struct {
		authorities []byte
		pair        Pair
		want        bool
	}{
		"one of two":     {reversed, leaf, true},
		"without a key":  {both, Pair{Certificate: leaf.Certificate}, true},
		"another":        {b.Certificate, leaf, false},
		"no authorities": {nil, leaf, false},
		"no leaf":        {both, Pair{}, false},
	} {
		if got := Verifies(c.authorities, c.pair); got != c.want {
			t.Errorf("%s: verified is %t", name, got)
		}
	}

	subjects := Bundle{Signer: a, Next: &b}.Subjects()
	if len(subjects) != 2 || !bytes.Equal(subjects[0], certificate(t, a.Pair).RawSubject) ||
		!bytes.Equal(subjects[1], certificate(t, b.Pair).RawSubject) {
		t.Errorf("subjects %q", subjects)
	}
	if got := (Bundle{}).Subjects(); got != nil {
		t.Errorf("subjects of an empty bundle: %q", got)
	}
}

// TestFingerprints: annotations with fingerprints change, and pods restart, only if certificates change.
func TestFingerprints(t *testing.T) {
	a, b := authority(t, "a").Certificate, authority(t, "b").Certificate
	both, reversed := slices.Concat(a, b), slices.Concat(b, a)
	if Fingerprint(a) != Fingerprint(slices.Clone(a)) || Fingerprint(a) == Fingerprint(b) || len(Fingerprint(a)) != 16 {
		t.Errorf("fingerprints of two certificates are %s and %s", Fingerprint(a), Fingerprint(b))
	}
	if SetFingerprint(both, a) != SetFingerprint(reversed, a) {
		t.Error("the order of certificates in a set changes the fingerprint")
	}
	for name, sets := range map[string][][]byte{
		"the order of the sets": {a, both}, "another set": {both, b}, "one set": {both}, "an empty set": {both, nil},
	} {
		if SetFingerprint(sets...) == SetFingerprint(both, a) {
			t.Errorf("%s has the same fingerprint", name)
		}
	}
}

func TestValidity(t *testing.T) {
	leaf := serving
	leaf.Lifetime = 3 * time.Hour
	pair := must(authority(t, "a").Issue(leaf, start))(t)
	created, due, expiry, err := Validity(pair)
	if err != nil || !created.Equal(start) || !due.Equal(start.Add(2*time.Hour)) || !expiry.Equal(start.Add(3*time.Hour)) {
		t.Errorf("created %v, due %v, expires %v, %v", created, due, expiry, err)
	}
	if _, _, _, err := Validity(Pair{Certificate: pair.Certificate}); err == nil {
		t.Error("a certificate without its key is valid")
	}
}

// TestUnreadableBundles reads Secrets that were changed by hand. None of the errors shows a key.
func TestUnreadableBundles(t *testing.T) {
	both, err := Bundle{Signer: authority(t, "a")}.Add(authority(t, "b"), start)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		change map[string][]byte
		want   string // part of the error
	}{
		"no certificate":       {map[string][]byte{"tls.crt": nil}, "parse a certificate"},
		"the successor's key":  {map[string][]byte{"tls.key": both.Next.Key}, "the key does not match certificate"},
		"key of the successor": {map[string][]byte{"next.key": []byte("hunter2")}, "the next authority: parse a private key"},
		"lost key, no certificate": {
			map[string][]byte{"tls.key": nil, "tls.crt": []byte("hunter2")}, "parse a certificate",
		},
		"lost key, no successor": {map[string][]byte{"tls.key": nil, "next.crt": nil}, "parse a private key"},
		"former signer":          {map[string][]byte{"previous.crt": []byte("hunter2")}, "parse a certificate"},
		"cross-signed":           {map[string][]byte{"cross-signed.crt": []byte("hunter2")}, "parse a certificate"},
	} {
		data := both.Data()
		for key, value := range c.change {
			data[key] = value
		}
		_, err := ParseBundle(data)
		if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "hunter2") {
			t.Errorf("%s: got %v, want %q", name, err, c.want)
		}
	}
}
