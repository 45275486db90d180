package config

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Extension configures an extension API server: one that serves API groups to another cluster, its host. Except for
// Groups its flags are those of upstream's extension servers.
type Extension struct {
	// Groups are the served API groups. If there are none, the server is that of a cluster and the other fields are
	// unused.
	Groups []string
	// Kubeconfig is for the host's namespaces, webhooks and policies; empty: the service account of the pod.
	Kubeconfig string
	// AuthenticationKubeconfig is for TokenReviews and the lookup; empty: Kubeconfig.
	AuthenticationKubeconfig string
	// SkipLookup ignores the ConfigMap extension-apiserver-authentication of the host.
	SkipLookup bool
	// TolerateLookupFailure starts the server although the ConfigMap cannot be read.
	TolerateLookupFailure bool
	// AuthorizationKubeconfig is for SubjectAccessReviews; empty: Kubeconfig.
	AuthorizationKubeconfig string
	// AlwaysAllowPaths are not authorized; a path may end in an asterisk.
	AlwaysAllowPaths []string
}

// Enabled reports whether the server is an extension server.
func (e *Extension) Enabled() bool { return len(e.Groups) > 0 }

// defaultExtension has the defaults of upstream's DelegatingAuthorizationOptions.
func defaultExtension() Extension {
	return Extension{AlwaysAllowPaths: []string{"/healthz", "/readyz", "/livez"}}
}

const extensionGroups = "extension-groups"

// extensionFlags must follow authenticationFlags.
func (c *Config) extensionFlags(f *pflag.FlagSet) {
	e := &c.Extension
	sliceFlag(f, &e.Groups, extensionGroups, "API groups to serve as an extension API server of another cluster, the host. Their CustomResourceDefinitions are stored in this server; built-in kinds are not served.")
	stringFlag(f, &e.Kubeconfig, "kubeconfig", "Kubeconfig of the host, for its namespaces, webhooks and policies; default: the service account of the pod. Needs --extension-groups.")
	stringFlag(f, &e.AuthenticationKubeconfig, "authentication-kubeconfig", "Kubeconfig of the host, with permission to create tokenreviews.authentication.k8s.io; default: --kubeconfig. Needs --extension-groups.")
	boolFlag(f, &e.SkipLookup, "authentication-skip-lookup", "Do not look up missing authentication configuration in the host. Needs --extension-groups.")
	boolFlag(f, &e.TolerateLookupFailure, "authentication-tolerate-lookup-failure", "Start even if the authentication configuration of the host cannot be looked up. Until it can, all requests may be treated as anonymous. Needs --extension-groups.")
	stringFlag(f, &e.AuthorizationKubeconfig, "authorization-kubeconfig", "Kubeconfig of the host, with permission to create subjectaccessreviews.authorization.k8s.io; default: --kubeconfig. Needs --extension-groups.")
	sliceFlag(f, &e.AlwaysAllowPaths, "authorization-always-allow-paths", "Paths that are allowed without authorization by the host. Needs --extension-groups.")
	c.trackFlag(f, tokenTTL) // the others are tracked already
}

// The flags of the caches of delegated decisions. An extension server has another default for them than kube-apiserver.
const (
	tokenTTL        = "authentication-token-webhook-cache-ttl"
	authorizedTTL   = "authorization-webhook-cache-authorized-ttl"
	unauthorizedTTL = "authorization-webhook-cache-unauthorized-ttl"

	delegatedTTL = 10 * time.Second
)

// TokenTTL returns how long an extension server caches the result of a TokenReview.
func (c *Config) TokenTTL() time.Duration {
	return c.delegatedTTL(tokenTTL, c.Authentication.TokenWebhook.CacheTTL)
}

// AuthorizedTTL returns how long an extension server caches that a request is allowed.
func (c *Config) AuthorizedTTL() time.Duration {
	return c.delegatedTTL(authorizedTTL, c.Authorization.Webhook.AuthorizedTTL)
}

// UnauthorizedTTL returns how long an extension server caches that a request is not allowed.
func (c *Config) UnauthorizedTTL() time.Duration {
	return c.delegatedTTL(unauthorizedTTL, c.Authorization.Webhook.UnauthorizedTTL)
}

