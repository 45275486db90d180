package upstream

import (
	"context"
	"crypto/tls"
	"fmt"
	"net/http"
	"path/filepath"
)

// SampleServer is a running k8s.io/sample-apiserver, which listens on all addresses of this machine.
type SampleServer struct {
	*Process
	Port int
}

// StartSampleAPIServer runs k8s.io/sample-apiserver as an extension API server of c.Server, and returns when it is
// ready. It stores its objects in the given etcd. Its user is system:sample-apiserver.
func (c Client) StartSampleAPIServer(ctx context.Context, etcd string) (*SampleServer, error) {
	workspace, err := inspect(ctx)
	if err != nil {
		return nil, err
	}
	const name = "sample-apiserver"
	binary, err := workspace.buildOnce(ctx, name, "quorate.dev/test/upstream/sample", "-s -w")
	if err != nil {
		return nil, err
	}
	kubeconfig, err := c.kubeconfig(name)
	if err != nil {
		return nil, err
	}
	health := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}}
	return retry(func(ports []int) (*SampleServer, error) {
		process, err := start(name, binary, c.Directory, append([]string{
			"--kubeconfig=" + kubeconfig, "--authentication-kubeconfig=" + kubeconfig,
			"--authorization-kubeconfig=" + kubeconfig, "--etcd-servers=" + etcd, "--etcd-prefix=/" + filepath.Base(c.Directory),
			fmt.Sprintf("--secure-port=%d", ports[0]), "--cert-dir=" + filepath.Join(c.Directory, name),
		}, c.Arguments...))
		if err != nil {
			return nil, err
		}
		return &SampleServer{process, ports[0]}, process.await(ctx, health,
			fmt.Sprintf("https://127.0.0.1:%d/readyz", ports[0]))
	})
}
