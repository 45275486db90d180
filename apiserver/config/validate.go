package config

import (
	"errors"
	"fmt"
	"time"
)

// These are the bounds of --service-account-max-token-expiration.
const (
	leastTokenLife = time.Hour
	mostTokenLife  = 1 << 32 * time.Second
)

// storageMediaTypes are the values that kube-apiserver accepts for --storage-media-type.
var storageMediaTypes = []string{"application/json", "application/vnd.kubernetes.protobuf", "application/yaml"}

// Validate returns all errors in the configuration. The errors contain the names of the flags.
func (c *Config) Validate() error {
	var errs []error
	refuse := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	errs = append(errs, c.validateStores()...)
	if c.Limits.MaxRequestsInFlight < 0 || c.Limits.MaxMutatingRequestsInFlight < 0 {
		refuse("--max-requests-inflight and --max-mutating-requests-inflight must not be negative")
	}
	if c.Logging.Format != "text" && c.Logging.Format != "json" {
		refuse("--logging-format: Invalid value: %q: Unsupported log format", c.Logging.Format)
	}
	if c.Logging.VModule != "" && c.Logging.Format != "text" {
		refuse("--vmodule: Only supported for text log format")
	}
	errs = append(errs, c.Metrics.validate()...)
	errs = append(errs, c.validateFairness()...)
	errs = append(errs, c.validateExtension()...)
	errs = append(errs, c.Serving.validate()...)
	errs = append(errs, c.validateAuthentication()...)
	errs = append(errs, c.Audit.validate()...)
	errs = append(errs, c.validateMember()...)
	errs = append(errs, c.API.validateServices()...)
	errs = append(errs, c.Compatibility.validate()...)
	errs = append(errs, c.Leadership.validate()...)
	return errors.Join(errs...)
}

// validateFairness returns an error if priority and fairness is enabled without its API or without seats.
func (c *Config) validateFairness() []error {
	l := c.Limits
	if !l.PriorityAndFairness {
		return nil
	}
	if l.MaxRequestsInFlight+l.MaxMutatingRequestsInFlight <= 0 && !c.Extension.Enabled() {
		return []error{fmt.Errorf("invalid configuration: MaxRequestsInFlight=%d and MaxMutatingRequestsInFlight=%d; they "+
			"must add up to something positive",
			l.MaxRequestsInFlight, l.MaxMutatingRequestsInFlight)}
	}
	// The keys are in kube-apiserver's order.
	for _, api := range []string{"flowcontrol.apiserver.k8s.io/v1", "api/ga", "api/all"} {
		switch c.API.RuntimeConfig[api] {
		case "true":
			return nil
		case "false":
			return []error{fmt.Errorf("--runtime-config=%s=false conflicts with --enable-priority-and-fairness=true", api)}
		}
	}
	return nil
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
	errs = append(errs, a.validateIssuers()...)
	errs = append(errs, a.validateRequestHeaders()...)
	errs = append(errs, c.validateSigningEndpoint()...)
	errs = append(errs, c.validateOIDC()...)
	return append(errs, c.validateAuthorization()...)
}
