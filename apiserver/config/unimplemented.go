package config

import (
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// unimplementedFlag is a flag of kube-apiserver that this server parses but does not implement.
type unimplementedFlag struct {
	name     string
	kind     string // name of the type in pflag
	standard string // kube-apiserver's default, as pflag prints it
	// check returns an error for values of the correct type that kube-apiserver rejects. It is nil if kube-apiserver
	// accepts all values.
	check func(value string) error
}

// ineffectiveFlags has flags that have no effect in kube-apiserver either.
var ineffectiveFlags = []unimplementedFlag{
	{"default-watch-cache-size", "int", "100", nil},
	{"kubelet-read-only-port", "uint", "10255", nil},
}

// FlagStatus returns a note about a flag that has no effect, or "" if the flag has an effect.
func FlagStatus(name string) string {
	if slices.ContainsFunc(ineffectiveFlags, func(f unimplementedFlag) bool { return f.name == name }) {
		return "without effect, as in kube-apiserver"
	}
	return ""
}

// unimplementedValue is the pflag.Value of a flag without effect. It validates the value.
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
		// Occurrences of the flag are combined; an empty last occurrence does not unset the flag.
		return nil
	}
	v.value = value
	return nil
}

// isSet reports whether the value of the flag differs from the default.
func (v *unimplementedValue) isSet() bool { return canonical(v.kind, v.String()) != v.standard }

// canonical returns a value that parseAs accepts in the form in which pflag prints it.
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

// parseAs returns an error if pflag would reject a value for a flag of the given type.
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
