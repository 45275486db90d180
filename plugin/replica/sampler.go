package replica

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"quorate.dev/operator/desired"
)

// timeout bounds the time to read the metrics of one API server, so that an API server that does not respond does not
// delay the overview.
const timeout = 2 * time.Second

// maxMetrics limits the metrics of one replica, in bytes. A server with 1,000 CustomResourceDefinitions has about 10
// MB.
const maxMetrics = 32 << 20

var errMetrics = fmt.Errorf("the metrics have more than %d bytes", maxMetrics)

// Sampler reads the metrics of the replicas of one cluster, with the administrator's kubeconfig.
type Sampler struct {
	host  *rest.Config
	admin *rest.Config
}

// NewSampler returns a Sampler for a cluster, whose administrator's kubeconfig it reads.
func NewSampler(ctx context.Context, host *rest.Config, namespace, cluster string) (*Sampler, error) {
	client, err := kubernetes.NewForConfig(host)
	if err != nil {
		return nil, err
	}
	name := cluster + "-admin-kubeconfig"
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
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

// Sample returns the metrics of the API server in a pod.
func (s *Sampler) Sample(ctx context.Context, pod *corev1.Pod) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	config := rest.CopyConfig(s.admin)
	config.Dial = func(ctx context.Context, _, _ string) (net.Conn, error) { return Dial(ctx, s.host, pod) }
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return Sample{}, err
	}
	defer client.CloseIdleConnections()
	return read(ctx, client, config.Host+"/metrics")
}

// Unresponsive returns how an API server failed to respond, as the end of a sentence, or "" if err has another cause.
func Unresponsive(err error) string {
	var timedOut interface{ Timeout() bool }
	switch {
	case err == nil:
		return ""
	case errors.Is(err, context.DeadlineExceeded), errors.As(err, &timedOut) && timedOut.Timeout():
		return fmt.Sprintf("does not respond within %s", timeout)
	case strings.Contains(err.Error(), syscall.ECONNREFUSED.Error()): // also in messages of `quorate connect`
		return "refuses connections"
	case strings.Contains(err.Error(), syscall.EHOSTUNREACH.Error()),
		strings.Contains(err.Error(), syscall.ENETUNREACH.Error()):
		return "is unreachable"
	case errors.Is(err, syscall.ECONNRESET), errors.Is(err, io.EOF):
		return "closes connections"
	}
	return ""
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
	body := &io.LimitedReader{R: response.Body, N: maxMetrics + 1}
	sample, err := Parse(body, time.Now())
	if body.N == 0 {
		return Sample{}, errMetrics
	}
	return sample, err
}