func (c *Config) delegatedTTL(flag string, value time.Duration) time.Duration {
	if c.isSet(flag) {
		return value
	}
	return delegatedTTL
}

// ofExtensions are the flags that need --extension-groups.
var ofExtensions = []string{
	"kubeconfig", "authentication-kubeconfig", "authentication-skip-lookup", "authentication-tolerate-lookup-failure",
	"authorization-kubeconfig", "authorization-always-allow-paths",
}

// ofClusters are the flags that configure what an extension server does not have: built-in kinds, its own users and
// permissions, Services, kubelets, controllers and aggregation.
var ofClusters = []string{
	"aggregator-reject-forwarding-redirect", "allow-privileged", "api-audiences", "apiserver-count",
	"authentication-config", "authentication-token-webhook-config-file", "authentication-token-webhook-version",
	"authorization-config", "authorization-mode", "authorization-policy-file", "authorization-webhook-config-file",
	"authorization-webhook-version", "controllers", "default-not-ready-toleration-seconds",
	"default-unreachable-toleration-seconds", "enable-aggregator-routing", "enable-bootstrap-token-auth",
	"endpoint-reconciler-type", "event-ttl", "kubelet-certificate-authority", "kubelet-client-certificate",
	"kubelet-client-key", "kubelet-port", "kubelet-preferred-address-types", "kubelet-timeout",
	"kubernetes-service-node-port", "max-connection-bytes-per-sec", "oidc-ca-file", "oidc-client-id",
	"oidc-groups-claim", "oidc-groups-prefix", "oidc-issuer-url", "oidc-required-claim", "oidc-signing-algs",
	"oidc-username-claim", "oidc-username-prefix", "peer-advertise-ip", "peer-advertise-port", "peer-ca-file",
	"proxy-client-cert-file", "proxy-client-key-file",
	"runtime-config", "service-account-extend-token-expiration", "service-account-issuer",
	"service-account-jwks-uri", "service-account-key-file", "service-account-lookup",
	"service-account-max-token-expiration", "service-account-signing-endpoint", "service-account-signing-key-file",
	"service-cluster-ip-range", "service-node-port-range", "token-auth-file",
}

// validateExtension rejects flags of the other kind of server: none is ignored in silence.
func (c *Config) validateExtension() []error {
	var errs []error
	if !c.Extension.Enabled() {
		for _, name := range c.changed(ofExtensions) {
			errs = append(errs, fmt.Errorf("--%s requires --%s", name, extensionGroups))
		}
		return errs
	}
	for _, name := range c.changed(ofClusters) {
		errs = append(errs, fmt.Errorf("--%s cannot be used with --%s", name, extensionGroups))
	}
	for _, group := range c.Extension.Groups {
		if problem := checkGroup(group); problem != "" {
			errs = append(errs, fmt.Errorf("--%s: %q %s", extensionGroups, group, problem))
		}
	}
	return errs
}

// changed returns the flags whose values differ from their defaults.
func (c *Config) changed(names []string) []string {
	flags, defaults := c.Flags(), Default().Flags()
	var changed []string
	for _, name := range names {
		if flags.Lookup(name).Value.String() != defaults.Lookup(name).Value.String() {
			changed = append(changed, name)
		}
	}
	return changed
}

// checkGroup returns why an API group cannot be chosen, or "". Groups below k8s.io can: CustomResourceDefinitions of
// them exist, with the approval of Kubernetes' API review.
func checkGroup(group string) string {
	switch {
	case len(validation.IsDNS1123Subdomain(group)) > 0:
		return "is not a DNS subdomain"
	case !strings.Contains(group, "."):
		return "must have a dot: groups without one are Kubernetes' own"
	case group == "apiextensions.k8s.io":
		return "is always served, for the administrators of this server"
	}
	return ""
}

// HTTP2Streams returns --http2-max-streams-per-connection. The default of an extension server is upstream's recommended
// one, because all requests of the host share a connection.
func (c *Config) HTTP2Streams() int {
	const ofHost = 1000
	if c.Extension.Enabled() && c.Serving.HTTP2MaxStreams == 0 {
		return ofHost
	}
	return c.Serving.HTTP2MaxStreams
}
