package authorization

import (
	"fmt"
	"time"

	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apiserver/pkg/apis/apiserver"
	"k8s.io/apiserver/pkg/authorization/authorizer"
	"k8s.io/apiserver/pkg/authorization/cel"
	webhookutil "k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook"
	"k8s.io/apiserver/plugin/pkg/authorizer/webhook/metrics"

	"quorate.dev/apiserver/transport"
)

// webhookBackoff is kube-apiserver's backoff for requests to authorization webhooks.
var webhookBackoff = wait.Backoff{Duration: 500 * time.Millisecond, Factor: 1.5, Jitter: 0.2, Steps: 5}

// webhookMetrics has the same metrics as kube-apiserver: metrics of webhooks and match conditions, but no metrics of
// requests.
type webhookMetrics struct {
	metrics.NoopRequestMetrics
	metrics.WebhookMetrics
	cel.MatcherMetrics
}

// newWebhook returns the authorization mode Webhook. Its responses are cached as configured. dial may be nil.
func newWebhook(name string, c *apiserver.WebhookConfiguration, dial utilnet.DialFunc) (Mode, error) {
	client, err := webhookutil.LoadKubeconfig(*c.ConnectionInfo.KubeConfigFile, dial)
	if err != nil {
		return nil, err
	}
	client.Wrap(transport.Reviews)
	if c.Timeout.Duration != 0 {
		client.Timeout = c.Timeout.Duration
	}
	var onError authorizer.Decision
	switch c.FailurePolicy {
	case apiserver.FailurePolicyNoOpinion:
		onError = authorizer.DecisionNoOpinion
	case apiserver.FailurePolicyDeny:
		onError = authorizer.DecisionDeny
	default:
		return nil, fmt.Errorf("unknown failurePolicy %q", c.FailurePolicy)
	}
	var authorized, unauthorized time.Duration
	if c.CacheAuthorizedRequests {
		authorized = c.AuthorizedTTL.Duration
	}
	if c.CacheUnauthorizedRequests {
		unauthorized = c.UnauthorizedTTL.Duration
	}
	return webhook.New(client, c.SubjectAccessReviewVersion, authorized, unauthorized, webhookBackoff, onError,
		c.MatchConditions, name, webhookMetrics{
			WebhookMetrics: metrics.NewWebhookMetrics(), MatcherMetrics: cel.NewMatcherMetrics(),
		}, cel.NewDefaultCompiler())
}
