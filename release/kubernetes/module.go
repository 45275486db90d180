// Package kubernetes writes Go modules that require one version of Kubernetes. With such a module, programs and
// packages of a version can be built that is not the version in this project's go.mod.
package kubernetes

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// Path is the path of the module whose version is the version of Kubernetes.
const Path = "k8s.io/kubernetes"

var versionPattern = regexp.MustCompile(`^v1\.(\d+\.\d+(?:-[a-z]+\.\d+)?)$`)

// Module is a Go module in a directory that requires one version of Kubernetes.
type Module struct{ Directory string }

// Create writes the module's go.mod for a version such as v1.36.3, and returns the directory of k8s.io/kubernetes in
// the module cache. Kubernetes requires its libraries without a version, and replaces them by directories that its
// published module does not contain. The libraries are published with the same minor and patch version, which the
// go.mod selects.
func (m Module) Create(ctx context.Context, version string) (source string, err error) {
	number := versionPattern.FindStringSubmatch(version)
	if number == nil {
		return "", fmt.Errorf("%q is not a version such as v1.36.3", version)
	}
	output, err := m.Run(ctx, "go", "mod", "download", "-json", Path+"@"+version)
	if err != nil {
		return "", err
	}
	var download struct{ Dir, GoMod string }
	if err := json.Unmarshal(output, &download); err != nil {
		return "", err
	}
	specification, err := os.ReadFile(download.GoMod)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	fmt.Fprintf(&text, "module former\n\n%s\n\nrequire %s %s\n", goDirective(string(specification)), Path, version)
	for _, library := range stagingPattern.FindAllStringSubmatch(string(specification), -1) {
		fmt.Fprintf(&text, "replace %[1]s => %[1]s v0.%[2]s\n", library[1], number[1])
	}
	return download.Dir, os.WriteFile(filepath.Join(m.Directory, "go.mod"), []byte(text.String()), 0o600)
}

// stagingPattern matches a library that the module replaces by a directory.
var stagingPattern = regexp.MustCompile(`(?m)^\s*(?:replace )?(k8s\.io/\S+) => \./staging`)

// goDirective returns the line of a go.mod with the version of Go.
func goDirective(specification string) string {
	for line := range strings.Lines(specification) {
		if strings.HasPrefix(line, "go ") {
			return strings.TrimSpace(line)
		}
	}
	return "go 1.26.0"
}

// Run returns the standard output of a command in the module's directory. A command of Go may add requirements and
// checksums to the module's files.
func (m Module) Run(ctx context.Context, name string, arguments ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, name, arguments...)
	command.Dir = m.Directory
	command.Env = append(os.Environ(), "GOFLAGS=-mod=mod", "GOWORK=off", "CGO_ENABLED=0")
	var problem strings.Builder
	command.Stderr = &problem
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", command, err, lastLines(problem.String(), 20))
	}
	return output, nil
}

// lastLines returns the last n lines of a text.
func lastLines(text string, n int) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}
