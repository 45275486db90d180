package validation

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// pathFields are the fields of configuration files and kubeconfigs whose values are paths of files.
var pathFields = []string{
	"kubeConfigFile", "caBundle", "clientCert", "clientKey",
	"certificate-authority", "client-certificate", "client-key", "tokenFile",
}

// checkMainFiles returns an error for each part of the configuration whose ConfigMap or Secret lacks the part's main
// file. The error names the keys that do exist; the API server's own error would only name a path in the pod.
func checkMainFiles(cluster *v1alpha1.ApiServerCluster, c desired.Configuration) error {
	var errs []error
	for _, part := range desired.Parts(cluster) {
		if _, found := c.Files[desired.FileKey(part.Name, part.Main())]; found {
			continue
		}
		var objects, keys []string
		if ref := part.Files.ConfigMapRef; ref != nil {
			objects = append(objects, "ConfigMap "+ref.Name)
		}
		if ref := part.Files.SecretRef; ref != nil {
			objects = append(objects, "Secret "+ref.Name)
		}
		for key := range c.Files {
			if name, ok := strings.CutPrefix(key, part.Name+"."); ok {
				keys = append(keys, name)
			}
		}
		slices.Sort(keys)
		const maxKeys = 10
		if len(keys) > maxKeys {
			keys = append(keys[:maxKeys], "...")
		}
		errs = append(errs, fmt.Errorf("%s: %s has no key %s, but %s; rename the key, or name the main file in spec.%s.key",
			part.Name, cmp.Or(strings.Join(objects, " or "), "the spec"), part.Main(),
			cmp.Or(strings.Join(keys, ", "), "none"), part.Name))
	}
	return errors.Join(errs...)
}

// checkPaths returns an error if a file refers to a path outside the configuration. Validation runs in the operator's
// process, so such a path would name a file of the operator: errors of the loaders could quote its content to the user,
// and upstream's loader of admission configurations exits the process if a file does not exist.
func checkPaths(c desired.Configuration) error {
	for key, content := range c.Files {
		part, name, _ := strings.Cut(key, ".")
		var decoded any
		if yaml.Unmarshal(content, &decoded) != nil {
			continue // the API server's loader reports the syntax error
		}
		fields := pathFields
		if part == "admission" {
			fields = append(slices.Clone(fields), "path")
		}
		if err := walk(decoded, func(field, value string) error {
			if value == "" || !slices.ContainsFunc(fields, func(name string) bool { return strings.EqualFold(name, field) }) {
				return nil
			}
			return checkPath(c, part, value)
		}); err != nil {
			return fmt.Errorf("%s: %s: %w", part, name, err)
		}
	}
	return nil
}

// checkPath returns an error unless a path in a file of a part, absolute or relative to the part's directory, names a
// file of the configuration.
func checkPath(c desired.Configuration, part, file string) error {
	absolute := path.Clean(file)
	if !path.IsAbs(file) {
		absolute = path.Join(desired.ConfigurationDirectory, part, file)
	}
	if relative, ok := strings.CutPrefix(absolute, desired.ConfigurationDirectory+"/"); ok {
		owner, name, _ := strings.Cut(relative, "/")
		if _, exists := c.Files[desired.FileKey(owner, name)]; exists && !strings.Contains(name, "/") {
			return nil
		}
	}
	return fmt.Errorf("file %s is not in the ConfigMap or Secret", file)
}

// walk calls visit with the name and the value of each string field in a decoded YAML document, at any depth.
func walk(value any, visit func(field, value string) error) error {
	switch value := value.(type) {
	case map[string]any:
		for field, content := range value {
			if text, ok := content.(string); ok {
				if err := visit(field, text); err != nil {
					return err
				}
			}
			if err := walk(content, visit); err != nil {
				return err
			}
		}
	case []any:
		for _, item := range value {
			if err := walk(item, visit); err != nil {
				return err
			}
		}
	}
	return nil
}
