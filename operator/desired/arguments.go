package desired

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/sets"

	"quorate.dev/apiserver/config"
	"quorate.dev/operator/api/v1alpha1"
)

// Flags that spec.extraArgs cannot set. The CEL rules of ApiServerClusterSpec.ExtraArgs contain the same lists;
// TestExtraArgsRulesAgree compares them.
var (
	// operatorPrefixes are the prefixes of flags that the operator sets. Flags in tunable are exceptions.
	operatorPrefixes = []string{"etcd-", "peer-", "requestheader-", "tls-"}
	tunable          = sets.New("etcd-compaction-interval", "etcd-count-metric-poll-period",
		"etcd-db-metric-poll-interval", "etcd-healthcheck-timeout", "etcd-readycheck-timeout",
		"etcd-snapshot-count", "etcd-heartbeat-interval", "etcd-election-timeout", "tls-min-version", "tls-cipher-suites")
	// operatorFlags are the other flags that the operator sets. They include anonymous-auth, because kubelets probe
	// without credentials.
	operatorFlags = sets.New("admission-control-config-file", "advertise-address", "anonymous-auth",
		"audit-log-path", "audit-policy-file", "audit-webhook-config-file", "authentication-config", "authorization-config",
		"authorization-mode", "bind-address", "cert-dir",
		"client-ca-file", "controllers", "endpoint-reconciler-type", "egress-selector-config-file",
		"encryption-provider-config", "encryption-provider-config-automatic-reload", "help",
		"permit-address-sharing", "permit-port-sharing", "proxy-client-cert-file", "proxy-client-key-file", "secure-port",
		"service-account-issuer", "service-account-key-file", "service-account-signing-endpoint",
		"service-account-signing-key-file", "tracing-config-file", "version")

	// unavailablePrefixes, unavailableFlags and all names with the suffix -file are flags that need a file which the pod
	// does not have, or that the API server does not implement. It would not start with them.
	unavailablePrefixes = []string{"authentication-", "authorization-", "oidc-"}
	unavailableFlags    = sets.New("allow-metric-labels-manifest", "debug-socket-path", "extension-groups", "kubeconfig",
		"kubelet-certificate-authority", "kubelet-client-certificate", "kubelet-client-key")
)

// Reasons for which spec.extraArgs cannot set a flag.
const (
	setByOperator = "is set by the operator"
	unavailable   = "is not available: it needs a file that the pod does not have, or the API server does not implement it"
)

// denialReason returns the reason for which spec.extraArgs cannot set a flag, or "". name must be canonical.
func denialReason(name string) string {
	hasPrefix := func(prefix string) bool { return strings.HasPrefix(name, prefix) }
	switch {
	case tunable.Has(name):
		return ""
	case operatorFlags.Has(name), slices.ContainsFunc(operatorPrefixes, hasPrefix):
		return setByOperator
	case unavailableFlags.Has(name), strings.HasSuffix(name, "-file"), slices.ContainsFunc(unavailablePrefixes, hasPrefix):
		return unavailable
	}
	return ""
}

// canonicalName returns the canonical name of a flag, from any spelling that the command line accepts.
func canonicalName(flags *pflag.FlagSet, name string) string {
	name, _, _ = strings.Cut(strings.TrimLeft(name, "-"), "=")
	return string(flags.GetNormalizeFunc()(flags, name))
}

// setExtra sets the flags of spec.extraArgs. It rejects names that are not canonical, so that each flag has only one
// key, and flags that users cannot set.
func setExtra(c *config.Config, extra map[string]string) error {
	flags := c.Flags()
	flags.SetOutput(io.Discard) // discards messages about deprecated flags, which the API server logs
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(extra)) {
		if err := setFlag(flags, name, extra[name]); err != nil {
			errs = append(errs, fmt.Errorf("spec.extraArgs: %w", err))
		}
	}
	return errors.Join(errs...)
}

