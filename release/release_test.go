// Package release tests the script that writes a release.
package release

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"quorate.dev/release/manifest"
	"quorate.dev/test/upstream"
)

const root = ".."

// build runs build.sh of a repository and returns the directory of the release.
func build(t *testing.T, repository string, environment ...string) string {
	t.Helper()
	directory := filepath.Join(t.TempDir(), "dist")
	command := exec.CommandContext(t.Context(), "bash", filepath.Join(repository, "release", "build.sh"))
	command.Env = append(append(os.Environ(), "DIST="+directory, "IMAGE=registry.example/quorate"), environment...)
	if output, err := command.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, output)
	}
	return directory
}

// TestRelease writes a release twice and checks its parts. The short form uses the test binary in place of quorate. The
// long form builds quorate for both architectures, the second time in another directory and without a cache.
func TestRelease(t *testing.T) {
	upstream.NeedsProcesses(t)
	upstream.NeedsTime(t)
	var first, second string
	if os.Getenv("QUORATE_RELEASE") == "" {
		binaries := "BINARIES=" + stub(t)
		first, second = build(t, root, binaries), build(t, root, binaries)
	} else {
		clone := filepath.Join(t.TempDir(), "clone")
		if output, err := exec.CommandContext(
			t.Context(), "git", "clone", "--quiet", root, clone,
		).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, output)
		}
		first, second = build(t, root), build(t, clone, "GOCACHE="+t.TempDir())
	}
	sums := read(t, first, "SHA256SUMS")
	if other := read(t, second, "SHA256SUMS"); other != sums {
		t.Errorf("the second release has the checksums\n%s\nthe first one\n%s", other, sums)
	}
	checkParts(t, first, sums)
}

// stub returns a directory with the test binary as quorate for both architectures.
func stub(t *testing.T) string {
	t.Helper()
	executable, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(executable)
	if err != nil {
		t.Fatal(err)
	}
	directory := t.TempDir()
	for _, architecture := range []string{"amd64", "arm64"} {
		folder := filepath.Join(directory, "linux-"+architecture)
		if err := os.Mkdir(folder, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(folder, "quorate"), program, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return directory
}

func read(t *testing.T, directory, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(directory, name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// checkParts checks the files of a release, their checksums, and the name of the image in manifests and chart.
func checkParts(t *testing.T, directory, sums string) {
	t.Helper()
	version, err := manifest.Version(root)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"NOTES.md", "extension.yaml", "install-namespaced.yaml", "install.yaml", "monitoring.yaml",
		"quorate-" + version + ".tgz", "quorate-linux-amd64.cdx.json", "quorate-linux-arm64.cdx.json",
		"quorate-v" + version + "-bundle.tar.gz", "quorate-v" + version + "-image.tar",
		"quorate-v" + version + "-linux-amd64.tar.gz", "quorate-v" + version + "-linux-arm64.tar.gz",
	}
	var names []string
	for line := range strings.Lines(sums) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		names = append(names, name)
		if actual := sha256.Sum256([]byte(read(t, directory, name))); hex.EncodeToString(actual[:]) != sum {
			t.Errorf("%s has the checksum %x", name, actual)
		}
	}
	slices.Sort(names)
	if !slices.Equal(names, want) {
		t.Errorf("the release has %q, want %q", names, want)
	}
	tag, err := manifest.Tag(root, version)
	if err != nil {
		t.Fatal(err)
	}
	image := "registry.example/quorate:v" + tag
	for _, name := range []string{"install.yaml", "install-namespaced.yaml"} {
		if text := read(t, directory, name); strings.Count(text, image) != 2 || strings.Contains(text, "quorate:latest") {
			t.Errorf("%s does not have the image %s twice", name, image)
		}
	}
	if notes := read(t, directory, "NOTES.md"); !strings.Contains(notes, "# Quorate "+version) ||
		!strings.Contains(notes, "## Upgrading") {
		t.Errorf("notes:\n%s", notes)
	}
	command := exec.CommandContext(t.Context(), "go", "tool", "-modfile=tools/helm/go.mod", "helm", "template", "quorate",
		filepath.Join(directory, "quorate-"+version+".tgz"))
	command.Dir = root
	output, err := command.CombinedOutput()
	if err != nil || strings.Count(string(output), image) != 2 {
		t.Errorf("the chart: %v\n%.1000s", err, output)
	}
}
