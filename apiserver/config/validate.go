package config

import (
	"errors"
	"fmt"
	"slices"
	"time"
)

// What --service-account-max-token-expiration may be.
const (
	leastTokenLife = time.Hour
	mostTokenLife  = 1 << 32 * time.Second
)

// Validate returns everything that is wrong with the configuration, in words for the person who wrote the flags.
func (c *Config) Validate() error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if len(c.Etcd.Servers) == 0 && c.Member.DataDirectory == "" {
		refuse("--etcd-servers must be specified, or --etcd-data-dir to run an embedded member")
	}
	if c.Limits.MaxRequestsInFlight < 0 || c.Limits.MaxMutatingRequestsInFlight < 0 {
		refuse("--max-requests-inflight and --max-mutating-requests-inflight must not be negative")
	}
	errs = append(errs, c.Serving.validate()...)
	errs = append(errs, c.validateAuthentication()...)
	errs = append(errs, c.validateMember()...)
	errs = append(errs, c.API.validateServices()...)
	errs = append(errs, c.Compatibility.validate()...)
	return errors.Join(errs...)
}

func (c *Config) validateAuthentication() []error {
	var errs []error
	a := &c.Authentication
	if a.ServiceAccountSigningKey != "" && len(a.ServiceAccountIssuers) == 0 {
		errs = append(errs, errors.New("--service-account-issuer is required with --service-account-signing-key-file"))
	}
	if life := a.ServiceAccountMaxLifetime; life != 0 && (life < leastTokenLife || life > mostTokenLife) {
		errs = append(errs, errors.New("the service-account-max-token-expiration must be between 1 hour and 2^32 seconds"))
	}
	if a.RequestHeaderCAFile != "" && len(a.RequestHeaderUsername) == 0 {
		errs = append(errs, errors.New("--requestheader-username-headers is required with --requestheader-client-ca-file"))
	}
	if len(c.Authorization.Modes) == 0 {
		errs = append(errs, errors.New("--authorization-mode must name at least one mode"))
	}
	for i, mode := range c.Authorization.Modes {
		if slices.Contains(c.Authorization.Modes[:i], mode) {
			errs = append(errs, fmt.Errorf("authorization-mode %q has mode specified more than once", c.Authorization.Modes))
		}
		switch mode {
		case "AlwaysAllow", "AlwaysDeny", "RBAC", "Node":
		default:
			errs = append(errs, fmt.Errorf("--authorization-mode %q is not supported; use AlwaysAllow, AlwaysDeny, RBAC or Node", mode))
		}
	}
	return errs
}
