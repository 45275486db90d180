package authentication

import (
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"

	"quorate.dev/apiserver/transport"
)

// webhookBackoff is kube-apiserver's backoff for requests to authentication webhooks.
var webhookBackoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}

// NewTokenWebhook returns an authenticator that sends tokens, as TokenReviews of the given version, to the server in a
// kubeconfig file. audiences are the audiences of the TokenReviews; the server can return other audiences. dial may be
// nil.
func NewTokenWebhook(
	file, version string, audiences authenticator.Audiences, dial utilnet.DialFunc,
) (authenticator.Token, error) {
	client, err := webhookutil.LoadKubeconfig(file, dial)
	if err != nil {
		return nil, err
	}
	client.Wrap(transport.Reviews)
	return webhook.New(client, version, audiences, webhookBackoff)
}
