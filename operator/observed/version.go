package observed

import (
	"cmp"
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

// Versions are the versions of Kubernetes of a replica.
type Versions struct {
	// Reported is the version of the program, such as v1.37.2.
	Reported string
	// Effective is the version whose APIs and features the replica serves, such as v1.36.0. It is older than Reported if
	// the replica emulates an older version.
	Effective string
}

// Versions returns the versions of Kubernetes of a ready replica; they are empty if no replica is ready. The request
// is sent to the IP address of the pod. The certificate is verified for name, with the authorities in authority.
func (s *State) Versions(ctx context.Context, authority []byte, name string) (Versions, error) {
	address := s.ReadyAddress()
	roots := x509.NewCertPool()
	if address == "" || !roots.AppendCertsFromPEM(authority) {
		return Versions{}, nil
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
		return Versions{}, fmt.Errorf("request the version: %w", err)
	}
	response, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return Versions{}, fmt.Errorf("request the version: %w", err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		return Versions{}, fmt.Errorf("request the version: %s", response.Status)
	}
	var info version.Info
	if err := json.NewDecoder(io.LimitReader(response.Body, versionLimit)).Decode(&info); err != nil {
		return Versions{}, fmt.Errorf("read the version: %w", err)
	}
	return Versions{Reported: info.GitVersion, Effective: effective(info)}, nil
}

// effective returns the emulated version of a replica. A program that cannot emulate versions serves its own.
func effective(info version.Info) string {
	major, minor := cmp.Or(info.EmulationMajor, info.Major), cmp.Or(info.EmulationMinor, info.Minor)
	if major == "" || minor == "" {
		return info.GitVersion
	}
	return "v" + major + "." + minor + ".0"
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
