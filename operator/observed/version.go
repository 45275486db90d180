package observed

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"k8s.io/apimachinery/pkg/version"

	"quorate.dev/operator/desired"
)

const (
	versionTimeout = 2 * time.Second
	versionLimit   = 64 << 10 // bytes
)

// Version returns the Kubernetes version that a ready replica reports, or "" if none is ready. It connects to the IP
// address of the pod and verifies the certificate for name, with the authorities in authority.
func (s *State) Version(ctx context.Context, authority []byte, name string) (string, error) {
	address := s.ReadyAddress()
	roots := x509.NewCertPool()
	if address == "" || !roots.AppendCertsFromPEM(authority) {
		return "", nil
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{
		RootCAs: roots, ServerName: name, MinVersion: tls.VersionTLS12,
	}}
	defer transport.CloseIdleConnections()
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	url := "https://" + net.JoinHostPort(address, strconv.Itoa(desired.SecurePort)) + "/version"
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", fmt.Errorf("request the version: %w", err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return "", fmt.Errorf("request the version: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return "", fmt.Errorf("request the version: %s", response.Status)
	}
	var info version.Info
	if err := json.NewDecoder(io.LimitReader(response.Body, versionLimit)).Decode(&info); err != nil {
		return "", fmt.Errorf("read the version: %w", err)
	}
	return info.GitVersion, nil
}

// ReadyAddress returns the IP address of a ready replica, or "".
func (s *State) ReadyAddress() string {
	for i := range s.Pods {
		if Ready(&s.Pods[i]) && s.Pods[i].Status.PodIP != "" {
			return s.Pods[i].Status.PodIP
		}
	}
	return ""
}
