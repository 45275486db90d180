package jwt

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/server/egressselector"
	certutil "k8s.io/client-go/util/cert"

	"quorate.dev/apiserver/transport"
)

const (
	// clientTimeout bounds a request to an issuer, as in kube-apiserver.
	clientTimeout = 30 * time.Second
	// maxDocument bounds the documents of an issuer: its metadata, keys and distributed claims. kube-apiserver has no
	// bound.
	maxDocument = 1 << 20
	// maxRedirects is the maximum number of redirects, as in net/http.
	maxRedirects = 10
	// maxText bounds the text of an error, in bytes. Upstream's errors contain whole documents of issuers.
	maxText = 1 << 10
)

// newClient returns the HTTP client for an issuer. It mirrors upstream's client, but limits the size of responses and
// checks redirects.
func newClient(issuer apiserver.Issuer, lookup egressselector.Lookup) (*http.Client, error) {
	settings := &tls.Config{MinVersion: tls.VersionTLS12}
	if pem := issuer.CertificateAuthority; pem != "" {
		roots, err := certutil.NewPoolFromBytes([]byte(pem))
		if err != nil {
			return nil, fmt.Errorf("Failed to read the CA contents: %w", err) // kube-apiserver's text
		}
		settings.RootCAs = roots
	}
	dial, err := dialerOf(issuer.EgressSelectorType, lookup)
	if err != nil {
		return nil, err
	}
	direct := utilnet.SetTransportDefaults(&http.Transport{DialContext: dial, TLSClientConfig: settings})
	return &http.Client{
		Transport: transport.LimitSize(direct, maxDocument), Timeout: clientTimeout, CheckRedirect: checkRedirect,
	}, nil
}

// dialerOf returns the dialer for an issuer; nil: a direct connection. The errors have kube-apiserver's texts.
func dialerOf(egress apiserver.EgressSelectorType, lookup egressselector.Lookup) (utilnet.DialFunc, error) {
	var selected egressselector.EgressType
	switch egress {
	case "":
		return nil, nil
	case apiserver.EgressSelectorControlPlane:
		selected = egressselector.ControlPlane
	case apiserver.EgressSelectorCluster:
		selected = egressselector.Cluster
	default:
		return nil, fmt.Errorf("oidc: unknown egress selector type %q", egress)
	}
	if lookup == nil {
		return nil, fmt.Errorf("oidc: egress lookup required with egress selector type %q", selected)
	}
	dial, err := lookup(selected.AsNetworkContext())
	if err != nil {
		return nil, fmt.Errorf("oidc: egress lookup for %q failed: %w", selected, err)
	}
	if dial == nil {
		return nil, fmt.Errorf("oidc: egress lookup for %q is not configured", selected)
	}
	return dial, nil
}

// checkRedirect permits redirects between https URLs. Between this server and a plain http server, an attacker could
// replace the keys of the issuer.
func checkRedirect(r *http.Request, via []*http.Request) error {
	switch {
	case r.URL.Scheme != "https":
		return errors.New("the issuer redirects to a URL that is not https")
	case len(via) >= maxRedirects:
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	return nil
}

// truncated returns an error with a text of at most maxText bytes.
func truncated(err error) error {
	if err == nil || len(err.Error()) <= maxText {
		return err
	}
	return longError{strings.ToValidUTF8(err.Error()[:maxText], ""), err}
}

// longError is an error whose text is truncated.
type longError struct {
	text string
	error
}

func (e longError) Error() string { return e.text + "..." }

// Unwrap returns the whole error.
func (e longError) Unwrap() error { return e.error }
