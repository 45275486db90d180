package main

import (
	"bytes"
	"debug/buildinfo"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
)

// bom returns the SBOM of a platform's binary: Go itself, and the modules that Go has recorded in the binary.
func (r *release) bom(p platform) ([]byte, error) {
	info, err := buildinfo.ReadFile(filepath.Join(p.directory, "quorate"))
	if err != nil {
		return nil, fmt.Errorf("read the modules of quorate: %w", err)
	}
	bom := cyclonedx.NewBOM()
	main := component(info.Main.Path, "v"+r.version)
	main.Type = cyclonedx.ComponentTypeApplication
	bom.Metadata = &cyclonedx.Metadata{Timestamp: r.created.UTC().Format("2006-01-02T15:04:05Z"), Component: &main}
	components := []cyclonedx.Component{component("std", strings.TrimPrefix(info.GoVersion, "go"))}
	for _, module := range info.Deps {
		if module.Replace != nil {
			module = module.Replace
		}
		components = append(components, component(module.Path, module.Version))
	}
	slices.SortFunc(components, func(a, b cyclonedx.Component) int { return strings.Compare(a.BOMRef, b.BOMRef) })
	bom.Components = &components
	var text bytes.Buffer
	err = cyclonedx.NewBOMEncoder(&text, cyclonedx.BOMFileFormatJSON).SetPretty(true).Encode(bom)
	return text.Bytes(), err
}

// component returns the component of a Go module.
func component(path, version string) cyclonedx.Component {
	url := "pkg:golang/" + path + "@" + version
	return cyclonedx.Component{
		BOMRef: url, Type: cyclonedx.ComponentTypeLibrary, Name: path, Version: version, PackageURL: url,
	}
}
