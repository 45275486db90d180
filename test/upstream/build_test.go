package upstream

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// TestBuildOnce builds a program of a module without dependencies. The program is not built again while its file
// exists, and a failed build leaves no file and reports the errors of the compiler.
func TestBuildOnce(t *testing.T) {
	w := &workspace{root: t.TempDir(), cache: t.TempDir()}
	source := filepath.Join(w.root, "main.go")
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(filepath.Join(w.root, "go.mod"), "module example.com/program\n\ngo 1.24\n")
	write(source, "package main\n\nvar version string\n\nfunc main() { println(version) }\n")
	t.Setenv("GOFLAGS", "")
	t.Setenv("GOWORK", "off")
	for range 2 {
		binary, err := w.buildOnce(t.Context(), "program", ".", "-X main.version=v1")
		if err != nil {
			t.Fatal(err)
		}
		output, err := exec.CommandContext(t.Context(), binary).CombinedOutput()
		if err != nil || string(output) != "v1\n" {
			t.Errorf("the program prints %q, error %v", output, err)
		}
		write(source, "package main\n\nfunc main() { missing() }\n")
	}
	if _, err := w.buildOnce(t.Context(), "other", ".", ""); err == nil ||
		!strings.Contains(err.Error(), "undefined: missing") {
		t.Errorf("a build with an error ended with %v", err)
	}
	if _, err := os.Stat(filepath.Join(w.cache, "other")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("a failed build left a file, or %v", err)
	}
}

// TestLock checks that a lock is exclusive until it is released.
func TestLock(t *testing.T) {
	file := filepath.Join(t.TempDir(), "lock")
	unlock, err := lock(file)
	if err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_SH|syscall.LOCK_NB); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("while the lock is held, a shared lock ended with %v", err)
	}
	unlock()
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Errorf("after the lock was released: %v", err)
	}
	if _, err := lock(filepath.Join(file, "below")); err == nil {
		t.Error("a lock below a file was created")
	}
}

// TestExtract checks out a former commit of a repository.
func TestExtract(t *testing.T) {
	repository, directory := t.TempDir(), t.TempDir()
	git := func(arguments ...string) {
		t.Helper()
		arguments = append([]string{"-C", repository, "-c", "user.name=a", "-c", "user.email=a@example.com"}, arguments...)
		if output, err := exec.CommandContext(t.Context(), "git", arguments...).CombinedOutput(); err != nil {
			t.Fatalf("git %q: %v\n%s", arguments, err, output)
		}
	}
	git("init", "--quiet")
	file := filepath.Join(repository, "folder", "file")
	if err := os.Mkdir(filepath.Dir(file), 0o700); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"former", "present"} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		git("add", "--all")
		git("commit", "--quiet", "--message="+text)
	}
	if err := extract(t.Context(), repository, "HEAD^", directory); err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(filepath.Join(directory, "folder", "file")); err != nil || string(text) != "former" {
		t.Errorf("got %q, error %v", text, err)
	}
	if err := extract(t.Context(), repository, "missing", directory); err == nil {
		t.Error("a missing commit was extracted")
	}
}
