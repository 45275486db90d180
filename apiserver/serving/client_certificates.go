package serving

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"sync/atomic"

	"quorate.dev/apiserver/authentication"
)

// requestCertificates makes the handshake request a client certificate and name the accepted authorities, so that a
// client with several certificates sends one that can be verified. Authentication verifies the certificate, not TLS, so
// that a client with an invalid certificate can still use its other credentials.
func requestCertificates(settings *tls.Config, authorities []*authentication.Authority) {
	if len(authorities) == 0 {
		return
	}
	settings.ClientAuth = tls.RequestClientCert
	h := &handshakes{settings: settings, authorities: authorities}
	settings.GetConfigForClient = h.config
}

// handshakes provides the TLS settings of new connections, which contain the current authorities.
type handshakes struct {
	settings    *tls.Config
	authorities []*authentication.Authority
	current     atomic.Pointer[authoritySettings]
}

// authoritySettings is a tls.Config and the authorities in it. Neither changes.
type authoritySettings struct {
	certificates []*x509.Certificate
	config       *tls.Config
}

// config implements tls.Config.GetConfigForClient.
func (h *handshakes) config(*tls.ClientHelloInfo) (*tls.Config, error) {
	var certificates []*x509.Certificate
	for _, authority := range h.authorities {
		certificates = append(certificates, authority.Certificates()...)
	}
	current := h.current.Load()
	if current != nil && slices.Equal(current.certificates, certificates) {
		return current.config, nil
	}
	current = &authoritySettings{certificates: certificates, config: h.settings.Clone()}
	current.config.GetConfigForClient = nil
	current.config.ClientCAs = x509.NewCertPool()
	for _, certificate := range certificates {
		current.config.ClientCAs.AddCert(certificate)
	}
	h.current.Store(current)
	return current.config, nil
}
