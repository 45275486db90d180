package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/httpstream"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"

	"quorate.dev/operator/desired"
)

// timeout limits the time to read the metrics of one replica.
const timeout = 10 * time.Second

// Sampler reads the metrics of the replicas of one cluster, with the administrator's kubeconfig and through connections
// that the hosting cluster forwards.
type Sampler struct {
	host  *rest.Config
	admin *rest.Config
}

// NewSampler reads the administrator's kubeconfig of a cluster.
func NewSampler(ctx context.Context, host *rest.Config, namespace, cluster string) (*Sampler, error) {
	client, err := kubernetes.NewForConfig(host)
	if err != nil {
		return nil, err
	}
	name := cluster + "-admin-kubeconfig"
	secret, err := client.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return nil, fmt.Errorf("read the administrator's kubeconfig: %w", err)
	}
	admin, err := clientcmd.RESTConfigFromKubeConfig(secret.Data[desired.KubeconfigKey])
	if err != nil {
		return nil, fmt.Errorf("parse the kubeconfig in Secret %s: %w", name, err)
	}
	server, err := url.Parse(admin.Host)
	if err != nil {
		return nil, fmt.Errorf("parse the kubeconfig in Secret %s: %w", name, err)
	}
	if admin.ServerName == "" {
		admin.ServerName = server.Hostname()
	}
	admin.Timeout = timeout
	return &Sampler{host: host, admin: admin}, nil
}

// Sample reads the metrics of the API server in a pod.
func (s *Sampler) Sample(ctx context.Context, pod *corev1.Pod) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	address, closeForwarder, err := s.address(ctx, pod)
	if err != nil {
		return Sample{}, fmt.Errorf("connect to pod %s: %w", pod.Name, err)
	}
	defer closeForwarder()
	config := rest.CopyConfig(s.admin)
	config.Host = "https://" + address
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return Sample{}, err
	}
	defer client.CloseIdleConnections()
	return read(ctx, client, config.Host+"/metrics")
}

func read(ctx context.Context, client *http.Client, url string) (Sample, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return Sample{}, err
	}
	response, err := client.Do(request)
	if err != nil {
		return Sample{}, err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(response.Body, 200))
		return Sample{}, fmt.Errorf("read /metrics: %s: %s", response.Status, text)
	}
	return Parse(response.Body, time.Now())
}

// address returns an address of this machine that leads to the API server of a pod. Pods of a sandbox have loopback
// addresses; connections to all others are forwarded.
func (s *Sampler) address(ctx context.Context, pod *corev1.Pod) (string, func(), error) {
	if ip, err := netip.ParseAddr(pod.Status.PodIP); err == nil && ip.IsLoopback() {
		return netip.AddrPortFrom(ip, desired.SecurePort).String(), func() {}, nil
	}
	if pod.Status.Phase != corev1.PodRunning {
		return "", nil, fmt.Errorf("the pod is %s", pod.Status.Phase)
	}
	dialer, err := s.dialer(pod)
	if err != nil {
		return "", nil, err
	}
	stop, ready := make(chan struct{}), make(chan struct{})
	ports := []string{fmt.Sprintf("0:%d", desired.SecurePort)}
	forwarder, err := portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, ports, stop, ready, io.Discard, io.Discard)
	if err != nil {
		return "", nil, err
	}
	failed := make(chan error, 1)
	go func() { failed <- forwarder.ForwardPorts() }()
	select {
	case err := <-failed:
		return "", nil, errors.Join(errors.New("the hosting cluster does not forward connections"), err)
	case <-ctx.Done():
		close(stop)
		return "", nil, ctx.Err()
	case <-ready:
	}
	forwarded, err := forwarder.GetPorts()
	if err != nil {
		close(stop)
		return "", nil, err
	}
	return net.JoinHostPort("127.0.0.1", fmt.Sprint(forwarded[0].Local)), func() { close(stop) }, nil
}

// dialer forwards through a WebSocket, or through SPDY if the hosting cluster does not support that.
func (s *Sampler) dialer(pod *corev1.Pod) (httpstream.Dialer, error) {
	client, err := kubernetes.NewForConfig(s.host)
	if err != nil {
		return nil, err
	}
	address := client.CoreV1().RESTClient().Post().
		Resource("pods").Namespace(pod.Namespace).Name(pod.Name).SubResource("portforward").URL()
	transport, upgrader, err := spdy.RoundTripperFor(s.host)
	if err != nil {
		return nil, err
	}
	old := spdy.NewDialer(upgrader, &http.Client{Transport: transport}, http.MethodPost, address)
	tunneling, err := portforward.NewSPDYOverWebsocketDialer(address, s.host)
	if err != nil {
		return nil, err
	}
	return portforward.NewFallbackDialer(tunneling, old, func(err error) bool {
		return httpstream.IsUpgradeFailure(err) || httpstream.IsHTTPSProxyError(err)
	}), nil
}
