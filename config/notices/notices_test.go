package main

import (
	"debug/buildinfo"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"quorate.dev/test/upstream"
)

// TestEveryLinkedModuleHasItsLicence compares the notices with the build information of the binary.
func TestEveryLinkedModuleHasItsLicence(t *testing.T) {
	binary, err := upstream.Quorate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	built, err := buildinfo.ReadFile(binary)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := run(&out, "../..", "linux", "amd64"); err != nil {
		t.Fatal(err)
	}
	index, texts, _ := strings.Cut(out.String(), rule)
	if len(built.Deps) < 50 {
		t.Errorf("only %d modules are linked", len(built.Deps))
	}
	for _, m := range built.Deps {
		if !strings.Contains(index, "\n"+m.Path+" "+m.Version+"\n  ") {
			t.Errorf("%s %s is linked and not among the notices", m.Path, m.Version)
		}
	}
	for _, want := range []string{"Copyright 2009 The Go Authors", "Mozilla Public License", "Apache License"} {
		if !strings.Contains(texts, want) {
			t.Errorf("no text has %q", want)
		}
	}
}

func TestCollect(t *testing.T) {
	root := t.TempDir()
	for name, text := range map[string]string{
		"a/LICENSE": "of a", "a/third/party/COPYING.txt": "of another", "a/other/LICENSE": "of what is not linked",
		"a/license.go": "package a", "b/NOTICE": "not a licence", "b/b/LICENSE": "of a part",
	} {
		if err := os.MkdirAll(filepath.Join(root, filepath.Dir(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	of := func(name, directory string) linkedPackage {
		return linkedPackage{
			Dir: filepath.Join(root, directory), Module: &moduleInfo{
				Path: name, Version: "v1.0.0", Dir: filepath.Join(root, name),
			},
		}
	}
	modules, err := collect([]linkedPackage{of("a", "a"), of("a", "a/third/party")})
	if err != nil || len(modules) != 1 {
		t.Fatal(modules, err)
	}
	var out strings.Builder
	if err := write(&out, modules); err != nil {
		t.Fatal(err)
	}
	for want, found := range map[string]bool{
		"a v1.0.0\n  LICENSE: text 1\n  third/party/COPYING.txt: text 2\n": true, "of a\n": true, "of another\n": true,
		"not linked": false, "package a": false,
	} {
		if strings.Contains(out.String(), want) != found {
			t.Errorf("%q in the output: %v\n%s", want, !found, out.String())
		}
	}
	if _, err := collect([]linkedPackage{of("b", "b/b")}); err == nil ||
		!strings.Contains(err.Error(), "linked module b v1.0.0 has no licence") {
		t.Errorf("a module without a licence of its own: %v", err)
	}
}

// TestOriginOfVendoredPackages checks packages for which go list prints no module directory, because of -mod=vendor.
func TestOriginOfVendoredPackages(t *testing.T) {
	p := linkedPackage{
		Dir: "/src/vendor/example.org/m/a/b", ImportPath: "example.org/m/a/b", Module: &moduleInfo{
			Path: "example.org/m", Version: "v1.0.0",
		},
	}
	for name, replace := range map[string]*moduleInfo{
		"example.org/m v1.0.0": nil, "example.org/fork v1.1.0": {Path: "example.org/fork", Version: "v1.1.0"},
	} {
		p.Module.Replace = replace
		if got, root := origin(p); got != name || root != "/src/vendor/example.org/m" {
			t.Errorf("%s in %s, want %s", got, root, name)
		}
	}
}

// TestVendored prints the notices of a module with a vendor directory. It must not need any other module directory,
// because the Dockerfile builds without network.
func TestVendored(t *testing.T) {
	directory := t.TempDir()
	for name, text := range map[string]string{
		"go.mod": "module example.com/main\n\ngo 1.26\n\nrequire example.com/a v1.0.0\n",
		"main.go": "package main\n\nimport (\n\t_ \"crypto/tls\"\n\n\t_ " +
			"\"example.com/a/part\"\n)\n\nfunc main() {}\n",
		"vendor/modules.txt":             "# example.com/a v1.0.0\n## explicit; go 1.26\nexample.com/a/part\n",
		"vendor/example.com/a/LICENSE":   "The licence of a",
		"vendor/example.com/a/part/a.go": "package part\n",
	} {
		file := filepath.Join(directory, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GOPROXY", "off")
	t.Setenv("GOMODCACHE", filepath.Join(directory, "empty"))
	t.Setenv("GOFLAGS", "")
	var out strings.Builder
	if err := run(&out, directory, "linux", "arm64"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"The licence of a", "Copyright 2009 The Go Authors"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no text has %q", want)
		}
	}
}

// TestStandardLibrary finds the root of the standard library also for packages that go list prints without a Root, such
// as the packages that the library itself vendors, if the main module has a vendor directory.
func TestStandardLibrary(t *testing.T) {
	for _, path := range []string{"fmt", "crypto/tls", "vendor/golang.org/x/crypto/cryptobyte"} {
		p := linkedPackage{Dir: filepath.Join("/opt/go/src", path), ImportPath: path, Standard: true}
		if name, root := origin(p); root != "/opt/go" || !strings.HasPrefix(name, "Go ") {
			t.Errorf("%s is of %s in %q", path, name, root)
		}
	}
	outside := linkedPackage{
		Dir: t.TempDir(), ImportPath: "example.com/a", Module: &moduleInfo{Path: "example.com/a", Dir: "/elsewhere"},
	}
	if _, err := collect([]linkedPackage{outside}); err == nil {
		t.Error("a package outside of its module is accepted")
	}
}
