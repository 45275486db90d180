package main

import (
	"context"
	"embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

// kubernetes is the module whose version is the version of Kubernetes.
const kubernetes = "k8s.io/kubernetes"

// release is one version of Kubernetes.
type release struct {
	version string
	// packages has the packages that kube-apiserver links, by import path. Only packages of Kubernetes are in it.
	packages map[string]*sourcePackage
	facts    inventory
}

// sourcePackage is a package of Kubernetes in the module cache.
type sourcePackage struct {
	ImportPath string
	Dir        string
	GoFiles    []string // names without the directory; tests are not in it
}

// inspector has the source of the inspector. The file is text and not Go code of this module, because the module must
// not import the packages that the inspector imports.
//
//go:embed inspect/inspect.go.txt
var inspector embed.FS

var versionPattern = regexp.MustCompile(`^v1\.(\d+\.\d+(?:-[a-z]+\.\d+)?)$`)

// inspectRelease downloads a version, builds the inspector with it, and reads the sources.
func inspectRelease(ctx context.Context, version string, log *slog.Logger) (*release, error) {
	directory, err := os.MkdirTemp("", "kubernetes-"+version+"-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(directory) }()
	module := goModule{directory: directory}
	log.Info("Download the modules", "version", version)
	source, err := module.create(ctx, version)
	if err != nil {
		return nil, fmt.Errorf("prepare a module with Kubernetes %s: %w", version, err)
	}
	r := &release{version: version}
	log.Info("List the packages of kube-apiserver", "version", version)
	if r.packages, err = module.packages(ctx, kubernetes+"/cmd/kube-apiserver"); err != nil {
		return nil, err
	}
	log.Info("Build and run the inspector", "version", version)
	output, err := module.run(ctx, "go", "run", "./inspect")
	if err != nil {
		return nil, fmt.Errorf("inspect Kubernetes %s: %w", version, err)
	}
	if err := json.Unmarshal(output, &r.facts); err != nil {
		return nil, fmt.Errorf("decode the inspector's output: %w", err)
	}
	log.Info("Read the sources", "version", version)
	return r, r.facts.addSources(minorOf(version), source, r.packages)
}

// minorOf returns the minor version of a version such as v1.36.3, or 0.
func minorOf(version string) int {
	fields := strings.Split(version, ".")
	if len(fields) < 2 {
		return 0
	}
	minor, _ := strconv.Atoi(fields[1]) // create has refused other versions
	return minor
}

// goModule is a temporary Go module that requires Kubernetes.
type goModule struct{ directory string }

// create writes the module's files, and returns the directory of k8s.io/kubernetes in the module cache. Kubernetes
// requires its libraries without a version, and replaces them by directories that its module does not have; they are
// published with the same minor and patch version.
func (m goModule) create(ctx context.Context, version string) (source string, err error) {
	number := versionPattern.FindStringSubmatch(version)
	if number == nil {
		return "", fmt.Errorf("%q is not a version such as v1.36.3", version)
	}
	output, err := m.run(ctx, "go", "mod", "download", "-json", kubernetes+"@"+version)
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
	fmt.Fprintf(&text, "module inspected\n\n%s\n\nrequire %s %s\n", goDirective(string(specification)),
		kubernetes, version)
	for _, library := range stagingPattern.FindAllStringSubmatch(string(specification), -1) {
		fmt.Fprintf(&text, "replace %[1]s => %[1]s v0.%[2]s\n", library[1], number[1])
	}
	program, err := inspector.ReadFile("inspect/inspect.go.txt")
	if err != nil {
		return "", err
	}
	return download.Dir, errors.Join(
		os.WriteFile(filepath.Join(m.directory, "go.mod"), []byte(text.String()), 0o600),
		os.Mkdir(filepath.Join(m.directory, "inspect"), 0o700),
		os.WriteFile(filepath.Join(m.directory, "inspect", "main.go"), program, 0o600),
	)
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

// packages returns the packages of Kubernetes that a command links.
func (m goModule) packages(ctx context.Context, command string) (map[string]*sourcePackage, error) {
	output, err := m.run(ctx, "go", "list", "-deps", "-json=ImportPath,Dir,GoFiles", command)
	if err != nil {
		return nil, fmt.Errorf("list the packages of %s: %w", command, err)
	}
	packages := map[string]*sourcePackage{}
	for decoder := json.NewDecoder(strings.NewReader(string(output))); ; {
		p := &sourcePackage{}
		if err := decoder.Decode(p); errors.Is(err, io.EOF) {
			return packages, nil
		} else if err != nil {
			return nil, err
		}
		if strings.HasPrefix(p.ImportPath, "k8s.io/") {
			packages[p.ImportPath] = p
		}
	}
}

// run returns the standard output of a command in the module's directory.
func (m goModule) run(ctx context.Context, name string, arguments ...string) ([]byte, error) {
	command := exec.CommandContext(ctx, name, arguments...)
	command.Dir = m.directory
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

// linkedPackages returns the import paths of all packages that Quorate links.
func linkedPackages(ctx context.Context, root string) (map[string]bool, error) {
	command := exec.CommandContext(ctx, "go", "list", "-deps", ".")
	command.Dir = root
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("list the packages of Quorate in %s: %w", root, err)
	}
	linked := map[string]bool{}
	for line := range strings.Lines(string(output)) {
		linked[strings.TrimSpace(line)] = true
	}
	return linked, nil
}
