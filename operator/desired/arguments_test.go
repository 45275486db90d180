package desired

import (
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"

	"quorate.dev/apiserver/config"
	"quorate.dev/operator/api/v1alpha1"
)

func serverFlags() *pflag.FlagSet {
	flags := config.Default().Flags()
	flags.SetOutput(io.Discard)
	return flags
}

func withArgs(args map[string]string) *v1alpha1.ApiServerCluster {
	return demo(func(s *v1alpha1.ApiServerClusterSpec) { s.ExtraArgs = args })
}

// TestEveryFlagIsAllowedOrDenied classifies every flag of the API server. Add a new flag to the golden file if users
// may set it, otherwise to the lists of denied flags, which override the operator or cannot work in its pods.
func TestEveryFlagIsAllowedOrDenied(t *testing.T) {
	text, err := os.ReadFile("testdata/allowed-flags.txt")
	if err != nil {
		t.Fatal(err)
	}
	allowed := strings.Fields(string(text))
	var all []string
	serverFlags().VisitAll(func(flag *pflag.Flag) {
		all = append(all, flag.Name)
		if (denialReason(flag.Name) == "") != slices.Contains(allowed, flag.Name) {
			t.Errorf("--%s: denialReason %q, but in testdata/allowed-flags.txt: %v", flag.Name, denialReason(flag.Name),
				slices.Contains(allowed, flag.Name))
		}
	})
	for _, name := range allowed {
		if !slices.Contains(all, name) {
			t.Errorf("testdata/allowed-flags.txt has --%s, which is no flag of the API server", name)
		}
	}
}

// adjustable lists flags that the operator sets and that users may override.
var adjustable = []string{"shutdown-delay-duration", "shutdown-send-retry-after", "goaway-chance",
	"enable-bootstrap-token-auth", "kubelet-preferred-address-types"}

func TestFlagsOfTheOperatorAreDenied(t *testing.T) {
	for name, c := range replicas {
		rendered, err := configuration(c.cluster, c.replica, podIP, nil)
		if err != nil {
			t.Fatal(err)
		}
		for _, arg := range rendered.Args() {
			flag, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
			if denialReason(flag) == "" && !slices.Contains(adjustable, flag) {
				t.Errorf("%s: the operator sets --%s but spec.extraArgs may set it too", name, flag)
			}
		}
	}
}

func TestDeniedFlags(t *testing.T) {
	for name, want := range map[string]string{
		"client-ca-file":                      setByOperator,
		"client_ca_file":                      setByOperator,
		"client_ca-file":                      setByOperator,
		"--client-ca-file":                    setByOperator,
		"client-ca-file=/x":                   setByOperator,
		"--client_ca_file=/x":                 setByOperator,
		"etcd_peer_trusted_ca_file":           setByOperator,
		"etcd_servers_overrides":              setByOperator,
		"etcd-unsafe-no-fsync":                setByOperator,
		"tls-curve-preferences":               setByOperator,
		"anonymous-auth":                      setByOperator, // kubelets probe without credentials
		"service-account-signing-endpoint":    setByOperator,
		"token-auth-file":                     unavailable,
		"token_auth_file":                     unavailable,
		"authorization-config":                setByOperator,
		"authentication-config":               setByOperator,
		"encryption-provider-config":          setByOperator,
		"audit-policy-file":                   setByOperator,
		"audit_log_path":                      setByOperator,
		"oidc-issuer-url":                     unavailable,
		"egress-selector-config-file":         setByOperator,
		"authorization-webhook-config-file":   unavailable,
		"authorization-policy-file":           unavailable,
		"admission-control-config-file":       setByOperator,
		"kubelet-client-key":                  unavailable,
		"max_requests_inflight":               `"max_requests_inflight" is max-requests-inflight`,
		"--max-requests-inflight":             `"--max-requests-inflight" is max-requests-inflight`,
		"max-requests-inflight=1":             `"max-requests-inflight=1" is max-requests-inflight`,
		"Client-CA-File":                      "no flag", // the normalization keeps the case
		"":                                    "no flag",
		"--":                                  "no flag",
		"client-ca-file\n":                    "no flag",
		"max-requests-inflight --secure-port": "no flag",
	} {
		for _, value := range []string{"", "1"} {
			if err := Validate(withArgs(map[string]string{name: value}), nil); err == nil ||
				!strings.Contains(err.Error(), want) {
				t.Errorf("%q=%q: error %v, want %q", name, value, err, want)
			}
		}
	}
}

