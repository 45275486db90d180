package main

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// contents returns the contents of the files below a directory by path.
func contents(t *testing.T, directory string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(directory, func(file string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		text, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(directory, file)
		files[filepath.ToSlash(name)] = string(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// TestFilesAreCurrent compares the files in config/monitoring with those that the program generates in a directory
// with a dashboard that it no longer generates.
func TestFilesAreCurrent(t *testing.T) {
	output := t.TempDir()
	if err := os.Mkdir(filepath.Join(output, "dashboards"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(output, "dashboards", "former.json"), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := run(output); err != nil {
		t.Fatal(err)
	}
	generated, current := contents(t, output), contents(t, "../../config/monitoring")
	for name, text := range generated {
		if current[name] != text {
			t.Errorf("%s is not current; run make generate", name)
		}
	}
	for name := range current {
		_, isGenerated := generated[name]
		if want := strings.HasPrefix(name, "dashboards/") || strings.Contains(name, "rule"); want != isGenerated {
			t.Errorf("%s is generated: %t, want %t", name, isGenerated, want)
		}
	}
	if len(generated) < 5 {
		t.Errorf("only %d files were generated", len(generated))
	}
}

// TestFileThatCannotBeWritten checks that the program fails if a file cannot be written, and names the file.
func TestFileThatCannotBeWritten(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	if err := run(missing); err == nil || !strings.Contains(err.Error(), missing) {
		t.Errorf("got the error %v", err)
	}
}
