package volumes

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// Names that the kubelet's AtomicWriter uses. Programs watch ..data for changes of a volume.
const (
	dataLink = "..data"
	tempLink = "..data_tmp"
	reserved = ".."
)

// Write replaces the content of a folder atomically, like the kubelet's AtomicWriter: it writes the files into a new
// folder, and then replaces the symlink ..data. The top-level names in the folder are symlinks through ..data.
func Write(folder string, content Content) error {
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	for path := range content {
		if !filepath.IsLocal(path) || strings.HasPrefix(path, reserved) {
			return fmt.Errorf("%q is not a path within a volume", path)
		}
	}
	previous, err := os.Readlink(filepath.Join(folder, dataLink))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fresh, err := fill(folder, content)
	if err != nil {
		return err
	}
	if err := turn(folder, fresh); err != nil {
		return err
	}
	if err := link(folder, content); err != nil {
		return err
	}
	if previous != "" {
		return os.RemoveAll(filepath.Join(folder, filepath.Base(previous)))
	}
	return nil
}

// fill writes the files into a new folder, and returns the name of the new folder. If it fails, it removes the new
// folder, because the agent calls Write again and again until it succeeds.
func fill(folder string, content Content) (string, error) {
	fresh, err := os.MkdirTemp(folder, reserved+"content-")
	if err != nil {
		return "", err
	}
	if err := writeFiles(fresh, content); err != nil {
		return "", errors.Join(err, os.RemoveAll(fresh))
	}
	return filepath.Base(fresh), nil
}

func writeFiles(folder string, content Content) error {
	if err := os.Chmod(folder, 0o755); err != nil {
		return err
	}
	for _, path := range content.Paths() {
		file := filepath.Join(folder, path)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(file, content[path].Data, 0o600); err != nil {
			return err
		}
		if err := os.Chmod(file, fs.FileMode(content[path].Mode)&fs.ModePerm); err != nil {
			return err
		}
	}
	return nil
}

func turn(folder, target string) error {
	temporary := filepath.Join(folder, tempLink)
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := os.Symlink(target, temporary); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(folder, dataLink))
}

// link makes the symlinks in a folder match the top-level names of content.
func link(folder string, content Content) error {
	wanted := map[string]bool{}
	for path := range content {
		name, _, _ := strings.Cut(path, "/")
		wanted[name] = true
	}
	entries, err := os.ReadDir(folder)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		switch name := entry.Name(); {
		case strings.HasPrefix(name, reserved):
		case wanted[name]:
			delete(wanted, name)
		default:
			if err := os.Remove(filepath.Join(folder, name)); err != nil {
				return err
			}
		}
	}
	for name := range wanted {
		if err := os.Symlink(filepath.Join(dataLink, name), filepath.Join(folder, name)); err != nil {
			return err
		}
	}
	return nil
}
