package upstream

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"os"
	"path/filepath"

	"k8s.io/client-go/rest"
)

// Client is a Kubernetes component that is a client of an API server.
type Client struct {
	Directory string // directory of the component's kubeconfig and log
	PKI       *PKI
	Server    *rest.Config // connection to the API server; the component gets its own certificate
	Arguments []string     // additional flags
	Version   string       // release of the component, such as v1.36.3; "" means the release that this module requires
}

// StartControllerManager runs kube-controller-manager and returns when it is healthy. The interval for the
// recalculation of quotas is short, because an object that is created before the server's cache contains its quota is
// not counted until then.
func (c Client) StartControllerManager(ctx context.Context) (*Process, error) {
	return c.start(ctx, "kube-controller-manager",
		"--use-service-account-credentials=true", "--root-ca-file="+c.PKI.file("serving-ca.crt"),
		"--service-account-private-key-file="+c.PKI.file("accounts.key"),
		"--cluster-signing-cert-file="+c.PKI.file("client-ca.crt"), "--cluster-signing-key-file="+c.PKI.file("client-ca.key"),
		"--resource-quota-sync-period=5s",
	)
}

// StartScheduler runs kube-scheduler and returns when it is healthy.
func (c Client) StartScheduler(ctx context.Context) (*Process, error) {
	return c.start(ctx, "kube-scheduler")
}

func (c Client) start(ctx context.Context, name string, flags ...string) (*Process, error) {
	binary, err := BinaryOf(ctx, name, c.Version)
	if err != nil {
		return nil, err
	}
	kubeconfig, err := c.kubeconfig(name)
	if err != nil {
		return nil, err
	}
	flags = append(flags, "--kubeconfig="+kubeconfig, "--authentication-kubeconfig="+kubeconfig,
		"--authorization-kubeconfig="+kubeconfig,
		"--bind-address=127.0.0.1", "--cert-dir="+filepath.Join(c.Directory, name))
	// The self-signed serving certificate is not verified, because the connection only reads the health.
	health := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	return retry(func(ports []int) (*Process, error) {
		process, err := start(name, binary, c.Directory,
			append(append(flags, fmt.Sprintf("--secure-port=%d", ports[0])), c.Arguments...))
		if err != nil {
			return nil, err
		}
		return process, process.await(ctx, health, fmt.Sprintf("https://127.0.0.1:%d/healthz", ports[0]))
	})
}

// kubeconfig writes a kubeconfig for the user with the name of the component.
func (c Client) kubeconfig(name string) (string, error) {
	if err := os.MkdirAll(c.Directory, 0o755); err != nil {
		return "", err
	}
	config, err := c.PKI.As(c.Server, "system:"+name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(c.Directory, name+".kubeconfig")
	return path, WriteKubeconfig(path, config)
}
