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
		"a/LICENSE": "of a", "a/third/party/COPYING.txt": "of another", "a/other/LICENSE": "of what is not linked", "a/license.go": "package a",
		"b/NOTICE": "not a licence", "b/b/LICENSE": "of a part",
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
			Dir: filepath.Join(root, directory), Module: &moduleInfo{Path: name, Version: "v1.0.0", Dir: filepath.Join(root, name)},
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
	if _, err := collect([]linkedPackage{of("b", "b/b")}); err == nil || !strings.Contains(err.Error(), "linked module b v1.0.0 has no licence") {
		t.Errorf("a module without a licence of its own: %v", err)
	}
}

// TestOriginOfVendoredPackages: go list prints no directories of modules with -mod=vendor.
func TestOriginOfVendoredPackages(t *testing.T) {
	p := linkedPackage{Dir: "/src/vendor/example.org/m/a/b", ImportPath: "example.org/m/a/b", Module: &moduleInfo{Path: "example.org/m", Version: "v1.0.0"}}
	for name, replace := range map[string]*moduleInfo{"example.org/m v1.0.0": nil, "example.org/fork v1.1.0": {Path: "example.org/fork", Version: "v1.1.0"}} {
		p.Module.Replace = replace
		if got, root := origin(p); got != name || root != "/src/vendor/example.org/m" {
			t.Errorf("%s in %s, want %s", got, root, name)
		}
	}
}
