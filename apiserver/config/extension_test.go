package config

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestExtensionFlags(t *testing.T) {
	etcd := "--etcd-servers=http://127.0.0.1:2379"
	for name, test := range map[string]struct {
		args []string
		want string // part of the error; empty: valid
	}{
		"as in a pod": {[]string{"--extension-groups=demo.example.com,a.b"}, ""},
		"everything": {[]string{
			"--extension-groups=demo.example.com", "--kubeconfig=k", "--authentication-kubeconfig=a",
			"--authorization-kubeconfig=b", "--authentication-skip-lookup", "--authentication-tolerate-lookup-failure",
			"--authorization-always-allow-paths=/x*", "--authentication-token-webhook-cache-ttl=1m",
			"--authorization-webhook-cache-authorized-ttl=1m", "--authorization-webhook-cache-unauthorized-ttl=0s",
			"--client-ca-file=c", "--requestheader-client-ca-file=r",
		}, ""},
		"a cluster's": {
			[]string{"--extension-groups=demo.example.com", "--authorization-mode=RBAC"},
			"--authorization-mode cannot be used with --extension-groups",
		},
		"without groups": {[]string{"--kubeconfig=k"}, "--kubeconfig requires --extension-groups"},
		"a core group":   {[]string{"--extension-groups=apps"}, "must have a dot"},
		"definitions":    {[]string{"--extension-groups=apiextensions.k8s.io"}, "is always served"},
		"not a name":     {[]string{"--extension-groups=A.b"}, "is not a DNS subdomain"},
	} {
		t.Run(name, func(t *testing.T) {
			err := parse(t, append(test.args, etcd)...).Validate()
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

// Every flag must be known, because an unknown name would end validation with a panic.
func TestFlagsOfOneModeExist(t *testing.T) {
	flags := Default().Flags()
	for _, name := range slices.Concat(extensionFlags, clusterFlags) {
		if flags.Lookup(name) == nil {
			t.Errorf("--%s does not exist", name)
		}
	}
}

func TestDelegatedTTLs(t *testing.T) {
	c := parse(t, "--extension-groups=demo.example.com", "--authorization-webhook-cache-unauthorized-ttl=0s",
		"--authentication-token-webhook-cache-ttl=2m")
	if token, allowed, denied := c.TokenTTL(), c.AuthorizedTTL(), c.UnauthorizedTTL(); token != 2*time.Minute ||
		allowed != 10*time.Second || denied != 0 {
		t.Errorf("got %v, %v and %v", token, allowed, denied)
	}
	if streams := c.HTTP2Streams(); streams != 1000 {
		t.Errorf("%d streams", streams)
	}
	if streams := parse(t).HTTP2Streams(); streams != 0 {
		t.Errorf("%d streams of a cluster's server", streams)
	}
}
