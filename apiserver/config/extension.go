package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/util/validation"
)

// Extension configures an extension API server, which serves API groups to another cluster, its host. All flags except
// --extension-groups are also flags of upstream's extension servers.
type Extension struct {
	// Groups are the API groups to serve. If there are none, the server is the API server of a cluster, and the other
	// fields are not used.
	Groups []string
	// Kubeconfig is the file with the kubeconfig for the host's namespaces, webhooks and policies. The default is the
	// service account of the pod.
	Kubeconfig string
	// AuthenticationKubeconfig is the kubeconfig for TokenReviews and the lookup. The default is Kubeconfig.
	AuthenticationKubeconfig string
	// SkipLookup makes the server ignore the ConfigMap extension-apiserver-authentication of the host.
	SkipLookup bool
	// TolerateLookupFailure makes the server start although it cannot read this ConfigMap.
	TolerateLookupFailure bool
	// AuthorizationKubeconfig is the kubeconfig for SubjectAccessReviews. The default is Kubeconfig.
	AuthorizationKubeconfig string
	// AlwaysAllowPaths are allowed without authorization. A path may end with an asterisk.
	AlwaysAllowPaths []string
}

// Enabled reports whether the server is an extension server.
func (e *Extension) Enabled() bool { return len(e.Groups) > 0 }

// Serves reports whether the custom resources of a group are served. The API server of a cluster serves all groups.
func (e *Extension) Serves(group string) bool {
	return !e.Enabled() || slices.Contains(e.Groups, group)
}

// defaultExtension returns the defaults of upstream's DelegatingAuthorizationOptions.
func defaultExtension() Extension {
	return Extension{AlwaysAllowPaths: []string{"/healthz", "/readyz", "/livez"}}
}

const extensionGroups = "extension-groups"

// extensionFlags adds the flags of extension servers. It must be called after authenticationFlags.
func (c *Config) extensionFlags(f *pflag.FlagSet) {
	e := &c.Extension
	sliceFlag(f, &e.Groups, extensionGroups, "API groups to serve as an extension API server of another cluster, the "+
		"host. Their CustomResourceDefinitions are stored in this server; built-in kinds are not served.")
	stringFlag(f, &e.Kubeconfig, "kubeconfig", "Kubeconfig of the host, for its namespaces, webhooks and policies; "+
		"default: the service account of the pod. Needs --extension-groups.")
	stringFlag(f, &e.AuthenticationKubeconfig, "authentication-kubeconfig", "Kubeconfig of the host, with permission to "+
		"create tokenreviews.authentication.k8s.io; default: --kubeconfig. Needs --extension-groups.")
	boolFlag(f, &e.SkipLookup, "authentication-skip-lookup",
		"Do not look up missing authentication configuration in the host. Needs --extension-groups.")
	boolFlag(f, &e.TolerateLookupFailure, "authentication-tolerate-lookup-failure", "Start even if the authentication "+
		"configuration of the host cannot be looked up. Until it can, all requests may be treated as anonymous. Needs "+
		"--extension-groups.")
	stringFlag(f, &e.AuthorizationKubeconfig, "authorization-kubeconfig", "Kubeconfig of the host, with permission to "+
		"create subjectaccessreviews.authorization.k8s.io; default: --kubeconfig. Needs --extension-groups.")
	sliceFlag(f, &e.AlwaysAllowPaths, "authorization-always-allow-paths",
		"Paths that are allowed without authorization by the host. Needs --extension-groups.")
	// authorizationFlags tracks the other two flags.
	c.trackFlag(f, tokenTTL)
}

// These flags configure the caches of delegated decisions. Their default for an extension server is delegatedTTL, which
// differs from kube-apiserver's default.
const (
	tokenTTL        = "authentication-token-webhook-cache-ttl"
	authorizedTTL   = "authorization-webhook-cache-authorized-ttl"
	unauthorizedTTL = "authorization-webhook-cache-unauthorized-ttl"

	delegatedTTL = 10 * time.Second
)

// TokenTTL returns the time for which an extension server caches the result of a TokenReview.
func (c *Config) TokenTTL() time.Duration {
	return c.delegatedTTL(tokenTTL, c.Authentication.TokenWebhook.CacheTTL)
}

// AuthorizedTTL returns the time for which an extension server caches that a request is allowed.
func (c *Config) AuthorizedTTL() time.Duration {
	return c.delegatedTTL(authorizedTTL, c.Authorization.Webhook.AuthorizedTTL)
}

// UnauthorizedTTL returns the time for which an extension server caches that a request is not allowed.
func (c *Config) UnauthorizedTTL() time.Duration {
	return c.delegatedTTL(unauthorizedTTL, c.Authorization.Webhook.UnauthorizedTTL)
}

func (c *Config) delegatedTTL(flag string, value time.Duration) time.Duration {
	if c.isSet(flag) {
		return value
	}
	return delegatedTTL
}

// extensionFlags are the flags that require --extension-groups.
var extensionFlags = []string{
	"kubeconfig", "authentication-kubeconfig", "authentication-skip-lookup", "authentication-tolerate-lookup-failure",
	"authorization-kubeconfig", "authorization-always-allow-paths",
}

// clusterFlags are the flags that an extension server rejects. They configure built-in kinds, users and permissions of
// the cluster, Services, kubelets, controllers and aggregation, which an extension server does not have.
var clusterFlags = []string{
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

// validateExtension returns errors for flags that this kind of server does not support, so that no flag is ignored
// silently.
func (c *Config) validateExtension() []error {
	var errs []error
	if !c.Extension.Enabled() {
		for _, name := range c.changed(extensionFlags) {
			errs = append(errs, fmt.Errorf("--%s requires --%s", name, extensionGroups))
		}
		return errs
	}
	for _, name := range c.changed(clusterFlags) {
		errs = append(errs, fmt.Errorf("--%s cannot be used with --%s", name, extensionGroups))
	}
	for _, group := range c.Extension.Groups {
		if problem := checkGroup(group); problem != "" {
			errs = append(errs, fmt.Errorf("--%s: %q %s", extensionGroups, group, problem))
		}
	}
	return errs
}

// changed returns the names of the flags whose values differ from the defaults.
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

// checkGroup returns the reason why an extension server cannot serve an API group, or "". Groups below k8s.io are
// allowed:
// CustomResourceDefinitions in such groups exist, with the approval of Kubernetes' API review.
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

// HTTP2Streams returns --http2-max-streams-per-connection. The default of an extension server is the value that
// upstream recommends, because all requests of the host share one connection.
func (c *Config) HTTP2Streams() int {
	const ofHost = 1000
	if c.Extension.Enabled() && c.Serving.HTTP2MaxStreams == 0 {
		return ofHost
	}
	return c.Serving.HTTP2MaxStreams
}
