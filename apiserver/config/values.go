package config

import (
	"fmt"
	"strconv"
	"time"

	cliflag "k8s.io/component-base/cli/flag"
	logsapi "k8s.io/component-base/logs/api/v1"
)

// switches is the value of --runtime-config, for example "api/all=true,apps/v1". A key without a value is true.
type switches struct {
	*cliflag.ConfigurationMap
}

func newSwitches(into *map[string]string) switches {
	if *into == nil {
		*into = map[string]string{}
	}
	return switches{(*cliflag.ConfigurationMap)(into)}
}

// Set implements pflag.Value. It accepts an empty list, which installers pass.
func (s switches) Set(value string) error {
	if value == "" {
		return nil
	}
	return s.ConfigurationMap.Set(value)
}

// vmoduleValue is the value of --vmodule. It is validated as by klog.
type vmoduleValue string

func (v *vmoduleValue) String() string { return string(*v) }
func (v *vmoduleValue) Type() string   { return "pattern=N,..." }

func (v *vmoduleValue) Set(value string) error {
	if err := logsapi.VModuleConfigurationPflag(&logsapi.VModuleConfiguration{}).Set(value); err != nil {
		return err
	}
	*v = vmoduleValue(value)
	return nil
}

// secondsValue is a duration in whole seconds.
type secondsValue time.Duration

func (v *secondsValue) String() string { return strconv.Itoa(int(time.Duration(*v) / time.Second)) }
func (v *secondsValue) Type() string   { return "int" }

func (v *secondsValue) Set(value string) error {
	seconds, err := strconv.Atoi(value)
	if err != nil {
		return fmt.Errorf("not a whole number of seconds: %q", value)
	}
	*v = secondsValue(time.Duration(seconds) * time.Second)
	return nil
}
