package config

import "github.com/spf13/pflag"

// Tracing configures the export of OpenTelemetry traces.
type Tracing struct {
	ConfigFile string // file with a TracingConfiguration; empty: no traces are exported
}

func (t *Tracing) flags(f *pflag.FlagSet) {
	stringFlag(f, &t.ConfigFile, "tracing-config-file", "File with apiserver tracing configuration.")
}
