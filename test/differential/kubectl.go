package differential

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"quorate.dev/test/upstream"
)

// kubectl runs kubectl as the administrator and returns its output. It repeats that until the condition of @until
// holds.
func (r *run) kubectl(ctx context.Context, c *Case) (*Answer, error) {
	program, err := upstream.Binary(ctx, "kubectl")
	if err != nil {
		return nil, err
	}
	directory, err := os.MkdirTemp("", "kubectl")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(directory) }()
	kubeconfig := filepath.Join(directory, "kubeconfig")
	if err := clientcmd.WriteToFile(*r.server.kubeconfig(r.variables["ns"]), kubeconfig); err != nil {
		return nil, err
	}
	wanted, waits := c.directive("until")
	deadline := time.Now().Add(untilTimeout)
	for i := 0; ; i++ {
		arguments := append(strings.Fields(r.expand(c.Path)),
			"--kubeconfig="+kubeconfig, fmt.Sprintf("--cache-dir=%s/%d", directory, i))
		output, err := exec.CommandContext(ctx, program, arguments...).CombinedOutput()
		var exited *exec.ExitError
		if err != nil && !errors.As(err, &exited) {
			return nil, err
		}
		text := strings.ReplaceAll(string(output), r.server.Origin, "https://server")
		if exited != nil {
			text += exited.String() + "\n"
		}
		encoded, err := json.Marshal(text)
		if err != nil {
			return nil, err
		}
		answer := &Answer{Body: encoded}
		if !waits || strings.Contains(text, wanted) {
			return answer, nil
		}
		if time.Now().After(deadline) {
			answer.failed("no output of kubectl contained %q", wanted)
			return answer, nil
		}
	}
}

// kubeconfig writes the administrator's kubeconfig and returns its path.
func (s *Server) kubeconfig(namespace string) *clientcmdapi.Config {
	config := clientcmdapi.NewConfig()
	config.Clusters["c"] = &clientcmdapi.Cluster{Server: s.config.Host, CertificateAuthorityData: s.config.CAData}
	config.AuthInfos["u"] = &clientcmdapi.AuthInfo{
		ClientCertificateData: s.config.CertData, ClientKeyData: s.config.KeyData,
	}
	config.Contexts["x"] = &clientcmdapi.Context{Cluster: "c", AuthInfo: "u", Namespace: namespace}
	config.CurrentContext = "x"
	return config
}
