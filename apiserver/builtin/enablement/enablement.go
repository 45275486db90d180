// Package enablement decides which built-in APIs are served: by default the stable APIs, which --runtime-config
// changes.
package enablement

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// levels are the keys of --runtime-config that enable or disable all versions of a stability level, in the order in
// which they are applied.
var levels = []struct {
	key      string
	versions *regexp.Regexp
}{
	{"api/all", regexp.MustCompile(``)},
	{"api/ga", regexp.MustCompile(`^v\d+$`)},
	{"api/beta", regexp.MustCompile(`^v\d+beta\d+$`)},
	{"api/alpha", regexp.MustCompile(`^v\d+alpha\d+$`)},
}

func isLevel(key string) bool {
	for _, level := range levels {
		if level.key == key {
			return true
		}
	}
	return false
}

// APIs is the set of enabled APIs. The zero value is kube-apiserver's default set.
type APIs struct {
	levels    map[string]bool
	versions  map[schema.GroupVersion]bool
	resources map[schema.GroupVersionResource]bool
	// emulated has the resources that the emulated version enables or disables.
	emulated map[schema.GroupVersionResource]bool
}

// Serves reports whether a resource is served in a version.
func (a APIs) Serves(resource schema.GroupVersionResource) bool {
	if on, ok := a.emulated[resource]; ok {
		return on
	}
	return a.enabled(resource)
}

// enabled reports whether a resource is enabled regardless of the emulated version.
func (a APIs) enabled(resource schema.GroupVersionResource) bool {
	if on, ok := a.resources[resource]; ok {
		return on
	}
	if on, ok := a.versions[resource.GroupVersion()]; ok {
		return on
	}
	on := !unstable(resource.Version)
	for _, level := range levels {
		if value, ok := a.levels[level.key]; ok && level.versions.MatchString(resource.Version) {
			on = value
		}
	}
	return on
}

// Unstable reports whether alpha or beta versions may be served.
func (a APIs) Unstable() bool {
	for key, on := range a.levels {
		if on && key != "api/ga" {
			return true
		}
	}
	for version, on := range a.versions {
		if on && unstable(version.Version) {
			return true
		}
	}
	for resource, on := range a.resources {
		if on && unstable(resource.Version) {
			return true
		}
	}
	return false
}

func unstable(version string) bool {
	return strings.Contains(version, "alpha") || strings.Contains(version, "beta")
}

// Parse parses the value of --runtime-config. schemes must contain all known groups and versions.
func Parse(config map[string]string, schemes ...*runtime.Scheme) (APIs, error) {
	config = normalizeKeys(config)
	if err := validate(config, schemes); err != nil {
		return APIs{}, err
	}
	apis := APIs{
		levels: map[string]bool{}, versions: map[schema.GroupVersion]bool{},
		resources: map[schema.GroupVersionResource]bool{},
	}
	for _, level := range levels {
		switch value, ok := config[level.key]; {
		case !ok:
		case value == "true" || value == "false":
			apis.levels[level.key] = value == "true"
		default:
			return APIs{}, fmt.Errorf("invalid value %v=%v", level.key, value)
		}
	}
	for key, value := range config {
		if isLevel(key) {
			continue
		}
		if err := apis.set(key, value, schemes); err != nil {
			return APIs{}, err
		}
	}
	return apis, nil
}

// normalizeKeys normalizes the keys of the core group to /v1 and drops obsolete keys.
func normalizeKeys(config map[string]string) map[string]string {
	modern := make(map[string]string, len(config))
	for key, value := range config {
		old := strings.TrimPrefix(key, "api/")
		switch {
		case key == "api/legacy":
		case old == "v1" || strings.HasPrefix(old, "v1/"):
			modern["/v1"] = value
		default:
			modern[key] = value
		}
	}
	return modern
}

// validate checks the keys before any value is parsed.
func validate(config map[string]string, schemes []*runtime.Scheme) error {
	if config["api/all"] == "false" && len(config) == 1 {
		return errors.New("invalid runtime-config with only api/all=false")
	}
	var unknown []string
	for key := range config {
		if isLevel(key) {
			continue
		}
		version, _, err := parseKey(key)
		if err != nil {
			return fmt.Errorf("runtime-config %w", err)
		}
		if !slices.ContainsFunc(schemes, func(s *runtime.Scheme) bool { return s.IsGroupRegistered(version.Group) }) {
			unknown = append(unknown, version.String())
		}
	}
	if len(unknown) > 0 {
		slices.Sort(unknown)
		return fmt.Errorf("unknown api groups %s", strings.Join(slices.Compact(unknown), ","))
	}
	return nil
}

// parseKey parses a key, group/version or group/version/resource.
func parseKey(key string) (version schema.GroupVersion, resource string, err error) {
	tokens := strings.Split(key, "/")
	if len(tokens) != 2 && len(tokens) != 3 {
		return version, "", fmt.Errorf("invalid key %s", key)
	}
	if version, err = schema.ParseGroupVersion(tokens[0] + "/" + tokens[1]); err != nil {
		return version, "", fmt.Errorf("invalid key %s", key)
	}
	if len(tokens) == 3 {
		resource = tokens[2]
	}
	return version, resource, nil
}

func (a *APIs) set(key, value string, schemes []*runtime.Scheme) error {
	version, resource, err := parseKey(key)
	if err != nil {
		return err
	}
	if !slices.ContainsFunc(schemes, func(s *runtime.Scheme) bool { return s.IsVersionRegistered(version) }) {
		return fmt.Errorf("group version %s that has not been registered", version)
	}
	on := true
	if value != "" {
		if on, err = strconv.ParseBool(value); err != nil {
			return fmt.Errorf("invalid value of %s: %s, err: %w", key, value, err)
		}
	}
	if resource == "" {
		a.versions[version] = on
		return nil
	}
	if strings.ToLower(resource) != resource {
		return fmt.Errorf("invalid key %v: group/version/resource and resource is always lowercase plural, not %q",
			key, resource)
	}
	a.resources[version.WithResource(resource)] = on
	return nil
}
