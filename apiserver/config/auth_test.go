package config

import (
	"slices"
	"strings"
	"testing"
)

func TestValidateAuth(t *testing.T) {
	oidc := []string{"--oidc-issuer-url=https://x", "--oidc-client-id=a"}
	for name, test := range map[string]struct {
		args []string
		want string // empty: valid
	}{
		"issuer":                {oidc, ""},
		"issuer without client": {oidc[:1], "oidc-issuer-url and oidc-client-id must be specified together"},
		"default given":         {[]string{"--oidc-username-claim=sub"}, "must be specified together"},
		"empty given":           {[]string{"--oidc-required-claim="}, "malformed pair"},
		"file and issuer":       {append(oidc, "--authentication-config=f"), "are mutually exclusive"},
		"file":                  {[]string{"--authentication-config=f"}, ""},
		"all modes":             {[]string{"--authorization-mode=Node,RBAC,AlwaysAllow,AlwaysDeny"}, ""},
		"ABAC":                  {[]string{"--authorization-mode=ABAC", "--authorization-policy-file=f"}, ""},
		"ABAC without policy":   {[]string{"--authorization-mode=ABAC"}, "ABAC's authorization policy file not passed"},
		"policy without ABAC":   {[]string{"--authorization-policy-file=f"}, "without mode ABAC"},
		"Webhook":               {[]string{"--authorization-mode=Webhook", "--authorization-webhook-config-file=f"}, ""},
		"Webhook without file": {
			[]string{"--authorization-mode=Webhook"}, "Webhook's authorization config file not passed",
		},
		"webhook without Webhook": {[]string{"--authorization-webhook-config-file=f"}, "without mode Webhook"},
		"no mode":                 {[]string{"--authorization-mode="}, "at least one authorization-mode must be passed"},
		"modes and file": {[]string{"--authorization-config=f", "--authorization-mode=AlwaysAllow"},
			"--authorization-config can not be specified when"},
		"cache and file": {[]string{"--authorization-config=f", "--authorization-webhook-cache-authorized-ttl=5m"},
			"--authorization-config can not be specified when"},
		"authorization file": {[]string{"--authorization-config=f"}, ""},
		"signer":             {[]string{"--service-account-signing-endpoint=/s", "--service-account-issuer=https://x"}, ""},
		"signer and key": {[]string{"--service-account-signing-endpoint=/s", "--service-account-issuer=https://x",
			"--service-account-signing-key-file=k"}, "mutually exclusive"},
		"signer and keys": {[]string{"--service-account-signing-endpoint=/s", "--service-account-issuer=https://x",
			"--service-account-key-file=k"}, "mutually exclusive"},
		"signer without issuer": {
			[]string{"--service-account-signing-endpoint=@a.b"}, "service-account-issuer is a required flag",
		},
		"abstract socket": {[]string{"--service-account-signing-endpoint=@a/b", "--service-account-issuer=https://x"},
			"must be a valid abstract socket name"},
		"empty issuer": {[]string{"--service-account-issuer="}, "service-account-issuer should not be an empty string"},
		"issuer twice": {
			[]string{"--service-account-issuer=a", "--service-account-issuer=a"},
			`service-account-issuer "a" is already specified`,
		},
		"issuer not a URL": {[]string{"--service-account-issuer=https://%"}, "contained a ':' but was not a valid URL"},
		"keys by HTTP": {
			[]string{"--service-account-jwks-uri=http://x"}, "service-account-jwks-uri requires https scheme",
		},
		"keys nowhere": {[]string{"--service-account-jwks-uri=https://%"}, "service-account-jwks-uri must be a valid URL"},
		"blank user header": {[]string{"--requestheader-username-headers=X-Remote-User, "},
			`empty value in "requestheader-username-headers"`},
		"blank name of a proxy": {
			[]string{"--requestheader-allowed-names= "}, `empty value in "requestheader-allowed-names"`,
		},
		"another UID header": {[]string{"--requestheader-uid-headers=X-User-Id"},
			"is set without specifying the standard X-Remote-Uid header"},
		"UID header":            {[]string{"--requestheader-uid-headers=X-User-Id,x-remote-uid"}, ""},
		"proxy without headers": {[]string{"--requestheader-client-ca-file=f"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			c := Default()
			err := c.Flags().Parse(append([]string{"--etcd-servers=http://x:1"}, test.args...))
			if err == nil {
				err = c.Validate()
			}
			if (err == nil) != (test.want == "") || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v, want %q", err, test.want)
			}
		})
	}
}

func TestClaimsRoundTrip(t *testing.T) {
	args := []string{"--oidc-required-claim=a=b,c=d", "--oidc-required-claim=e=f", "--oidc-signing-algs=ES256,RS256"}
	c := parse(t, args...)
	if got := c.Args(); !slices.Equal(got, args) {
		t.Errorf("rendered %q", got)
	}
	if got := c.Authentication.OIDC.RequiredClaims; got["a"] != "b,c=d" || got["e"] != "f" {
		t.Errorf("parsed %q", got)
	}
}

// Flags that were set are known, even after others were rendered from the same configuration.
func TestSetFlags(t *testing.T) {
	c := parse(t, "--anonymous-auth")
	_ = c.Args()
	if !c.AnonymousSet() || Default().AnonymousSet() {
		t.Error("--anonymous-auth is not known as set, or always")
	}
}
