package config

import (
	"errors"
	"fmt"
	"maps"
	"regexp"

	"github.com/spf13/pflag"
)

// Metrics configures which metrics are served.
type Metrics struct {
	Disabled       []string // names of metrics that are not served
	AllowedLabels  []string // occurrences of --allow-metric-labels: "family,label=value,..."
	LabelsManifest string   // YAML file with the same content as AllowedLabels
	// ShowHiddenFor is the previous minor version if hidden metrics are served, otherwise empty.
	ShowHiddenFor string
}

func (m *Metrics) flags(f *pflag.FlagSet) {
	sliceFlag(f, &m.Disabled, "disabled-metrics", "Names of metrics that are not served.")
	f.Var(&labelsValue{&m.AllowedLabels}, "allow-metric-labels",
		"Allowed values of a label of a metric: metric,label=value,...; others are served as \"unexpected\".")
	stringFlag(f, &m.LabelsManifest, "allow-metric-labels-manifest",
		"YAML file that maps metric,label to the allowed values, separated by commas.")
	stringFlag(f, &m.ShowHiddenFor, "show-hidden-metrics-for-version",
		"Previous minor version, to show the deprecated metrics that are hidden. Only '"+KubernetesMajor+"."+
			previousMinor+"' is allowed.")
}

var (
	metricName  = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*$`)
	metricLabel = regexp.MustCompile(`^[a-zA-Z_:][a-zA-Z0-9_:]*,[a-zA-Z_][a-zA-Z0-9_]*$`)
)

func (m *Metrics) validate() []error {
	var errs []error
	for _, name := range m.Disabled {
		if !metricName.MatchString(name) {
			errs = append(errs,
				fmt.Errorf("--disabled-metrics %q must be fully qualified metric names matching %q", name, metricName))
		}
	}
	errs = append(errs, ValidLabels(m.Labels())...)
	if len(m.AllowedLabels) > 0 && m.LabelsManifest != "" {
		errs = append(errs, errors.New("cannot specify both --allow-metric-labels and --allow-metric-labels-manifest"))
	}
	if previous := KubernetesMajor + "." + previousMinor; m.ShowHiddenFor != "" && m.ShowHiddenFor != previous {
		errs = append(errs, fmt.Errorf("--show-hidden-metrics-for-version must be omitted or have the value '%s'; "+
			"only the previous minor version is allowed", previous))
	}
	return errs
}

// ValidLabels returns errors for keys that are not of the form "family,label".
func ValidLabels(labels map[string]string) []error {
	for key := range labels {
		if !metricLabel.MatchString(key) {
			return []error{
				fmt.Errorf("--allow-metric-labels: %q must have the format metricName,labelName and match %q", key, metricLabel),
			}
		}
	}
	return nil
}

// Labels returns the allowed values, separated by commas, by "family,label".
func (m *Metrics) Labels() map[string]string {
	all := map[string]string{}
	for _, occurrence := range m.AllowedLabels {
		if parsed, err := parseLabels(occurrence); err == nil {
			maps.Copy(all, parsed)
		}
	}
	return all
}

// parseLabels parses one occurrence of --allow-metric-labels as kube-apiserver does.
func parseLabels(occurrence string) (map[string]string, error) {
	scratch := pflag.NewFlagSet("", pflag.ContinueOnError)
	parsed := scratch.StringToString("labels", nil, "")
	err := scratch.Set("labels", occurrence)
	return *parsed, err
}

// labelsValue keeps the occurrences of --allow-metric-labels, so that Args can return them.
type labelsValue struct{ occurrences *[]string }

func (v *labelsValue) String() string {
	if len(*v.occurrences) == 0 {
		return "[]"
	}
	return fmt.Sprint(*v.occurrences)
}

func (v *labelsValue) Type() string                       { return "stringToString" }
func (v *labelsValue) GetSlice() []string                 { return *v.occurrences }
func (v *labelsValue) Replace(occurrences []string) error { *v.occurrences = occurrences; return nil }
func (v *labelsValue) Append(value string) error          { return v.Set(value) }

func (v *labelsValue) Set(value string) error {
	if _, err := parseLabels(value); err != nil {
		return err
	}
	*v.occurrences = append(*v.occurrences, value)
	return nil
}
