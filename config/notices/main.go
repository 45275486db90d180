// Command notices prints the licences and notices of all modules that are linked into the binary. The image contains
// the output:
//
//	go run ./config/notices [-os linux] [-arch arm64] > THIRD_PARTY_NOTICES
//
// It fails if a linked module has no licence.
package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
)

func main() {
	goos := flag.String("os", runtime.GOOS, "Operating system that the binary is built for.")
	goarch := flag.String("arch", runtime.GOARCH, "Architecture that the binary is built for.")
	flag.Parse()
	if err := run(os.Stdout, ".", *goos, *goarch); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// run writes the notices of the binary whose main package is in directory.
func run(out io.Writer, directory, goos, goarch string) error {
	packages, err := linked(directory, goos, goarch)
	if err != nil {
		return err
	}
	modules, err := collect(packages)
	if err != nil {
		return err
	}
	return write(out, modules)
}

// linkedPackage is a package in the output of "go list".
type linkedPackage struct {
	Dir, ImportPath string
	Standard        bool
	Module          *moduleInfo
}

type moduleInfo struct {
	Path, Version, Dir string
	Main               bool
	Replace            *moduleInfo
}

// linked returns the packages of a binary.
func linked(directory, goos, goarch string) ([]linkedPackage, error) {
	command := exec.Command("go", "list", "-deps", "-json=Dir,ImportPath,Standard,Module", ".")
	command.Dir = directory
	command.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS="+goos, "GOARCH="+goarch)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	output, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("go list: %w: %s", err, stderr.Bytes())
	}
	var packages []linkedPackage
	for decoder := json.NewDecoder(bytes.NewReader(output)); ; {
		var p linkedPackage
		switch err := decoder.Decode(&p); {
		case errors.Is(err, io.EOF):
			return packages, nil
		case err != nil:
			return nil, fmt.Errorf("go list: %w", err)
		}
		packages = append(packages, p)
	}
}
