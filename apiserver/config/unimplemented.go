package config

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// unimplementedFlag is a flag of kube-apiserver that this server parses but does not implement.
type unimplementedFlag struct {
	name     string
	kind     string // pflag's name of the type
	standard string // kube-apiserver's default, as pflag prints it
	// risk is the consequence of ignoring the flag; if it is not empty, the server does not start when the flag is set.
	// Flags without a risk are logged and ignored.
	risk string
	// check returns an error for values of the right type that kube-apiserver rejects. It is nil if there are none or the
	// flag has a risk.
	check func(value string) error
}

var unimplementedFlags = []unimplementedFlag{
	{"log-json-info-buffer-size", "string", "0", "", isAlphaLogging},
	{"log-json-split-stream", "bool", "false", "", isAlphaLogging},
	{"log-text-info-buffer-size", "string", "0", "", isAlphaLogging},
	{"log-text-split-stream", "bool", "false", "", isAlphaLogging},
	{"tracing-config-file", "string", "", "", nil},
}

// ineffectiveFlags have no effect in kube-apiserver either.
var ineffectiveFlags = []unimplementedFlag{
	{"default-watch-cache-size", "int", "100", "", nil},
	{"kubelet-read-only-port", "uint", "10255", "", nil},
}

// FlagStatus returns a note about a flag that has no effect; empty: the flag works.
func FlagStatus(name string) string {
	has := func(flags []unimplementedFlag) *unimplementedFlag {
		if i := slices.IndexFunc(flags, func(f unimplementedFlag) bool { return f.name == name }); i >= 0 {
			return &flags[i]
		}
		return nil
	}
	if flag := has(unimplementedFlags); flag != nil && flag.risk != "" {
		return "not implemented, refused"
	}
	if has(unimplementedFlags) != nil {
		return "not implemented, ignored"
	}
	if has(ineffectiveFlags) != nil {
		return "without effect, as in kube-apiserver"
	}
	return ""
}

// unimplementedValue is the pflag.Value of a flag without effect. It checks the value.
type unimplementedValue struct {
	unimplementedFlag
	value string
}

func (v *unimplementedValue) String() string {
	if v.value == "" {
		return v.standard
	}
	return v.value
}

func (v *unimplementedValue) Type() string { return v.kind }

func (v *unimplementedValue) Set(value string) error {
	if err := parseAs(v.kind, value); err != nil {
		return err
	}
	if v.check != nil && value != "" && value != v.standard {
		if err := v.check(value); err != nil {
			return err
		}
	}
	if v.isSet() && v.kind == "stringSlice" {
		return nil // occurrences add up: that the last one is empty does not make the flag unset
	}
	v.value = value
	return nil
}

// isSet reports whether the flag has another value than the default.
func (v *unimplementedValue) isSet() bool { return canonical(v.kind, v.String()) != v.standard }

// canonical returns a value that parseAs accepts as pflag prints it.
func canonical(kind, value string) string {
	switch kind {
	case "bool":
		if parsed, err := strconv.ParseBool(value); err == nil {
			return strconv.FormatBool(parsed)
		}
	case "int", "uint":
		if parsed, err := strconv.ParseInt(value, 0, 64); err == nil {
			return strconv.FormatInt(parsed, 10)
		}
	case "float32":
		if parsed, err := strconv.ParseFloat(value, 32); err == nil {
			return strconv.FormatFloat(parsed, 'g', -1, 32)
		}
	case "duration":
		if parsed, err := time.ParseDuration(value); err == nil {
			return parsed.String()
		}
	case "stringSlice":
		if !strings.HasPrefix(value, "[") {
			return "[" + value + "]"
		}
	}
	return value
}

// parseAs reports whether pflag would accept a value for a flag of a type.
func parseAs(kind, value string) (err error) {
	switch kind {
	case "bool":
		_, err = strconv.ParseBool(value)
	case "int":
		_, err = strconv.ParseInt(value, 0, 64)
	case "uint":
		_, err = strconv.ParseUint(value, 0, 64)
	case "float32":
		_, err = strconv.ParseFloat(value, 32)
	case "duration":
		_, err = time.ParseDuration(value)
	case "stringToString":
		scratch := pflag.NewFlagSet("", pflag.ContinueOnError)
		scratch.StringToString("value", nil, "")
		err = scratch.Set("value", value)
	}
	return err
}

func (c *Config) unimplementedFlags(f *pflag.FlagSet) {
	if c.unimplemented == nil {
		c.unimplemented = map[string]*unimplementedValue{}
	}
	for _, flag := range unimplementedFlags {
		usage := "Not implemented yet: without effect."
		if flag.risk != "" {
			usage = "Not implemented yet: the server does not start with it."
		}
		c.unimplementedFlag(f, flag, usage)
	}
	for _, flag := range ineffectiveFlags {
		c.unimplementedFlag(f, flag, "Accepted but without effect, as in kube-apiserver.")
	}
}

func (c *Config) unimplementedFlag(f *pflag.FlagSet, flag unimplementedFlag, usage string) {
	value := c.unimplemented[flag.name]
	if value == nil {
		value = &unimplementedValue{unimplementedFlag: flag}
		c.unimplemented[flag.name] = value
	}
	f.Var(value, flag.name, usage)
	if flag.kind == "bool" {
		f.Lookup(flag.name).NoOptDefVal = "true"
	}
}

// Unimplemented returns the names of the flags that differ from their defaults and have no effect, sorted.
func (c *Config) Unimplemented() []string {
	var names []string
	for _, flag := range unimplementedFlags {
		if value := c.unimplemented[flag.name]; value != nil && value.isSet() {
			names = append(names, flag.name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// validateUnimplemented returns an error for each flag that the server must not ignore.
func (c *Config) validateUnimplemented() []error {
	var errs []error
	for _, flag := range unimplementedFlags {
		value := c.unimplemented[flag.name]
		if value != nil && value.isSet() && flag.risk != "" {
			errs = append(errs, fmt.Errorf("--%s is not implemented yet: %s; remove the flag to run without it", flag.name, flag.risk))
		}
	}
	return errs
}

// isAlphaLogging rejects all values. kube-apiserver accepts them only with a feature gate that is not implemented here.
func isAlphaLogging(string) error { return errors.New("feature LoggingAlphaOptions is disabled") }
