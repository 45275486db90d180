package config

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/pflag"
)

// Peers configures requests between replicas: a replica passes requests for resources that it does not serve on to one
// that does.
type Peers struct {
	CAFile        string // of the replicas' serving certificates; empty: no requests are passed on
	AdvertiseIP   string // where other replicas reach this one; without both, like clients
	AdvertisePort string
}

func (p *Peers) flags(f *pflag.FlagSet) {
	stringFlag(f, &p.CAFile, "peer-ca-file",
		"Certificate authority of the other API servers. With it, requests for resources that this server does not serve are "+
			"passed on to one that does. Needs --proxy-client-cert-file and --proxy-client-key-file.")
	stringFlag(f, &p.AdvertiseIP, "peer-advertise-ip",
		"IP address at which other API servers reach this one; default: --advertise-address, without --peer-advertise-port too.")
	stringFlag(f, &p.AdvertisePort, "peer-advertise-port",
		"Port at which other API servers reach this one; default: --secure-port, without --peer-advertise-ip too.")
}

// CheckFiles returns an error if a file does not exist. It is separate from Validate, which the operator calls too.
func (c *Config) CheckFiles() error {
	var errs []error
	check := func(name, file string) {
		if file == "" {
			return
		}
		if _, err := os.Stat(file); err != nil {
			errs = append(errs, fmt.Errorf("%s %s does not exist", name, file))
		}
	}
	check("egress-selector-config-file", c.API.EgressSelectorFile)
	if value := c.unimplemented["tracing-config-file"]; value != nil {
		check("tracing-config-file", value.value)
	}
	return errors.Join(errs...)
}
