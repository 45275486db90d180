// Package preflight checks flags and loads the configuration files that they name, as a server does at its start,
// without starting one.
// The operator reports what it returns before it changes a running server.
package preflight

import (
	"fmt"
	"slices"

	"k8s.io/apiserver/pkg/apis/apiserver"

	"quorate.dev/apiserver/admission/plugins"
	"quorate.dev/apiserver/audit"
	"quorate.dev/apiserver/authentication/jwt"
	"quorate.dev/apiserver/authorization"
	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/egress"
	"quorate.dev/apiserver/encryption"
	"quorate.dev/apiserver/tracing"
)

// Report is what a reload of the files cannot change.
type Report struct {
	Anonymous apiserver.AnonymousAuthConfig
	Modes     []string // of authorization except Webhook, sorted
}

// Check returns the error with which a server with these flags would not start because of a configuration file. It
// connects to no server. Files are evaluated with the feature gates of this process.
func Check(c *config.Config) (report Report, err error) {
	modes, err := authorization.Load(c.Authorization)
	if err == nil {
		err = modes.CheckWebhooks()
	}
	if err != nil {
		return report, fmt.Errorf("authorization: %w", err)
	}
	identities, err := jwt.Load(c)
	if err != nil {
		return report, fmt.Errorf("authentication: %w", err)
	}
	report.Anonymous = identities.Anonymous
	report.Modes = slices.DeleteFunc(modes.Modes(), func(mode string) bool { return mode == "Webhook" })
	return report, checkOthers(c)
}

func checkOthers(c *config.Config) error {
	auditing := c.Audit
	if auditing.Log.Path != "" {
		auditing.Log.Path = "-" // a file would be created
	}
	if _, err := audit.New(auditing, audit.Options{}); err != nil {
		return fmt.Errorf("audit: %w", err)
	}
	if file := c.Etcd.EncryptionConfig; file != "" {
		if err := encryption.Validate(file, c.Etcd.ReloadEncryptionConfig); err != nil {
			return fmt.Errorf("encryption: %w", err)
		}
	}
	if _, err := egress.Load(c.API.EgressSelectorFile); err != nil {
		return fmt.Errorf("egress: %w", err)
	}
	if file := c.Tracing.ConfigFile; file != "" {
		if _, err := tracing.Load(file); err != nil {
			return fmt.Errorf("tracing: %w", err)
		}
	}
	if err := plugins.Check(selection(c), c.Admission.ConfigFile); err != nil {
		return fmt.Errorf("admission: %w", err)
	}
	return nil
}
