package authentication

import (
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/authentication/authenticator"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authenticator/token/webhook"
)

// webhookBackoff is kube-apiserver's for requests to the webhooks of authentication.
var webhookBackoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}

// NewTokenWebhook returns the authenticator that sends tokens, as TokenReviews of a version, to the server of a
// kubeconfig file. Tokens must be for one of the audiences, unless the server returns others. dial may be nil.
func NewTokenWebhook(
	file, version string, audiences authenticator.Audiences, dial utilnet.DialFunc,
) (authenticator.Token, error) {
	client, err := webhookutil.LoadKubeconfig(file, dial)
	if err != nil {
		return nil, err
	}
	return webhook.New(client, version, audiences, webhookBackoff)
}
