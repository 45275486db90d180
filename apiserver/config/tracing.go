package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/spf13/pflag"
)

// Tracing configures the export of OpenTelemetry traces.
type Tracing struct {
	ConfigFile string // with a TracingConfiguration; empty: no traces are exported
}

func (t *Tracing) flags(f *pflag.FlagSet) {
	stringFlag(f, &t.ConfigFile, "tracing-config-file", "File with apiserver tracing configuration.")
}

// CheckFiles returns an error if a file does not exist. It is separate from Validate, which the operator calls too.
func (c *Config) CheckFiles() error {
	file := c.Tracing.ConfigFile
	if file == "" {
		return nil
	}
	_, err := os.Stat(file)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("tracing-config-file %s does not exist", file)
	case err != nil:
		return fmt.Errorf("error checking if tracing-config-file %s exists: %w", file, err)
	}
	return nil
}
