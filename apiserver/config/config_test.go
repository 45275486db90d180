package config

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apiserver/pkg/storage/storagebackend"
)

func parse(t *testing.T, args ...string) *Config {
	t.Helper()
	c := Default()
	if err := c.Flags().Parse(args); err != nil {
		t.Fatal(err)
	}
	return c
}

// The flags that kubeadm and envtest set.
var installers = map[string][]string{
	"kubeadm": {
		"--advertise-address=10.0.0.1", "--allow-privileged=true",
		"--authorization-mode=Node,RBAC", "--client-ca-file=ca.crt", "--enable-admission-plugins=NodeRestriction",
		"--enable-bootstrap-token-auth=true", "--etcd-cafile=ca.crt", "--etcd-certfile=e.crt", "--etcd-keyfile=e.key",
		"--etcd-servers=https://127.0.0.1:2379", "--kubelet-client-certificate=k.crt", "--kubelet-client-key=k.key",
		"--kubelet-preferred-address-types=InternalIP,ExternalIP,Hostname", "--proxy-client-cert-file=p.crt",
		"--proxy-client-key-file=p.key", "--requestheader-allowed-names=front-proxy-client",
		"--requestheader-client-ca-file=f.crt", "--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--requestheader-group-headers=X-Remote-Group", "--requestheader-username-headers=X-Remote-User",
		"--secure-port=6443", "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
		"--service-account-key-file=sa.pub", "--service-account-signing-key-file=sa.key",
		"--service-cluster-ip-range=10.96.0.0/12", "--tls-cert-file=a.crt", "--tls-private-key-file=a.key",
	},
	"envtest": {
		"--service-cluster-ip-range=10.0.0.0/24", "--allow-privileged=true", "--disable-admission-plugins=ServiceAccount",
		"--cert-dir=/tmp/x", "--authorization-mode=RBAC", "--secure-port=1234", "--bind-address=127.0.0.1",
		"--service-account-issuer=https://127.0.0.1:1234/", "--service-account-key-file=sa",
		"--service-account-signing-key-file=sa", "--client-ca-file=ca", "--etcd-servers=http://127.0.0.1:2379",
	},
	"kind":     {"--runtime-config=", "--feature-gates=", "--etcd-servers=http://127.0.0.1:2379"},
	"upgrades": {"--etcd-servers=http://x:1", "--emulated-version=1.36", "--min-compatibility-version=kube=1.35"},
	"test-cmd": {
		"--runtime-config=api/v1", "--service-account-lookup=true", "--token-auth-file=t",
		"--storage-media-type=application/json", "--etcd-servers=http://x:1", "--version=v1.37.2-custom",
	},
}

func TestInstallersFlags(t *testing.T) {
	for name, args := range installers {
		t.Run(name, func(t *testing.T) {
			if err := parse(t, args...).Validate(); err != nil {
				t.Error(err)
			}
		})
	}
}

// Args and Flags are inverse, so that the server parses what the operator renders.
func TestArgsRoundTrip(t *testing.T) {
	for name, args := range installers {
		t.Run(name, func(t *testing.T) {
			before := parse(t, args...)
			after := parse(t, before.Args()...)
			if !slices.Equal(before.Args(), after.Args()) {
				t.Errorf("rendered %v, parsed and rendered again %v", before.Args(), after.Args())
			}
		})
	}
	c := Default()
	c.Authentication.ServiceAccountIssuers = []string{"https://a", "https://b,c"}
	c.Serving.MinRequestTimeout = 90 * time.Second
	c.Serving.CORSAllowedOrigins = []string{`^https://[a-z]{1,3}\.org$`, `//"quoted"$`, "//plain$"}
	again := parse(t, c.Args()...)
	if !slices.Equal(again.Serving.CORSAllowedOrigins, c.Serving.CORSAllowedOrigins) {
		t.Errorf("came back as %q", again.Serving.CORSAllowedOrigins)
	}
	if !slices.Equal(again.Authentication.ServiceAccountIssuers, c.Authentication.ServiceAccountIssuers) ||
		again.Serving.MinRequestTimeout != 90*time.Second {
		t.Errorf("came back as %+v %v", again.Authentication.ServiceAccountIssuers, again.Serving.MinRequestTimeout)
	}
}

