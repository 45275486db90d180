// Package validation checks the spec and the configuration files of a cluster with the API server's own loaders, before
// they reach a pod. An error is reported in the cluster's status, instead of a pod that fails to start.
package validation

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"k8s.io/apiserver/pkg/apis/apiserver"

	"quorate.dev/apiserver/config"
	"quorate.dev/apiserver/preflight"
	"quorate.dev/operator/api/v1alpha1"
	"quorate.dev/operator/desired"
)

// probes are the paths that kubelets request without credentials.
var probes = []string{"/livez", "/readyz"}

// Check returns the error that would keep the API server from starting with a configuration, or its probes from
// succeeding. If there is none, it returns a description of the settings that need a restart, because the API server
// does not reload them: anonymous authentication and the authorization modes. Two configurations with equal
// descriptions differ only in reloadable content.
func Check(cluster *v1alpha1.ApiServerCluster, c desired.Configuration) (static string, err error) {
	if len(desired.Parts(cluster)) == 0 && c.Encryption == nil {
		return "", nil
	}
	if err := errors.Join(checkMainFiles(cluster, c), checkPaths(c)); err != nil {
		return "", err
	}
	directory, err := os.MkdirTemp("", "configuration-")
	if err != nil {
		return "", fmt.Errorf("create a directory for validation: %w", err)
	}
	defer func() {
		err = errors.Join(err, os.RemoveAll(directory))
	}()
	if err := write(directory, c); err != nil {
		return "", err
	}
	parsed, err := desired.ExampleConfiguration(cluster)
	if err != nil {
		return "", err
	}
	parsed, err = relocate(parsed, directory)
	if err != nil {
		return "", err
	}
	report, err := preflight.Check(parsed)
	if err != nil {
		return "", errors.New(strings.ReplaceAll(err.Error(), directory, desired.ConfigurationDirectory))
	}
	return fmt.Sprintf("%+v %v", report.Anonymous, report.Modes), checkProbes(report)
}

// CheckSpec returns the error that would keep the API server from starting with the flags of a spec and an encryption
// configuration, regardless of the content of all other configuration files.
func CheckSpec(cluster *v1alpha1.ApiServerCluster, encryption []byte) error {
	parsed, err := desired.ExampleConfiguration(cluster)
	if err != nil {
		return err
	}
	if err := preflight.Flags(parsed); err != nil {
		return fmt.Errorf("spec.extraArgs: the API server would not start: %w", err)
	}
	reduced := cluster.DeepCopy()
	spec := &reduced.Spec
	spec.Audit, spec.Authentication, spec.Authorization, spec.Admission, spec.Egress, spec.Tracing =
		nil, nil, nil, nil, nil, nil
	_, err = Check(reduced, desired.Configuration{Encryption: encryption})
	return err
}

// write writes the files of each part into its own directory below directory, and replaces the paths in them in the
// same way as relocate does in flags.
func write(directory string, c desired.Configuration) error {
	files := map[string][]byte{}
	for key, content := range c.Files {
		files[key] = content
	}
	if c.Encryption != nil {
		files[desired.FileKey("encryption", "config.yaml")] = c.Encryption
	}
	for key, content := range files {
		part, name, _ := strings.Cut(key, ".")
		file := filepath.Join(directory, part, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return fmt.Errorf("write files for validation: %w", err)
		}
		text := strings.ReplaceAll(string(content), desired.ConfigurationDirectory+"/", directory+"/")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return fmt.Errorf("write files for validation: %w", err)
		}
	}
	return nil
}

// relocate returns a configuration whose flags refer to files below directory instead of the files in a pod.
func relocate(c *config.Config, directory string) (*config.Config, error) {
	var args []string
	for _, arg := range c.Args() {
		args = append(args, strings.ReplaceAll(arg, desired.ConfigurationDirectory+"/", directory+"/"))
	}
	relocated := config.Default()
	return relocated, relocated.Flags().Parse(args)
}

// checkProbes returns an error if the configuration rejects anonymous probes, or lacks an authorizer that permits them.
func checkProbes(report preflight.Report) error {
	if !slices.Contains(report.Modes, "RBAC") || !slices.Contains(report.Modes, "Node") {
		return errors.New("authorization: the types Node and RBAC are required")
	}
	for _, path := range probes {
		if !report.Anonymous.Enabled || len(report.Anonymous.Conditions) > 0 && !slices.Contains(report.Anonymous.Conditions,
			apiserver.AnonymousAuthCondition{Path: path}) {
			return fmt.Errorf("authentication: anonymous requests to %s must be allowed, because kubelets probe it", path)
		}
	}
	return nil
}
