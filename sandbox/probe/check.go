package probe

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Checker executes the checks of probes. Like the kubelet, it does not verify certificates.
type Checker struct {
	client *http.Client
}

// NewChecker returns a checker that opens a connection for every check.
func NewChecker() *Checker {
	transport := &http.Transport{
		TLSClientConfig:   &tls.Config{InsecureSkipVerify: true},
		DisableKeepAlives: true, DisableCompression: true,
	}
	return &Checker{client: &http.Client{Transport: transport, CheckRedirect: sameHost}}
}

// sameHost follows up to ten redirects to the same host. Like in the kubelet, other redirects count as success.
func sameHost(next *http.Request, earlier []*http.Request) error {
	if next.URL.Hostname() != earlier[0].URL.Hostname() || len(earlier) >= 10 {
		return http.ErrUseLastResponse
	}
	return nil
}

// Check executes the action of a probe once, and returns nil if it succeeds.
func (c *Checker) Check(
	ctx context.Context, handler corev1.ProbeHandler, container *corev1.Container, podIP string,
) error {
	switch {
	case handler.HTTPGet != nil:
		return c.get(ctx, handler.HTTPGet, container, podIP)
	case handler.TCPSocket != nil:
		return connect(ctx, handler.TCPSocket, container, podIP)
	}
	return errors.New("the sandbox supports only httpGet and tcpSocket probes")
}

func (c *Checker) get(
	ctx context.Context, action *corev1.HTTPGetAction, container *corev1.Container, podIP string,
) error {
	request, err := request(ctx, action, container, podIP)
	if err != nil {
		return err
	}
	response, err := c.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	body, _ := io.ReadAll(io.LimitReader(response.Body, 10<<10))
	if response.StatusCode < 200 || response.StatusCode >= 400 {
		return fmt.Errorf("HTTP probe failed with statuscode: %d: %.200s", response.StatusCode, body)
	}
	return nil
}

func request(
	ctx context.Context, action *corev1.HTTPGetAction, container *corev1.Container, podIP string,
) (*http.Request, error) {
	port, err := portNumber(action.Port, container)
	if err != nil {
		return nil, err
	}
	scheme := "http"
	if action.Scheme == corev1.URISchemeHTTPS {
		scheme = "https"
	}
	target := scheme + "://" + net.JoinHostPort(cmp.Or(action.Host, podIP), strconv.Itoa(port)) + action.Path
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, target, nil)
	if err != nil {
		return nil, err
	}
	request.Header.Set("User-Agent", "kube-probe/sandbox")
	request.Header.Set("Accept", "*/*")
	for _, header := range action.HTTPHeaders {
		if http.CanonicalHeaderKey(header.Name) == "Host" {
			request.Host = header.Value
		}
		request.Header.Set(header.Name, header.Value)
	}
	return request, nil
}

func connect(ctx context.Context, action *corev1.TCPSocketAction, container *corev1.Container, podIP string) error {
	port, err := portNumber(action.Port, container)
	if err != nil {
		return err
	}
	var dialer net.Dialer
	connection, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(cmp.Or(action.Host, podIP), strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return connection.Close()
}

func portNumber(port intstr.IntOrString, container *corev1.Container) (int, error) {
	if port.Type == intstr.Int {
		return port.IntValue(), nil
	}
	for _, candidate := range container.Ports {
		if candidate.Name == port.StrVal {
			return int(candidate.ContainerPort), nil
		}
	}
	if number, err := strconv.Atoi(port.StrVal); err == nil {
		return number, nil
	}
	return 0, fmt.Errorf("container %s has no port named %q", container.Name, port.StrVal)
}
