// Package preflight checks flags and loads the configuration files that they name, as a server does when it starts,
// without starting a server. The operator reports the result before it changes a running server.
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

// Report has the settings in the files that a reload cannot change.
type Report struct {
	Anonymous apiserver.AnonymousAuthConfig
	// Modes are the authorization modes except Webhook, sorted.
	Modes []string
}

// Check returns the error in a configuration file that prevents the start of a server with these flags. It connects to
// no server. It evaluates files with the feature gates of this process.
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
		// With another path, audit.New would create a file.
		auditing.Log.Path = "-"
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
