package config

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"

	cliflag "k8s.io/component-base/cli/flag"
)

func (s *Serving) validate() []error {
	var errs []error
	for _, check := range []struct {
		wrong   bool
		message string
	}{
		{s.Port < 1 || s.Port > 65535, fmt.Sprintf("--secure-port %d must be between 1 and 65535", s.Port)},
		{!isIP(s.BindAddress), fmt.Sprintf("--bind-address %q is not an IP address", s.BindAddress)},
		{
			s.AdvertiseAddress != "" && !isIP(s.AdvertiseAddress),
			fmt.Sprintf("--advertise-address %q is not an IP address", s.AdvertiseAddress),
		},
		{(s.CertFile == "") != (s.KeyFile == ""), "--tls-cert-file and --tls-private-key-file go together"},
		{s.GoawayChance < 0 || s.GoawayChance > 0.02, "--goaway-chance can not be less than 0 or greater than 0.02"},
		{s.LivezGracePeriod < 0, "--livez-grace-period can not be a negative value"},
		{s.RequestTimeout < 0, "--request-timeout can not be negative value"},
		{s.MinRequestTimeout < 0, "--min-request-timeout can not be negative value"},
		{s.ShutdownDelay < 0, "--shutdown-delay-duration can not be negative value"},
		{
			s.ShutdownWatchTerminationGrace < 0,
			"shutdown-watch-termination-grace-period, if provided, can not be a negative value",
		},
	} {
		if check.wrong {
			errs = append(errs, errors.New(check.message))
		}
	}
	if _, err := cliflag.TLSVersion(s.TLSMinVersion); s.TLSMinVersion != "" && err != nil {
		errs = append(errs, fmt.Errorf("--tls-min-version: %w", err))
	}
	if _, err := cliflag.TLSCipherSuites(s.TLSCipherSuites); err != nil {
		errs = append(errs, fmt.Errorf("--tls-cipher-suites: %w", err))
	}
	errs = append(errs, validateDirectives(s.StrictTransportSecurity)...)
	return append(errs, validateOrigins(s.CORSAllowedOrigins)...)
}

func isIP(text string) bool { return net.ParseIP(text) != nil }

// validateDirectives checks --strict-transport-security-directives.
func validateDirectives(directives []string) []error {
	var errs []error
	for _, directive := range directives {
		name, value, assigned := strings.Cut(directive, "=")
		switch {
		case strings.TrimSpace(directive) == "":
			errs = append(errs, errors.New("empty value in strict-transport-security-directives"))
		case directive == "includeSubDomains", directive == "preload":
		case name != "max-age" || !assigned || strings.Contains(value, "="):
			errs = append(errs, fmt.Errorf("--strict-transport-security-directives %q invalid, allowed values: "+
				"max-age=expireTime, includeSubDomains, preload", directive))
		}
	}
	return errs
}

// validateOrigins checks --cors-allowed-origins. A pattern that does not match the start and the end of the host would
// also match other origins (CVE-2022-1996).
func validateOrigins(patterns []string) []error {
	var errs []error
	for _, pattern := range patterns {
		_, err := regexp.Compile(pattern)
		switch {
		case pattern == "":
			errs = append(errs, errors.New("empty value in --cors-allowed-origins"))
		case err != nil:
			errs = append(errs, fmt.Errorf("--cors-allowed-origins has an invalid regular expression: %w", err))
		case !pins(pattern):
			errs = append(errs,
				fmt.Errorf(
					`--cors-allowed-origins has an invalid regular expression: %q does not pin to start/end of host in the origin header, as in "//example\.com(:|$)"`, pattern,
				))
		}
	}
	return errs
}

// pins reports whether a pattern matches both the start and the end of the host.
func pins(pattern string) bool {
	begins := strings.Contains(pattern, "^") || strings.Contains(pattern, "//")
	return begins && strings.ContainsAny(pattern, "$:")
}