// TestServerWouldNotStart checks that values with which the API server would not start are rejected.
func TestServerWouldNotStart(t *testing.T) {
	for want, args := range map[string]map[string]string{
		"--max-requests-inflight":                 {"max-requests-inflight": "-1"},
		"--goaway-chance":                         {"goaway-chance": "0.5"},
		"--etcd-election-timeout":                 {"etcd-election-timeout": "100ms", "etcd-heartbeat-interval": "100ms"},
		"service-cluster-ip-range":                {"service-cluster-ip-range": "10.0.0.0/33"},
		"--cors-allowed-origins":                  {"cors-allowed-origins": "example"},
		"emulation version":                       {"emulated-version": "1.31"},
		"--shutdown-delay-duration":               {"shutdown-delay-duration": "-1s"},
		"graceful termination would take":         {"shutdown-delay-duration": "59m"},
		"graceful termination would take 4h0m12s": {"shutdown-delay-duration": "2562047h", "request-timeout": "2562047h"},
	} {
		if err := Validate(withArgs(args), nil); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: error %v, want %q", args, err, want)
		}
	}
	for _, args := range []map[string]string{
		{"goaway-chance": "0.01"}, {"tls-min-version": "VersionTLS13"}, {
			"shutdown-delay-duration": "70s", "request-timeout": "5m",
		},
	} {
		if err := Validate(withArgs(args), nil); err != nil {
			t.Errorf("%v: %v", args, err)
		}
	}
}

func TestPodsMayTakeAsLongToStopAsTheServer(t *testing.T) {
	for _, c := range []struct {
		args map[string]string
		want int64 // terminationGracePeriodSeconds
	}{
		{nil, 75},
		{map[string]string{"shutdown-delay-duration": "70s"}, 142},
		{map[string]string{"shutdown-watch-termination-grace-period": "30s", "request-timeout": "2m"}, 165},
	} {
		pod, err := Pod(withArgs(c.args), "quorate:1", replicas["initial member"].replica, "")
		if err != nil {
			t.Fatal(err)
		}
		if got := *pod.Spec.TerminationGracePeriodSeconds; got != c.want {
			t.Errorf("%v: grace period %d s, want %d", c.args, got, c.want)
		}
	}
}

// started returns the configuration of the API server in a pod, after the kubelet has expanded variables.
func started(t *testing.T, cluster *v1alpha1.ApiServerCluster, replica Replica) *config.Config {
	t.Helper()
	pod, err := Pod(cluster, "quorate:1", replica, "hash")
	if err != nil {
		t.Fatal(err)
	}
	mapping := expansion.MappingFuncFor(map[string]string{"POD_IP": exampleAddress})
	var args []string
	for _, arg := range pod.Spec.Containers[0].Args[1:] {
		args = append(args, expansion.Expand(arg, mapping))
	}
	parsed := config.Default()
	if err := parsed.Flags().Parse(args); err != nil {
		t.Fatal(err)
	}
	if err := parsed.Validate(); err != nil {
		t.Fatal(err)
	}
	return parsed
}

func TestExtraArgsReachTheServerLiterally(t *testing.T) {
	args := map[string]string{
		"external-hostname": "$(POD_IP)$$(POD_IP)$", "cors-allowed-origins": `//a\.example(:|$),//b\.example$`,
		"runtime-config": "api/all=true",
	}
	c := started(t, withArgs(args), replicas["member"].replica)
	if got := c.Serving.ExternalHostname; got != args["external-hostname"] {
		t.Errorf("external-hostname %q", got)
	}
	if got := strings.Join(c.Serving.CORSAllowedOrigins, ","); got != args["cors-allowed-origins"] {
		t.Errorf("cors-allowed-origins %q", got)
	}
	if c.Serving.BindAddress != exampleAddress || !maps.Equal(c.API.RuntimeConfig, map[string]string{"api/all": "true"}) {
		t.Errorf("%s %v", c.Serving.BindAddress, c.API.RuntimeConfig)
	}
}
