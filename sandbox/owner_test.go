package sandbox

import (
	"os"
	"path/filepath"
	"testing"
)

// TestDirectoryOfOthers tries directories in which other users may have left files.
func TestDirectoryOfOthers(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(t *testing.T, path string)
		opens   bool
	}{
		"missing":            {func(*testing.T, string) {}, true},
		"readable by others": {func(t *testing.T, path string) { makeDirectory(t, path, 0o755) }, true},
		"empty":              {func(t *testing.T, path string) { makeDirectory(t, path, 0o777) }, true},
		"prepared by others": {
			func(t *testing.T, path string) { makeDirectory(t, filepath.Join(path, "management"), 0o777) }, false,
		},
		"with other files": {
			func(t *testing.T, path string) { makeDirectory(t, filepath.Join(path, "Documents"), 0o700) }, false,
		},
		"a link to a prepared one": {func(t *testing.T, path string) {
			makeDirectory(t, filepath.Join(path+"-target", "management"), 0o777)
			if err := os.Symlink(path+"-target", path); err != nil {
				t.Fatal(err)
			}
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "sandbox")
			c.prepare(t, path)
			h, err := openHome(path)
			if err == nil {
				defer h.close()
			}
			if (err == nil) != c.opens {
				t.Fatalf("got %v, want success: %t", err, c.opens)
			}
			if info, err := os.Stat(path); c.opens && (err != nil || info.Mode().Perm() != 0o700) {
				t.Errorf("the mode is %v, want 0700: %v", info.Mode(), err)
			}
		})
	}
}

// makeDirectory creates a directory and its parent with a mode, regardless of the umask.
func makeDirectory(t *testing.T, path string, mode os.FileMode) {
	t.Helper()
	if err := os.MkdirAll(path, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, directory := range []string{filepath.Dir(path), path} {
		if err := os.Chmod(directory, mode); err != nil {
			t.Fatal(err)
		}
	}
}

// TestDirectoryOfAnotherUser needs root, which can give a directory to another user.
func TestDirectoryOfAnotherUser(t *testing.T) {
	path := filepath.Join(t.TempDir(), "sandbox")
	h, err := openHome(path)
	if err != nil {
		t.Fatal(err)
	}
	h.close()
	if _, err := existingHome(path); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, 0o722); err != nil {
		t.Fatal(err)
	}
	if _, err := existingHome(path); err == nil {
		t.Error("uses a directory in which others can write")
	}
	if err := os.Chmod(path, 0o700); err != nil {
		t.Fatal(err)
	}
	if os.Geteuid() != 0 {
		return
	}
	if err := os.Chown(path, 65534, 65534); err != nil {
		t.Fatal(err)
	}
	if h, err := openHome(path); err == nil {
		h.close()
		t.Error("opens the directory of another user")
	}
	if _, err := existingHome(path); err == nil {
		t.Error("uses the kubeconfigs of another user")
	}
	if err := remove(path); err == nil {
		t.Error("deletes the directory of another user")
	}
}
