package plugins

import (
	"bytes"
	"fmt"
	"io"

	"sigs.k8s.io/yaml"
)

// hasManifests reports whether the configuration of a plugin names a directory of static manifests
// (ManifestBasedAdmissionControlConfig), and returns a reader of the same configuration. config is nil if the plugin
// has no configuration.
func hasManifests(config io.Reader) (same io.Reader, static bool, err error) {
	if config == nil {
		return nil, false, nil
	}
	text, err := io.ReadAll(config)
	if err != nil {
		return nil, false, fmt.Errorf("read the plugin configuration: %w", err)
	}
	var fields struct {
		StaticManifestsDir string `json:"staticManifestsDir"`
	}
	// The plugin itself reports a configuration that cannot be decoded.
	decodeErr := yaml.Unmarshal(text, &fields)
	return bytes.NewReader(text), decodeErr == nil && fields.StaticManifestsDir != "", nil
}
