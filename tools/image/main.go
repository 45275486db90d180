// Command image writes a container image for several platforms as an OCI layout, and a CycloneDX SBOM of each binary,
// without a container engine:
//
//	go run -C tools/image . -output DIRECTORY -tag v0.1.0 -version 0.1.0 -revision COMMIT -created RFC3339 linux/amd64=DIRECTORY ...
//
// The directory of a platform contains quorate, LICENSE and THIRD_PARTY_NOTICES. Equal inputs give equal bytes.
package main

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"time"
)

func main() {
	var r release
	flag.StringVar(&r.output, "output", "",
		"Directory to write: image/ is the OCI layout, and there is an SBOM for each platform.")
	flag.StringVar(&r.name, "name", "quorate", "Name of the image, without the tag.")
	flag.StringVar(&r.tag, "tag", "", "Tag of the image.")
	flag.StringVar(&r.version, "version", "", "Version, without v.")
	flag.StringVar(&r.kubernetes, "kubernetes", "", "Version of Kubernetes, without v.")
	flag.StringVar(&r.revision, "revision", "", "Commit.")
	created := flag.String("created", "", "Time of the commit, in RFC 3339.")
	flag.Parse()
	if err := r.run(*created, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "Error:", err)
		os.Exit(1)
	}
}

// release describes the image.
type release struct {
	output, name, tag             string
	version, kubernetes, revision string
	created                       time.Time
}

// platform is a platform of the image.
type platform struct {
	os, architecture string
	directory        string // contains the files
}

func (r *release) run(created string, arguments []string) error {
	if r.output == "" || r.tag == "" || r.version == "" || len(arguments) == 0 {
		return fmt.Errorf("want -output, -tag, -version and one or more OS/ARCHITECTURE=DIRECTORY")
	}
	var err error
	if r.created, err = time.Parse(time.RFC3339, created); err != nil {
		return fmt.Errorf("-created: %w", err)
	}
	var platforms []platform
	for _, argument := range arguments {
		name, directory, found := strings.Cut(argument, "=")
		system, architecture, valid := strings.Cut(name, "/")
		if !found || !valid {
			return fmt.Errorf("%q is not OS/ARCHITECTURE=DIRECTORY", argument)
		}
		platforms = append(platforms, platform{os: system, architecture: architecture, directory: directory})
	}
	digest, err := r.write(platforms)
	if err != nil {
		return err
	}
	fmt.Printf("%s:%s@%s\n", r.name, r.tag, digest)
	return nil
}
