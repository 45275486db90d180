package upstream

import (
	"cmp"
	"context"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
)

// Authority is a certificate authority that is not part of a PKI.
type Authority struct{ *authority }

// NewAuthority creates an authority.
func NewAuthority(name string) (*Authority, error) {
	made, err := newAuthority(name)
	return &Authority{made}, err
}

// PEM returns the certificate of the authority.
func (a *Authority) PEM() []byte { return a.pem }

// Client issues a client certificate.
func (a *Authority) Client(user string, groups ...string) (certificate, key []byte, err error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: user, Organization: groups},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
}

// Server issues a serving certificate for 127.0.0.1 and the given names.
func (a *Authority) Server(names ...string) (certificate, key []byte, err error) {
	return a.issue(&x509.Certificate{
		Subject:     pkix.Name{CommonName: names[0]},
		DNSNames:    names,
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
}

// Write writes a certificate and its key to directory/NAME.crt and directory/NAME.key.
func Write(directory, name string, certificate, key []byte) (certificateFile, keyFile string, err error) {
	certificateFile, keyFile = filepath.Join(directory, name+".crt"), filepath.Join(directory, name+".key")
	if err := os.WriteFile(certificateFile, certificate, 0o600); err != nil {
		return "", "", err
	}
	return certificateFile, keyFile, os.WriteFile(keyFile, key, 0o600)
}

// ExtensionOptions are the options of StartExtension.
type ExtensionOptions struct {
	Directory string // directory of the log and of the serving certificate
	Etcd      string // URL of an external etcd; "": an embedded member
	Serving   *Authority
	Names     []string // names in the serving certificate, in addition to 127.0.0.1
	Arguments []string // additional flags
	// Answers is the path that returns 200 when the server has started; "" means /readyz.
	Answers string
}

// StartExtension runs our API server as an extension server, and returns when the path Answers returns 200. The Admin
// configuration of the result has no credentials.
func StartExtension(ctx context.Context, options ExtensionOptions) (*APIServer, error) {
	binary, err := Quorate(ctx)
	if err != nil {
		return nil, err
	}
	certificate, key, err := options.Serving.Server(options.Names...)
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(options.Directory, 0o755); err != nil {
		return nil, err
	}
	certificateFile, keyFile, err := Write(options.Directory, "serving", certificate, key)
	if err != nil {
		return nil, err
	}
	etcd := "--etcd-data-dir=" + filepath.Join(options.Directory, "member")
	if options.Etcd != "" {
		etcd = "--etcd-servers=" + options.Etcd
	}
	return retry(func(ports []int) (*APIServer, error) {
		flags := append([]string{
			"apiserver", "--bind-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[0]), etcd,
			"--tls-cert-file=" + certificateFile, "--tls-private-key-file=" + keyFile,
		}, options.Arguments...)
		server := &APIServer{Admin: &rest.Config{
			Host:            fmt.Sprintf("https://127.0.0.1:%d", ports[0]),
			TLSClientConfig: rest.TLSClientConfig{CAData: options.Serving.pem},
		}}
		var client *http.Client
		if client, err = rest.HTTPClientFor(server.Admin); err != nil {
			return nil, err
		}
		if server.Process, err = start("extension", binary, options.Directory, flags); err != nil {
			return nil, err
		}
		return server, server.await(ctx, client, server.Admin.Host+cmp.Or(options.Answers, "/readyz"))
	})
}
