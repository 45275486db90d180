package serving

import (
	"crypto/tls"
	"crypto/x509"
	"slices"
	"sync/atomic"

	"quorate.dev/apiserver/authentication"
)

// requestCertificates makes the server ask clients for a certificate, naming the authorities: a client with several
// certificates, or one for something else, sends what can be verified. Authentication verifies it, not TLS, so that a
// client whose certificate is no good has its other credentials left.
func requestCertificates(settings *tls.Config, authorities []*authentication.Authority) {
	if len(authorities) == 0 {
		return
	}
	settings.ClientAuth = tls.RequestClientCert
	h := &handshakes{settings: settings, authorities: authorities}
	settings.GetConfigForClient = h.config
}

// handshakes makes the settings of new connections, which follow the authorities.
type handshakes struct {
	settings    *tls.Config
	authorities []*authentication.Authority
	current     atomic.Pointer[authoritySettings]
}

// authoritySettings are the settings that name these certificates.
type authoritySettings struct {
	certificates []*x509.Certificate
	config       *tls.Config
}

// config is a tls.Config's GetConfigForClient.
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
