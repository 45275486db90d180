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
	"strconv"
	"strings"

	"quorate.dev/release/kubernetes"
)

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

// inspectRelease downloads a version, builds the inspector with it, and reads the sources.
func inspectRelease(ctx context.Context, version string, log *slog.Logger) (*release, error) {
	directory, err := os.MkdirTemp("", "kubernetes-"+version+"-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(directory) }()
	module := kubernetes.Module{Directory: directory}
	log.Info("Download the modules", "version", version)
	source, err := module.Create(ctx, version)
	if err == nil {
		err = writeInspector(directory)
	}
	if err != nil {
		return nil, fmt.Errorf("prepare a module with Kubernetes %s: %w", version, err)
	}
	r := &release{version: version}
	log.Info("List the packages of kube-apiserver", "version", version)
	if r.packages, err = packagesOf(ctx, module, kubernetes.Path+"/cmd/kube-apiserver"); err != nil {
		return nil, err
	}
	log.Info("Build and run the inspector", "version", version)
	output, err := module.Run(ctx, "go", "run", "./inspect")
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
	minor, _ := strconv.Atoi(fields[1]) // Create has refused other versions
	return minor
}

// writeInspector writes the inspector's source below the directory of a module.
func writeInspector(directory string) error {
	program, err := inspector.ReadFile("inspect/inspect.go.txt")
	if err != nil {
		return err
	}
	return errors.Join(
		os.Mkdir(filepath.Join(directory, "inspect"), 0o700),
		os.WriteFile(filepath.Join(directory, "inspect", "main.go"), program, 0o600),
	)
}

// packagesOf returns the packages of Kubernetes that a command links.
func packagesOf(
	ctx context.Context, module kubernetes.Module, command string,
) (map[string]*sourcePackage, error) {
	output, err := module.Run(ctx, "go", "list", "-deps", "-json=ImportPath,Dir,GoFiles", command)
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