func TestDefaultsRenderNothing(t *testing.T) {
	if args := Default().Args(); len(args) != 0 {
		t.Errorf("the defaults render %v", args)
	}
}

func TestUnknownFlagIsRefused(t *testing.T) {
	if err := Default().Flags().Parse([]string{"--no-such-flag=1"}); err == nil ||
		!strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("an unknown flag was answered with %v", err)
	}
}

func TestFlagsWithoutEffect(t *testing.T) {
	c := parse(t, "--etcd-servers=http://x:1", "--secure-port=1", "--log-json-split-stream=false",
		"--kubelet-read-only-port=1", "--default-watch-cache-size=3",
		"--encryption-provider-config=", "--storage-backend=etcd3")
	if err := c.Validate(); err != nil {
		t.Errorf("harmless flags: %v", err)
	}
}

// The default of a flag is harmless however it is spelled.
func TestDefaultsOfUnsafeFlags(t *testing.T) {
	c := parse(t, "--etcd-servers=http://x:1", "--encryption-provider-config-automatic-reload=False")
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
}

func TestValuesOfUnimplementedFlags(t *testing.T) {
	for _, arg := range []string{
		"--vmodule=x",
		"--log-json-info-buffer-size=many", "--allow-metric-labels=x", "--kubelet-read-only-port=-1",
	} {
		if err := Default().Flags().Parse([]string{arg}); err == nil {
			t.Errorf("%s is accepted", arg)
		}
	}
}

// Values that kube-apiserver accepts.
func TestEtcdLikeUpstream(t *testing.T) {
	c := parse(t, "--etcd-servers=http://x:1", "--etcd-prefix=registry", "--etcd-healthcheck-timeout=0s",
		"--etcd-readycheck-timeout=0s")
	if err := c.Validate(); err != nil {
		t.Error(err)
	}
	health, readiness := c.Etcd.CheckTimeouts()
	if health != storagebackend.DefaultHealthcheckTimeout || readiness != storagebackend.DefaultReadinessTimeout {
		t.Errorf("the time-outs are %v and %v", health, readiness)
	}
	c = parse(t, "--etcd-servers=http://x:1", "--etcd-healthcheck-timeout=3s", "--etcd-readycheck-timeout=4s")
	if health, readiness = c.Etcd.CheckTimeouts(); health != 3*time.Second || readiness != 4*time.Second {
		t.Errorf("the time-outs are %v and %v", health, readiness)
	}
}

func TestEveryFlagHasAUsage(t *testing.T) {
	Default().Flags().VisitAll(func(f *pflag.Flag) {
		if f.Usage == "" {
			t.Errorf("--%s is not explained", f.Name)
		}
	})
}

func TestUsualValuesAreValid(t *testing.T) {
	if err := parse(t, "--etcd-servers=http://x:1", "--advertise-address=fd00::1",
		`--cors-allowed-origins=//example\.com(:|$),^https://.*\.org$`,
		"--strict-transport-security-directives=max-age=31536000,includeSubDomains,preload",
		"--service-account-max-token-expiration=1h").Validate(); err != nil {
		t.Error(err)
	}
}

