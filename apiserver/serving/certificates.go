package serving

import (
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	cliflag "k8s.io/component-base/cli/flag"

	"quorate.dev/apiserver/config"
)

// certificates are the server's certificates: the default certificate and the certificates of --tls-sni-cert-key.
type certificates struct {
	standard *keyPair
	byName   []*keyPair
}

// loadCertificates reads the certificates. If --tls-cert-file is empty and --cert-dir has no certificate, it creates a
// self-signed certificate there.
func loadCertificates(options Options) (*certificates, error) {
	serving := options.Config
	certFile, keyFile := serving.CertFile, serving.KeyFile
	if certFile == "" {
		certFile = filepath.Join(serving.CertDirectory, "apiserver.crt")
		keyFile = filepath.Join(serving.CertDirectory, "apiserver.key")
		if err := makeIfMissing(certFile, keyFile, options.Hosts, options.Clock.Now()); err != nil {
			return nil, err
		}
	}
	c := &certificates{standard: &keyPair{certFile: certFile, keyFile: keyFile}}
	for _, value := range serving.SNICertKeys {
		pair, err := parseSNI(value)
		if err != nil {
			return nil, err
		}
		c.byName = append(c.byName, pair)
	}
	for _, r := range c.reloadables() {
		if err := r.Reload(); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// parseSNI parses a value of --tls-sni-cert-key: "cert,key" or "cert,key:name,...".
func parseSNI(value string) (*keyPair, error) {
	files, names, _ := strings.Cut(value, ":")
	certFile, keyFile, ok := strings.Cut(files, ",")
	if !ok || certFile == "" || keyFile == "" || strings.Contains(keyFile, ",") {
		return nil, fmt.Errorf("--tls-sni-cert-key %q: expected cert,key or cert,key:name,...", value)
	}
	pair := &keyPair{certFile: certFile, keyFile: keyFile}
	if names != "" {
		pair.names = strings.Split(strings.ToLower(names), ",")
	}
	return pair, nil
}

func (c *certificates) reloadables() []Reloadable {
	all := []Reloadable{c.standard}
	for _, pair := range c.byName {
		all = append(all, pair)
	}
	return all
}

// choose implements tls.Config.GetCertificate.
func (c *certificates) choose(hello *tls.ClientHelloInfo) (*tls.Certificate, error) {
	if hello.ServerName != "" {
		for _, pair := range c.byName {
			if certificate := pair.current.Load(); pair.isFor(hello.ServerName, certificate) {
				return certificate, nil
			}
		}
	}
	return c.standard.current.Load(), nil
}

// keyPair is a certificate and its key, in files that may be replaced.
type keyPair struct {
	certFile, keyFile string
	// names are lower-case host names; "*.example.com" matches one label. If names is empty, the names in the
	// certificate apply.
	names   []string
	current atomic.Pointer[tls.Certificate]
}

// Files implements Reloadable.
func (k *keyPair) Files() []string { return []string{k.certFile, k.keyFile} }

// Reload implements Reloadable. The current pair remains in use after an error, for example if only the certificate has
// been replaced and does not match the key.
func (k *keyPair) Reload() error {
	pair, err := tls.LoadX509KeyPair(k.certFile, k.keyFile)
	if err != nil {
		return fmt.Errorf("load certificate %s and key %s: %w", k.certFile, k.keyFile, err)
	}
	k.current.Store(&pair)
	return nil
}

func (k *keyPair) isFor(name string, certificate *tls.Certificate) bool {
	if len(k.names) == 0 {
		return certificate.Leaf.VerifyHostname(name) == nil
	}
	name = strings.ToLower(strings.TrimSuffix(name, "."))
	if slices.Contains(k.names, name) {
		return true
	}
	_, parent, _ := strings.Cut(name, ".")
	return slices.Contains(k.names, "*."+parent)
}

// tlsConfigOf returns the TLS settings without the settings for client certificates.
func tlsConfigOf(serving config.Serving, c *certificates) (*tls.Config, error) {
	settings := &tls.Config{
		MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"},
		GetCertificate: c.choose,
		// Without this setting, the first 128 KiB of a connection are sent in records, and system calls, of 1 KiB each. Most
		// responses on new connections, such as those to kubectl and to reconnecting watches, are larger than one record.
		DynamicRecordSizingDisabled: true,
	}
	if serving.DisableHTTP2 {
		settings.NextProtos = []string{"http/1.1"}
	}
	var err error
	if serving.TLSMinVersion != "" {
		if settings.MinVersion, err = cliflag.TLSVersion(serving.TLSMinVersion); err != nil {
			return nil, fmt.Errorf("--tls-min-version: %w", err)
		}
	}
	if len(serving.TLSCipherSuites) > 0 {
		if settings.CipherSuites, err = cliflag.TLSCipherSuites(serving.TLSCipherSuites); err != nil {
			return nil, fmt.Errorf("--tls-cipher-suites: %w", err)
		}
	}
	if len(serving.TLSCurvePreferences) > 0 {
		if settings.CurvePreferences, err = cliflag.TLSCurvePreferences(serving.TLSCurvePreferences); err != nil {
			return nil, fmt.Errorf("--tls-curve-preferences: %w", err)
		}
	}
	return settings, nil
}

// makeIfMissing writes a self-signed certificate and its key unless both files exist.
func makeIfMissing(certFile, keyFile string, hosts []string, now time.Time) error {
	_, certErr := os.Stat(certFile)
	_, keyErr := os.Stat(keyFile)
	if certErr == nil && keyErr == nil {
		return nil
	}
	if err := errors.Join(ignoreMissing(certErr), ignoreMissing(keyErr)); err != nil {
		return err
	}
	certPEM, keyPEM, err := selfSigned(hosts, now)
	if err != nil {
		return fmt.Errorf("create a self-signed certificate: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(certFile), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(keyFile, keyPEM, 0o600); err != nil {
		return err
	}
	return os.WriteFile(certFile, certPEM, 0o644)
}

func ignoreMissing(err error) error {
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	return err
}
