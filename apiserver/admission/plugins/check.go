package plugins

import (
	"fmt"

	"k8s.io/apiserver/pkg/admission"
)

// Check returns an error if a plugin does not accept its configuration in a file. The plugins are not used.
func Check(selection Selection, file string) error {
	names, err := Enabled(selection)
	if err != nil || file == "" {
		return err
	}
	scheme, err := configScheme()
	if err != nil {
		return err
	}
	configs, err := admission.ReadAdmissionConfiguration(names, file, scheme)
	if err != nil {
		return fmt.Errorf("failed to read plugin config: %w", err)
	}
	factories := upstream()
	for _, name := range names {
		config, err := configs.ConfigFor(name)
		if err != nil {
			return err
		}
		if config == nil {
			continue
		}
		made := &creation{}
		if _, err := factories.InitPlugin(name, config, made); err != nil && !made.succeeded {
			return err
		}
	}
	return nil
}

// creation records that a plugin was created from its configuration. What the plugin needs besides is not provided, so
// that InitPlugin then fails.
type creation struct{ succeeded bool }

// Initialize implements admission.PluginInitializer.
func (c *creation) Initialize(admission.Interface) { c.succeeded = true }