func setFlag(flags *pflag.FlagSet, name, value string) error {
	canonical := canonicalName(flags, name)
	reason := denialReason(canonical)
	switch {
	case reason != "":
		return fmt.Errorf("%s %s", canonical, reason)
	case flags.Lookup(canonical) == nil:
		return fmt.Errorf("the API server has no flag %q", canonical)
	case name != canonical:
		return fmt.Errorf("flag names have no leading dashes, underscores or values: %q is %s", name, canonical)
	}
	if err := flags.Set(name, value); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// CheckExtraArgs returns an error if the API server would not start with spec.extraArgs. It passes the flags of each
// kind of replica through the API server's own parser and validation.
func CheckExtraArgs(cluster *v1alpha1.ApiServerCluster) error {
	for _, replica := range exampleReplicas(cluster) {
		rendered, err := configuration(cluster, replica, exampleAddress, cluster.Spec.ExtraArgs)
		if err != nil {
			return err
		}
		if grace := terminationGrace(rendered); grace > maxTerminationGrace {
			return fmt.Errorf("spec.extraArgs: graceful termination would take %s, more than %s: reduce "+
				"--shutdown-delay-duration, --request-timeout or --shutdown-watch-termination-grace-period",
				grace, maxTerminationGrace)
		}
		parsed := config.Default()
		if err := parsed.Flags().Parse(rendered.Args()); err != nil {
			return fmt.Errorf("spec.extraArgs: %w", err)
		}
		if err := parsed.Validate(); err != nil {
			return fmt.Errorf("spec.extraArgs: the API server would not start: %w", err)
		}
	}
	return nil
}

// ExampleConfiguration returns the configuration of a replica, rendered as flags and parsed again by the API server's
// parser.
func ExampleConfiguration(cluster *v1alpha1.ApiServerCluster) (*config.Config, error) {
	rendered, err := configuration(cluster, exampleReplicas(cluster)[0], exampleAddress, cluster.Spec.ExtraArgs)
	if err != nil {
		return nil, err
	}
	parsed := config.Default()
	return parsed, parsed.Flags().Parse(rendered.Args())
}

// ExamplePod returns a pod with the files of a configuration, for validation. Its name is not the name of any replica.
func ExamplePod(cluster *v1alpha1.ApiServerCluster, image string, c Configuration) (*corev1.Pod, error) {
	replica := exampleReplicas(cluster)[0]
	replica.Configuration = c
	pod, err := Pod(cluster, image, replica, "")
	if err != nil {
		return nil, err
	}
	pod.Name = cluster.Name + "-validation"
	return pod, nil
}

// exampleAddress is the address of the pod during validation. RFC 5737 reserves it for documentation.
const exampleAddress = "192.0.2.1"

// exampleReplicas returns one replica of each kind that the cluster can have.
func exampleReplicas(cluster *v1alpha1.ApiServerCluster) []Replica {
	name := cluster.Name + "-0"
	var encrypted Configuration
	if cluster.Spec.Encryption != nil {
		encrypted.Encryption = []byte{}
	}
	if cluster.ExternalEtcd() {
		return []Replica{{Name: name, Configuration: encrypted}}
	}
	return []Replica{
		{Name: name, Member: true, InitialCluster: InitialCluster{
			New: true, PeerURLs: map[string]string{name: PeerURL(cluster, name)},
		}, Configuration: encrypted},
		{Name: name, Endpoints: []string{ClientURL(cluster, name)}, Configuration: encrypted},
	}
}

// literal escapes the values of flags for container arguments, in which the kubelet expands $(NAME).
func literal(extra map[string]string) map[string]string {
	escaped := make(map[string]string, len(extra))
	for name, value := range extra {
		escaped[name] = strings.ReplaceAll(value, "$", "$$")
	}
	return escaped
}

// TokenOverlap returns how long tokens of a replaced service-account key have to be accepted: the longest lifetime of a
// token.
func TokenOverlap(cluster *v1alpha1.ApiServerCluster) time.Duration {
	if overlap := cluster.Spec.Certificates.ServiceAccountKeys.Overlap; overlap != nil {
		return overlap.Duration
	}
	c := config.Default()
	if setExtra(c, cluster.Spec.ExtraArgs) != nil {
		return extendedTokenLifetime // unused, because the spec is invalid
	}
	longest := c.Authentication.ServiceAccountMaxLifetime
	if longest == 0 || c.Authentication.ServiceAccountExtendExpiry {
		longest = max(longest, extendedTokenLifetime)
	}
	return longest
}

// extendedTokenLifetime is the lifetime of a pod's token with --service-account-extend-token-expiration, as in
// kube-apiserver.
const extendedTokenLifetime = 365 * 24 * time.Hour
