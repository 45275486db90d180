package main

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	cyclonedx "github.com/CycloneDX/cyclonedx-go"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// write writes an image of this test's own binary, and returns the directory and the digest.
func write(t *testing.T) (directory, digest string) {
	t.Helper()
	files, output := t.TempDir(), t.TempDir()
	binary, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{
		"quorate": data, "LICENSE": []byte("license"), "THIRD_PARTY_NOTICES": []byte("notices"),
	} {
		if err := os.WriteFile(filepath.Join(files, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	r := release{
		output: output, name: "quorate", tag: "v1.2.3-k8s1.2", version: "1.2.3", kubernetes: "1.2", revision: "abc",
	}
	if err := r.run("2026-01-02T03:04:05Z", []string{"linux/amd64=" + files, "linux/arm64=" + files}); err != nil {
		t.Fatal(err)
	}
	path, err := layout.FromPath(filepath.Join(output, "image"))
	if err != nil {
		t.Fatal(err)
	}
	index, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	written := manifest.Manifests[0]
	if got := written.Annotations["org.opencontainers.image.ref.name"]; got != r.tag {
		t.Errorf("the image has the tag %q, want %q", got, r.tag)
	}
	if got, want := written.Annotations["io.containerd.image.name"], "docker.io/library/quorate:"+r.tag; got != want {
		t.Errorf("containerd gets the name %q, want %q", got, want)
	}
	return output, written.Digest.String()
}

func TestReproducible(t *testing.T) {
	_, first := write(t)
	if _, second := write(t); second != first {
		t.Errorf("equal inputs give %s and %s", first, second)
	}
}

func TestCanonical(t *testing.T) {
	for image, want := range map[string]string{
		"quorate:v1": "docker.io/library/quorate:v1", "team/quorate:v1": "docker.io/team/quorate:v1",
		"registry.example/quorate:v1": "registry.example/quorate:v1",
		"localhost:5000/quorate:v1":   "localhost:5000/quorate:v1",
	} {
		if got, err := canonical(image); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", image, got, err, want)
		}
	}
	if _, err := canonical("Quorate:v1"); err == nil {
		t.Error("an invalid name is accepted")
	}
}

func TestContents(t *testing.T) {
	output, _ := write(t)
	path, err := layout.FromPath(filepath.Join(output, "image"))
	if err != nil {
		t.Fatal(err)
	}
	outer, err := path.ImageIndex()
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := outer.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	index, err := outer.ImageIndex(manifest.Manifests[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if manifest, err = index.IndexManifest(); err != nil || len(manifest.Manifests) != 2 {
		t.Fatalf("want two platforms: %v, %v", manifest, err)
	}
	for i, architecture := range []string{"amd64", "arm64"} {
		descriptor := manifest.Manifests[i]
		if descriptor.Platform == nil || descriptor.Platform.Architecture != architecture {
			t.Errorf("manifest %d is for %v, want %s", i, descriptor.Platform, architecture)
		}
		image, err := index.Image(descriptor.Digest)
		if err != nil {
			t.Fatal(err)
		}
		checkConfig(t, image, architecture)
		checkFiles(t, image)
	}
}

// checkConfig checks the user and the provenance labels of an image.
func checkConfig(t *testing.T, image v1.Image, architecture string) {
	t.Helper()
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != architecture || config.Config.User != "65532:65532" ||
		!slices.Equal(config.Config.Entrypoint, []string{"/quorate"}) {
		t.Errorf("config: %+v", config)
	}
	if got := config.Config.Labels[kubernetesLabel]; got != "1.2" {
		t.Errorf("label %s is %q", kubernetesLabel, got)
	}
	const prefix = "org.opencontainers.image."
	for label, want := range map[string]string{
		"version": "1.2.3", "revision": "abc", "created": "2026-01-02T03:04:05Z", "licenses": "Apache-2.0",
		"title": "Quorate", "source": "https://quorate.dev",
	} {
		if got := config.Config.Labels[prefix+label]; got != want {
			t.Errorf("label %s is %q, want %q", prefix+label, got, want)
		}
	}
}

// checkFiles checks the modes of an image's files, and its SBOM.
func checkFiles(t *testing.T, image v1.Image) {
	t.Helper()
	modes := map[string]int64{}
	for reader := tar.NewReader(mutate.Extract(image)); ; {
		header, err := reader.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		modes[header.Name] = header.Mode
		if header.Name == "licenses/quorate.cdx.json" {
			bom := cyclonedx.NewBOM()
			if err := cyclonedx.NewBOMDecoder(reader, cyclonedx.BOMFileFormatJSON).Decode(bom); err != nil {
				t.Errorf("the SBOM: %v", err)
			}
		}
	}
	for name, mode := range map[string]int64{
		"quorate": 0o755, "etc/ssl/certs/ca-certificates.crt": 0o644, "licenses/THIRD_PARTY_NOTICES": 0o644,
		"licenses/quorate.cdx.json": 0o644, "tmp": 0o1777,
	} {
		if got := max(modes[name], modes[name+"/"]); got != mode {
			t.Errorf("%s has mode %o, want %o; files: %v", name, got, mode, modes)
		}
	}
}

func TestBOM(t *testing.T) {
	output, _ := write(t)
	text, err := os.ReadFile(filepath.Join(output, "quorate-linux-amd64.cdx.json"))
	if err != nil {
		t.Fatal(err)
	}
	var bom struct {
		Components []struct{ PURL string }
	}
	if err := json.Unmarshal(text, &bom); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), "pkg:golang/github.com/google/go-containerregistry@") || len(bom.Components) < 3 {
		t.Errorf("the SBOM lacks modules:\n%s", text)
	}
}

func TestAuthorities(t *testing.T) {
	if count := strings.Count(string(authorities()), "BEGIN CERTIFICATE"); count < 50 {
		t.Errorf("%d authorities", count)
	}
}
