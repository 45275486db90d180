package management

import (
	"crypto/x509"
	"encoding/pem"
	"os"
	"path/filepath"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"quorate.dev/apiserver/config"
)

func TestPlaneIsCreatedOnceAndRenewed(t *testing.T) {
	directory := t.TempDir()
	now := time.Now()
	read := func(name string) string {
		content, err := os.ReadFile(filepath.Join(directory, "pki", name))
		if err != nil {
			t.Fatal(err)
		}
		return string(content)
	}
	if _, err := New(directory, 70, now); err != nil {
		t.Fatal(err)
	}
	authority, server, key := read("serving-ca.crt"), read("server.crt"), read("service-account.key")
	if _, err := New(directory, 70, now); err != nil {
		t.Fatal(err)
	}
	if read("serving-ca.crt") != authority || read("server.crt") != server || read("service-account.key") != key {
		t.Error("a second start replaced certificates")
	}
	if _, err := New(directory, 70, now.AddDate(0, 11, 0)); err != nil {
		t.Fatal(err)
	}
	if read("server.crt") == server || read("serving-ca.crt") != authority {
		t.Error("after most of a year the leaf must be renewed, but not its authority")
	}
	os.WriteFile(filepath.Join(directory, "pki", "serving-ca.crt"), []byte("x"), 0o600)
	if _, err := New(directory, 70, now); err == nil {
		t.Error("a corrupted authority was accepted")
	}
}

func TestArgsAreValidAndTheKubeconfigFits(t *testing.T) {
	plane, err := New(t.TempDir(), 70, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	c := config.Default()
	if err := c.Flags().Parse(plane.Args()); err != nil {
		t.Fatal(err)
	}
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	if err := plane.WriteKubeconfig(file); err != nil {
		t.Fatal(err)
	}
	client, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil || client.Host != "https://"+plane.Address().String() {
		t.Fatalf("got %v, %v", client, err)
	}
	if _, err := rest.TLSConfigFor(client); err != nil {
		t.Error(err)
	}
}

// TestAuthoritiesAreSeparate checks that no certificate is valid for another purpose. For example, the certificate of
// the node must not authenticate a client of the API.
func TestAuthoritiesAreSeparate(t *testing.T) {
	directory := t.TempDir()
	plane, err := New(directory, 70, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	parse := func(name string) *x509.Certificate {
		content, err := os.ReadFile(plane.file(name + ".crt"))
		if err != nil {
			t.Fatal(err)
		}
		block, _ := pem.Decode(content)
		certificate, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			t.Fatal(err)
		}
		return certificate
	}
	c := config.Default()
	if err := c.Flags().Parse(plane.Args()); err != nil {
		t.Fatal(err)
	}
	if len(c.Member.ListenPeerURLs)+len(c.Member.ListenClientURLs) > 0 {
		t.Errorf("listen URLs of the etcd member: %v, %v", c.Member.ListenPeerURLs, c.Member.ListenClientURLs)
	}
	issued := map[string]string{
		"server": servingAuthority, "kubelet": servingAuthority,
		"admin": clientAuthority, "kubelet-client": kubeletClientAuthority,
	}
	for leaf, issuer := range issued {
		for _, authority := range []string{servingAuthority, clientAuthority, kubeletClientAuthority} {
			accepted := parse(leaf).CheckSignatureFrom(parse(authority)) == nil
			if accepted != (authority == issuer) {
				t.Errorf("%s accepts %s: %v", authority, leaf, accepted)
			}
		}
	}
	if c.Authentication.ClientCAFile != plane.file(clientAuthority+".crt") {
		t.Errorf("client CA file: %s", c.Authentication.ClientCAFile)
	}
}
