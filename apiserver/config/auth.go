package config

import (
	"errors"
	"fmt"
	"maps"
	"net/url"
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// oidcFlagNames and modeFlagNames are the flags that cannot be set together with --authentication-config and
// --authorization-config, even to their defaults.
var (
	oidcFlagNames = []string{
		"oidc-issuer-url", "oidc-client-id", "oidc-ca-file", "oidc-username-claim", "oidc-username-prefix",
		"oidc-groups-claim", "oidc-groups-prefix", "oidc-signing-algs", requiredClaimFlag,
	}
	modeFlagNames = []string{
		"authorization-mode", "authorization-webhook-config-file", "authorization-webhook-version",
		"authorization-webhook-cache-authorized-ttl", "authorization-webhook-cache-unauthorized-ttl",
	}
)

// requiredClaimFlag is a flag with one claim in each occurrence, because values may contain commas.
const requiredClaimFlag = "oidc-required-claim"

// requiredClaimArgs returns the arguments for the required claims, sorted by name.
func (c *Config) requiredClaimArgs() []string {
	var args []string
	claims := c.Authentication.OIDC.RequiredClaims
	for _, name := range slices.Sorted(maps.Keys(claims)) {
		args = append(args, "--"+requiredClaimFlag+"="+name+"="+claims[name])
	}
	return args
}

// authorizationModes are the values of --authorization-mode.
var authorizationModes = []string{"AlwaysAllow", "AlwaysDeny", "ABAC", "Webhook", "RBAC", "Node"}

// trackedValue is a pflag.Value that calls set when the flag is set.
type trackedValue struct {
	pflag.Value
	set func()
}

// Set implements pflag.Value.
func (v trackedValue) Set(value string) error {
	v.set()
	return v.Value.Set(value)
}

// trackedSlice is a trackedValue of a flag with a list.
type trackedSlice struct {
	trackedValue
	pflag.SliceValue
}

// trackFlag makes c.set record whether a flag is set.
func (c *Config) trackFlag(f *pflag.FlagSet, name string) {
	flag := f.Lookup(name)
	tracked := trackedValue{flag.Value, func() { c.markSet(name) }}
	if slice, ok := flag.Value.(pflag.SliceValue); ok {
		flag.Value = trackedSlice{tracked, slice}
		return
	}
	flag.Value = tracked
}

func (c *Config) markSet(name string) {
	if c.set == nil {
		c.set = map[string]bool{}
	}
	c.set[name] = true
}

func (c *Config) isSet(names ...string) bool {
	return slices.ContainsFunc(names, func(name string) bool { return c.set[name] })
}

// AnonymousSet reports whether --anonymous-auth is set.
func (c *Config) AnonymousSet() bool { return c.isSet("anonymous-auth") }

// AnonymousAllowed reports whether the flags allow anonymous requests. They do not with the mode AlwaysAllow, which
// would allow every anonymous request.
func (c *Config) AnonymousAllowed() bool {
	byModes := c.Authorization.ConfigFile == "" && slices.Contains(c.Authorization.Modes, "AlwaysAllow")
	return c.Authentication.Anonymous && !byModes
}

// abstractSocket matches the name of an abstract Unix socket.
var abstractSocket = regexp.MustCompile(`^@([a-zA-Z0-9_-]+\.)*[a-zA-Z0-9_-]+$`)

// validateSigningEndpoint returns kube-apiserver's errors for --service-account-signing-endpoint.
func (c *Config) validateSigningEndpoint() []error {
	a := &c.Authentication
	endpoint := a.ServiceAccountSigningEndpoint
	if endpoint == "" {
		return nil
	}
	var errs []error
	if a.ServiceAccountSigningKey != "" {
		return []error{errors.New("service-account-signing-key-file and service-account-signing-endpoint are mutually " +
			"exclusive and cannot be set at the same time")}
	}
	if len(a.ServiceAccountKeyFiles) > 0 {
		errs = append(errs, errors.New("can't set `--service-account-signing-key-file` and/or `--service-account-key-file` "+
			"with `--service-account-signing-endpoint` (They are mutually exclusive)"))
	}
	if len(a.ServiceAccountIssuers) == 0 {
		errs = append(errs, errors.New("service-account-issuer is a required flag"))
	}
	if strings.HasPrefix(endpoint, "@") && !abstractSocket.MatchString(endpoint) {
		errs = append(errs, fmt.Errorf("invalid value %q passed for `--service-account-signing-endpoint`, "+
			"when prefixed with @ must be a valid abstract socket name", endpoint))
	}
	return errs
}

// validateIssuers returns kube-apiserver's errors for the issuers of service-account tokens and their JWKS URI.
func (a *Authentication) validateIssuers() []error {
	var errs []error
	seen := map[string]bool{}
	for _, issuer := range a.ServiceAccountIssuers {
		_, err := url.Parse(issuer)
		switch {
		case err != nil && strings.Contains(issuer, ":"):
			errs = append(errs, fmt.Errorf("service-account-issuer %q contained a ':' but was not a valid URL: %w", issuer, err))
		case issuer == "":
			errs = append(errs, errors.New("service-account-issuer should not be an empty string"))
		case seen[issuer]:
			errs = append(errs, fmt.Errorf("service-account-issuer %q is already specified", issuer))
		}
		seen[issuer] = true
	}
	if a.ServiceAccountJWKSURI == "" {
		return errs
	}
	if location, err := url.Parse(a.ServiceAccountJWKSURI); err != nil {
		errs = append(errs, fmt.Errorf("service-account-jwks-uri must be a valid URL: %w", err))
	} else if location.Scheme != "https" {
		errs = append(errs, fmt.Errorf("service-account-jwks-uri requires https scheme, parsed as: %v", location))
	}
	return errs
}

// validateRequestHeaders returns kube-apiserver's errors for the flags of front proxies.
func (a *Authentication) validateRequestHeaders() []error {
	var errs []error
	for _, list := range []struct {
		flag   string
		values []string
	}{
		{"requestheader-username-headers", a.RequestHeaderUsername},
		{"requestheader-group-headers", a.RequestHeaderGroup},
		{"requestheader-extra-headers-prefix", a.RequestHeaderExtraPrefix},
		{"requestheader-allowed-names", a.RequestHeaderAllowedNames},
		{"requestheader-uid-headers", a.RequestHeaderUID},
	} {
		if slices.ContainsFunc(list.values, func(value string) bool { return strings.TrimSpace(value) == "" }) {
			errs = append(errs, fmt.Errorf("empty value in %q", list.flag))
		}
	}
	isUID := func(header string) bool { return strings.EqualFold(header, "X-Remote-Uid") }
	if len(a.RequestHeaderUID) > 0 && !slices.ContainsFunc(a.RequestHeaderUID, isUID) {
		errs = append(errs,
			errors.New("--requestheader-uid-headers is set without specifying the standard X-Remote-Uid header - API "+
				"aggregation will not work"))
	}
	return errs
}

// validateOIDC returns kube-apiserver's errors for the --oidc-* flags.
func (c *Config) validateOIDC() []error {
	a := &c.Authentication
	oidc := c.isSet(oidcFlagNames...)
	switch {
	case a.ConfigFile == "" && oidc && (a.OIDC.IssuerURL == "" || a.OIDC.ClientID == ""):
		return []error{
			errors.New("oidc-issuer-url and oidc-client-id must be specified together when any oidc-* flags are set"),
		}
	case a.ConfigFile != "" && oidc:
		return []error{errors.New("authentication-config file and oidc-* flags are mutually exclusive")}
	}
	return nil
}

// validateAuthorization returns kube-apiserver's errors for the flags of authorization.
func (c *Config) validateAuthorization() []error {
	a := &c.Authorization
	if a.ConfigFile != "" {
		if c.isSet(modeFlagNames...) {
			return []error{errors.New("--authorization-config can not be specified when --authorization-mode or " +
				"--authorization-webhook-* flags are defined")}
		}
		return nil
	}
	var errs []error
	if len(a.Modes) == 0 {
		errs = append(errs, errors.New("at least one authorization-mode must be passed"))
	}
	for _, mode := range a.Modes {
		if !slices.Contains(authorizationModes, mode) {
			errs = append(errs, fmt.Errorf("authorization-mode %q is not a valid mode", mode))
		}
		if mode == "ABAC" && a.PolicyFile == "" {
			errs = append(errs, errors.New("authorization-mode ABAC's authorization policy file not passed"))
		}
		if mode == "Webhook" && a.Webhook.ConfigFile == "" {
			errs = append(errs, errors.New("authorization-mode Webhook's authorization config file not passed"))
		}
	}
	if a.PolicyFile != "" && !slices.Contains(a.Modes, "ABAC") {
		errs = append(errs, errors.New("cannot specify --authorization-policy-file without mode ABAC"))
	}
	if a.Webhook.ConfigFile != "" && !slices.Contains(a.Modes, "Webhook") {
		errs = append(errs, errors.New("cannot specify --authorization-webhook-config-file without mode Webhook"))
	}
	if len(slices.Compact(slices.Sorted(slices.Values(a.Modes)))) != len(a.Modes) {
		errs = append(errs, fmt.Errorf("authorization-mode %q has mode specified more than once", a.Modes))
	}
	return errs
}
