package differential

import (
	"crypto/tls"
	"fmt"
	"net/url"
	"strings"
)

// Handshake describes a TLS handshake with a server: the negotiated protocols, and the authorities of client
// certificates that the server accepts.
func (s *Server) Handshake() (string, error) {
	address, err := url.Parse(s.Origin)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	conn, err := tls.Dial("tcp", address.Host, &tls.Config{
		InsecureSkipVerify: true, NextProtos: []string{"h2", "http/1.1"},
		GetClientCertificate: func(info *tls.CertificateRequestInfo) (*tls.Certificate, error) {
			for _, authority := range info.AcceptableCAs {
				fmt.Fprintf(&b, "wants a certificate of %q\n", authority)
			}
			return &tls.Certificate{}, nil
		},
	})
	if err != nil {
		return "", err
	}
	state := conn.ConnectionState()
	fmt.Fprintf(&b, "%s, %s\n", tls.VersionName(state.Version), state.NegotiatedProtocol)
	return b.String(), conn.Close()
}