func TestValidate(t *testing.T) {
	for name, test := range map[string]struct {
		args []string
		want string
	}{
		"no storage": {nil, "--etcd-servers must be specified"},
		"a reload of no file": {[]string{"--etcd-servers=http://x:1", "--encryption-provider-config-automatic-reload"},
			"--encryption-provider-config-automatic-reload must be set with --encryption-provider-config"},
		"a storage backend": {
			[]string{"--etcd-servers=http://x:1", "--storage-backend=etcd2"}, "--storage-backend \"etcd2\" invalid",
		},
		"a media type": {
			[]string{"--etcd-servers=http://x:1", "--storage-media-type=text/plain"},
			"--storage-media-type \"text/plain\" invalid",
		},
		"a lease too short": {
			[]string{"--etcd-servers=http://x:1", "--coordinated-leadership-lease-duration=1s"},
			"must be greater than --coordinated-leadership-renew-deadline",
		},
		"a port": {[]string{"--etcd-servers=http://x:1", "--secure-port=70000"}, "--secure-port 70000"},
		"an address": {
			[]string{"--etcd-servers=http://x:1", "--bind-address=host"}, `"host" is not an IP address`,
		},
		"an address published": {
			[]string{"--etcd-servers=http://x:1", "--advertise-address=host"}, `--advertise-address "host" is not an IP address`,
		},
		"an origin without end": {
			[]string{"--etcd-servers=http://x:1", `--cors-allowed-origins=//example\.com`}, "does not pin to start/end of host",
		},
		"an origin from nowhere": {
			[]string{"--etcd-servers=http://x:1", `--cors-allowed-origins=example\.com$`}, "does not pin to start/end of host",
		},
		"no origin": {
			[]string{"--etcd-servers=http://x:1", `--cors-allowed-origins=//a(:|$),`}, "empty value in --cors-allowed-origins",
		},
		"no pattern": {
			[]string{"--etcd-servers=http://x:1", `--cors-allowed-origins=^(`},
			"invalid regular expression: error parsing regexp",
		},
		"a directive": {
			[]string{"--etcd-servers=http://x:1", "--strict-transport-security-directives=preload,maxage=1"},
			`"maxage=1" invalid, allowed values`,
		},
		"a directive's value": {
			[]string{"--etcd-servers=http://x:1", "--strict-transport-security-directives=max-age"},
			`"max-age" invalid, allowed values`,
		},
		"no directive": {
			[]string{"--etcd-servers=http://x:1", "--strict-transport-security-directives=max-age=1,"},
			"empty value in strict-transport-security-directives",
		},
		"a negative chance": {
			[]string{"--etcd-servers=http://x:1", "--goaway-chance=-0.01"}, "--goaway-chance can not be less than 0",
		},
		"a request's time": {
			[]string{"--etcd-servers=http://x:1", "--request-timeout=-1s"}, "--request-timeout can not be negative",
		},
		"a watch's time": {
			[]string{"--etcd-servers=http://x:1", "--min-request-timeout=-1"}, "--min-request-timeout can not be negative",
		},
		"a delay": {
			[]string{"--etcd-servers=http://x:1", "--shutdown-delay-duration=-1s"},
			"--shutdown-delay-duration can not be negative",
		},
		"a watch's grace": {
			[]string{"--etcd-servers=http://x:1", "--shutdown-watch-termination-grace-period=-1s"},
			"shutdown-watch-termination-grace-period, if provided, can not be",
		},
		"a start's grace": {
			[]string{"--etcd-servers=http://x:1", "--livez-grace-period=-1s"}, "--livez-grace-period can not be",
		},
		"a token's short life": {
			[]string{"--etcd-servers=http://x:1", "--service-account-max-token-expiration=59m"},
			"must be between 1 hour and 2^32 seconds",
		},
		"a token's long life": {
			[]string{"--etcd-servers=http://x:1", "--service-account-max-token-expiration=1193047h"},
			"must be between 1 hour and 2^32 seconds",
		},
		"a key without its pair": {[]string{"--etcd-servers=http://x:1", "--tls-cert-file=a"}, "go together"},
		"a signer without name": {
			[]string{"--etcd-servers=http://x:1", "--service-account-signing-key-file=a"},
			"--service-account-issuer is required",
		},
		"a mode": {
			[]string{"--etcd-servers=http://x:1", "--authorization-mode=Perhaps"},
			`authorization-mode "Perhaps" is not a valid mode`,
		},
		"a format of the log": {
			[]string{"--etcd-servers=http://x:1", "--logging-format=xml"},
			"--logging-format: Invalid value: \"xml\": Unsupported log format",
		},
		"a mode twice": {
			[]string{"--etcd-servers=http://x:1", "--authorization-mode=RBAC", "--authorization-mode=Node,RBAC"},
			"specified more than once",
		},
		"a version to come": {
			[]string{"--etcd-servers=http://x:1", "--emulated-version=1.38"},
			"emulation version 1.38 is not between [1.34, 1.37.0]",
		},
		"a version long ago": {
			[]string{"--etcd-servers=http://x:1", "--emulated-version=kube=1.32"},
			"emulation version 1.32 is not between [1.34, 1.37.0]",
		},
		"two versions": {
			[]string{"--etcd-servers=http://x:1", "--emulated-version=kube=1.35", "--emulated-version=1.34"},
			"duplicate version flag, kube=1.35 and kube=1.34",
		},
		"a patch version": {
			[]string{"--etcd-servers=http://x:1", "--emulated-version=1.36.3"}, "patch version not allowed, got: kube=1.36.3",
		},
		"another component": {
			[]string{"--etcd-servers=http://x:1", "--emulated-version=foo=1.36"}, "component not registered: foo",
		},
		"no version": {
			[]string{"--etcd-servers=http://x:1", "--emulated-version=x"}, `could not parse "x" as version`,
		},
		"readers too old": {
			[]string{"--etcd-servers=http://x:1", "--min-compatibility-version=1.30"},
			"minCompatibilityVersion version 1.30 is not between [1.34, 1.37]",
		},
		"readers too new": {
			[]string{"--etcd-servers=http://x:1", "--emulated-version=1.34", "--min-compatibility-version=1.35"},
			"minCompatibilityVersion version 1.35 is not between [1.34, 1.34]",
		},
		"nothing to go forward": {
			[]string{"--etcd-servers=http://x:1", "--emulation-forward-compatible"},
			"ServerRunOptions.EmulationForwardCompatible cannot be set",
		},
		"a member's URL": {[]string{"--etcd-data-dir=/x", "--etcd-listen-peer-urls=x"}, "is not a URL"},
		"a member's state": {
			[]string{"--etcd-data-dir=/x", "--etcd-initial-cluster-state=old"}, "must be new or existing",
		},
		"an override without servers": {
			[]string{"--etcd-servers=http://x:1", "--etcd-servers-overrides=/events"},
			"--etcd-servers-overrides invalid, must be of format: group/resource#servers",
		},
		"an override without group": {
			[]string{"--etcd-servers=http://x:1", "--etcd-servers-overrides=events#http://x:2"},
			"--etcd-servers-overrides invalid",
		},
		"an override with a hole": {
			[]string{"--etcd-servers=http://x:1", "--etcd-servers-overrides=/events#http://x:2;"},
			"--etcd-servers-overrides invalid",
		},
		"an override without etcd": {
			[]string{"--etcd-servers-overrides=/events#http://x:2"}, "--etcd-servers must be specified",
		},
		"an initialization's time": {
			[]string{"--etcd-servers=http://x:1", "--storage-initialization-timeout=-1s"},
			"--storage-initialization-timeout can not be negative value",
		},
		"a cache without size": {
			[]string{"--etcd-servers=http://x:1", "--watch-cache-sizes=pods"}, "invalid value of watch cache size: pods",
		},
		"a cache without number": {
			[]string{"--etcd-servers=http://x:1", "--watch-cache-sizes=pods#x"}, "invalid size of watch cache size: pods#x",
		},
		"a negative cache": {
			[]string{"--etcd-servers=http://x:1", "--watch-cache-sizes=pods#-1"}, "watch cache size cannot be negative: pods#-1",
		},
	} {
		t.Run(name, func(t *testing.T) {
			err := parse(t, test.args...).Validate()
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}
