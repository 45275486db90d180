package config

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
	cliflag "k8s.io/component-base/cli/flag"
)

// inertFlags are kube-apiserver's flags that are accepted, checked for form and not acted upon yet.
var inertFlags = map[string]string{
	"storage-initialization-timeout":               "duration",
	"enable-garbage-collector":                     "bool",
	"encryption-provider-config":                   "string",
	"encryption-provider-config-automatic-reload":  "bool",
	"etcd-servers-overrides":                       "string",
	"lease-reuse-duration-seconds":                 "int",
	"storage-backend":                              "string",
	"watch-cache-sizes":                            "string",
	"default-watch-cache-size":                     "int",
	"kubelet-read-only-port":                       "int",
	"tls-curve-preferences":                        "string",
	"audit-log-batch-buffer-size":                  "int",
	"audit-log-batch-max-size":                     "int",
	"audit-log-batch-max-wait":                     "duration",
	"audit-log-batch-throttle-burst":               "int",
	"audit-log-batch-throttle-enable":              "bool",
	"audit-log-batch-throttle-qps":                 "float32",
	"audit-log-compress":                           "bool",
	"audit-log-format":                             "string",
	"audit-log-maxage":                             "int",
	"audit-log-maxbackup":                          "int",
	"audit-log-maxsize":                            "int",
	"audit-log-mode":                               "string",
	"audit-log-path":                               "string",
	"audit-log-truncate-enabled":                   "bool",
	"audit-log-truncate-max-batch-size":            "int",
	"audit-log-truncate-max-event-size":            "int",
	"audit-log-version":                            "string",
	"audit-policy-file":                            "string",
	"audit-webhook-batch-buffer-size":              "int",
	"audit-webhook-batch-max-size":                 "int",
	"audit-webhook-batch-max-wait":                 "duration",
	"audit-webhook-batch-throttle-burst":           "int",
	"audit-webhook-batch-throttle-enable":          "bool",
	"audit-webhook-batch-throttle-qps":             "float32",
	"audit-webhook-batch-initial-backoff":          "duration",
	"audit-webhook-config-file":                    "string",
	"audit-webhook-initial-backoff":                "duration",
	"audit-webhook-mode":                           "string",
	"audit-webhook-truncate-enabled":               "bool",
	"audit-webhook-truncate-max-batch-size":        "int",
	"audit-webhook-truncate-max-event-size":        "int",
	"audit-webhook-version":                        "string",
	"contention-profiling":                         "bool",
	"debug-socket-path":                            "string",
	"authentication-config":                        "string",
	"authentication-token-webhook-cache-ttl":       "duration",
	"authentication-token-webhook-config-file":     "string",
	"authentication-token-webhook-version":         "string",
	"oidc-ca-file":                                 "string",
	"oidc-client-id":                               "string",
	"oidc-groups-claim":                            "string",
	"oidc-groups-prefix":                           "string",
	"oidc-issuer-url":                              "string",
	"oidc-required-claim":                          "string",
	"oidc-signing-algs":                            "string",
	"oidc-username-claim":                          "string",
	"oidc-username-prefix":                         "string",
	"authorization-config":                         "string",
	"authorization-policy-file":                    "string",
	"authorization-webhook-cache-authorized-ttl":   "duration",
	"authorization-webhook-cache-unauthorized-ttl": "duration",
	"authorization-webhook-config-file":            "string",
	"authorization-webhook-version":                "string",
	"egress-selector-config-file":                  "string",
	"allow-metric-labels":                          "string",
	"allow-metric-labels-manifest":                 "string",
	"disabled-metrics":                             "string",
	"show-hidden-metrics-for-version":              "string",
	"log-flush-frequency":                          "duration",
	"log-json-info-buffer-size":                    "string",
	"log-json-split-stream":                        "bool",
	"log-text-info-buffer-size":                    "string",
	"log-text-split-stream":                        "bool",
	"vmodule":                                      "string",
	"tracing-config-file":                          "string",
	"aggregator-reject-forwarding-redirect":        "bool",
	"coordinated-leadership-lease-duration":        "duration",
	"coordinated-leadership-renew-deadline":        "duration",
	"coordinated-leadership-retry-period":          "duration",
	"enable-logs-handler":                          "bool",
	"peer-advertise-ip":                            "string",
	"peer-advertise-port":                          "string",
	"peer-ca-file":                                 "string",
	"service-account-signing-endpoint":             "string",
}

// inertValue is a flag without effect. It checks the form of what it is given and remembers it.
type inertValue struct {
	kind     string
	value    string
	standard string // kube-apiserver's default
}

func (v *inertValue) String() string {
	if v.value == "" {
		return v.standard
	}
	return v.value
}
func (v *inertValue) Type() string { return v.kind }

func (v *inertValue) Set(value string) (err error) {
	switch v.kind {
	case "bool":
		_, err = strconv.ParseBool(value)
	case "int":
		_, err = strconv.Atoi(value)
	case "float32":
		_, err = strconv.ParseFloat(value, 32)
	case "duration":
		_, err = time.ParseDuration(value)
	}
	if err == nil {
		v.value = value
	}
	return err
}

func (c *Config) inertFlags(f *pflag.FlagSet) {
	if c.inert == nil {
		c.inert = map[string]*inertValue{}
	}
	for name, kind := range inertFlags {
		value := c.inert[name]
		if value == nil {
			value = &inertValue{kind: kind, standard: inertDefaults[name]}
			c.inert[name] = value
		}
		f.Var(value, name, "Accepted; without effect yet.")
		if kind == "bool" {
			f.Lookup(name).NoOptDefVal = "true"
		}
	}
}

// pendingFlags have a place in Config, since others render or read them, and nothing acts on them yet.
var pendingFlags = []string{
	"enable-aggregator-routing",
	"enable-priority-and-fairness",
	"proxy-client-cert-file", "proxy-client-key-file", "storage-media-type",
	"watch-cache",
}

// Inert returns the names of the flags that were set, other than to their defaults, and have no effect, sorted.
func (c *Config) Inert() []string {
	var names []string
	for name, value := range c.inert {
		if value.String() != value.standard {
			names = append(names, name)
		}
	}
	for _, arg := range c.Args() {
		name, _, _ := strings.Cut(strings.TrimPrefix(arg, "--"), "=")
		if slices.Contains(pendingFlags, name) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// switches is a flag of switches that may come without a value: "api/all=true,apps/v1".
type switches struct {
	*cliflag.ConfigurationMap
}

func newSwitches(into *map[string]string) switches {
	if *into == nil {
		*into = map[string]string{}
	}
	return switches{(*cliflag.ConfigurationMap)(into)}
}

// Set accepts an empty list, which installers pass.
func (s switches) Set(value string) error {
	if value == "" {
		return nil
	}
	return s.ConfigurationMap.Set(value)
}

// secondsValue is a duration given in whole seconds.
type secondsValue time.Duration

func (v *secondsValue) String() string { return strconv.Itoa(int(time.Duration(*v) / time.Second)) }
func (v *secondsValue) Type() string   { return "int" }

func (v *secondsValue) Set(value string) error {
	seconds, err := strconv.Atoi(value)
	if err != nil {
		return fmt.Errorf("not a whole number of seconds: %q", value)
	}
	*v = secondsValue(time.Duration(seconds) * time.Second)
	return nil
}
