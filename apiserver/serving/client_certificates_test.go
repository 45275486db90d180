package serving

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"quorate.dev/apiserver/authentication"
)

// newAuthorityFile writes a self-signed authority and returns its subject, as a handshake names it.
func newAuthorityFile(t *testing.T, file, name string) (subject []byte) {
	t.Helper()
	chain, _, err := selfSigned([]string{name}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	_, authority := pem.Decode(chain) // behind the certificate
	block, _ := pem.Decode(authority)
	certificate, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	next := file + ".next"
	if err := os.WriteFile(next, authority, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(next, file); err != nil {
		t.Fatal(err)
	}
	return certificate.RawSubject
}

// named returns the authorities that the server names in a handshake, and whether it requests a certificate.
func named(t *testing.T, address string, version uint16) (authorities [][]byte, asked bool) {
	t.Helper()
	conn, err := tls.Dial("tcp", address, &tls.Config{
		InsecureSkipVerify: true, MinVersion: version, MaxVersion: version,
		GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			authorities, asked = info.AcceptableCAs, true
			return &tls.Certificate{}, nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	_ = conn.Close()
	return authorities, asked
}

// TestHandshakeNamesAuthorities checks that the handshake names the current authorities, also after a change.
func TestHandshakeNamesAuthorities(t *testing.T) {
	o := options(t)
	directory := t.TempDir()
	var files []string
	var want [][]byte
	for _, name := range []string{"clients", "proxies"} {
		file := filepath.Join(directory, name+".crt")
		files, want = append(files, file), append(want, newAuthorityFile(t, file, name))
		authority, err := authentication.NewAuthority(file)
		if err != nil {
			t.Fatal(err)
		}
		o.ClientAuthorities, o.Reload = append(o.ClientAuthorities, authority), append(o.Reload, authority)
	}
	reloaded := &reloads{file: files[0], done: make(chan struct{}, 100)} // after the authorities
	o.Reload = append(o.Reload, reloaded)
	s := serve(t, o)
	same := func(got [][]byte) bool { return slices.EqualFunc(got, want, bytes.Equal) }
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		if got, asked := named(t, s.Addr().String(), version); !asked || !same(got) {
			t.Errorf("version %x: requested a certificate %t, of authorities %q", version, asked, got)
		}
	}
	for i, file := range files {
		want[i] = newAuthorityFile(t, file, "next")
		for got, _ := named(t, s.Addr().String(), 0); !same(got); got, _ = named(t, s.Addr().String(), 0) {
			<-reloaded.done // fails by the test's time-out if the change is never noticed
		}
	}
}

// TestHandshakeWithoutAuthorities checks that no certificate is requested if there is no authority to verify it.
func TestHandshakeWithoutAuthorities(t *testing.T) {
	s := serve(t, options(t))
	if _, asked := named(t, s.Addr().String(), 0); asked {
		t.Error("a certificate was requested")
	}
}

// TestSessionsResume checks that TLS sessions can be resumed.
func TestSessionsResume(t *testing.T) {
	o := options(t)
	file := filepath.Join(t.TempDir(), "clients.crt")
	newAuthorityFile(t, file, "clients")
	authority, err := authentication.NewAuthority(file)
	if err != nil {
		t.Fatal(err)
	}
	o.ClientAuthorities = []*authentication.Authority{authority}
	s := serve(t, o)
	settings := &tls.Config{
		InsecureSkipVerify: true, ClientSessionCache: tls.NewLRUClientSessionCache(1),
		MaxVersion: tls.VersionTLS12, // in which the ticket is part of the handshake
	}
	for _, want := range []bool{false, true} {
		conn, err := tls.Dial("tcp", s.Addr().String(), settings)
		if err != nil {
			t.Fatal(err)
		}
		if resumed := conn.ConnectionState().DidResume; resumed != want {
			t.Errorf("resumed: %t", resumed)
		}
		_ = conn.Close()
	}
}
