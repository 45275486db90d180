package backup

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// directory is a store of files below a directory, usually the mount of a volume.
type directory struct{ root *os.Root }

func openDirectory(name string) (*directory, error) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, fmt.Errorf("open the directory of backups: %w", err)
	}
	return &directory{root}, nil
}

const partialSuffix = ".partial"

func (d *directory) put(_ context.Context, name string, content io.Reader, size int64) error {
	partial := name + partialSuffix
	if err := d.write(partial, content, size); err != nil {
		return err
	}
	if err := d.root.Rename(partial, name); err != nil {
		return err
	}
	return d.sync(path.Dir(name))
}

func (d *directory) create(_ context.Context, name string, content []byte) error {
	partial := name + "-" + rand.Text() + partialSuffix
	if err := d.write(partial, bytes.NewReader(content), int64(len(content))); err != nil {
		return err
	}
	err := d.root.Link(partial, name)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return d.createWithoutLinks(partial, name)
	}
	if err != nil {
		err = errExists
	}
	return errors.Join(err, d.root.Remove(partial), d.sync(path.Dir(name)))
}

// createWithoutLinks creates a file by a rename, on a file system without links, such as some network file systems.
// It replaces the file of another process that creates it at the same time.
func (d *directory) createWithoutLinks(partial, name string) error {
	switch _, err := d.root.Stat(name); {
	case err == nil:
		return errors.Join(errExists, d.root.Remove(partial))
	case !errors.Is(err, fs.ErrNotExist):
		return errors.Join(err, d.root.Remove(partial))
	}
	return errors.Join(d.root.Rename(partial, name), d.sync(path.Dir(name)))
}

// write writes a file under a name that readers do not take for a complete file.
func (d *directory) write(partial string, content io.Reader, size int64) error {
	if err := d.root.MkdirAll(path.Dir(partial), 0o750); err != nil {
		return err
	}
	f, err := d.root.OpenFile(partial, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o640)
	if err != nil {
		return err
	}
	written, err := io.Copy(f, content)
	if err == nil && written != size {
		err = fmt.Errorf("wrote %d bytes, want %d", written, size)
	}
	if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
		return errors.Join(err, d.root.Remove(partial))
	}
	return nil
}

// sync makes changed names in a directory durable.
func (d *directory) sync(name string) error {
	f, err := d.root.Open(name)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

func (d *directory) get(_ context.Context, name string) (io.ReadCloser, error) {
	f, err := d.root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNotFound
	}
	return f, err
}

// remove implements store. It also deletes the directories that become empty.
func (d *directory) remove(_ context.Context, name string) error {
	if err := d.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		if d.root.Remove(parent) != nil {
			break // the parent is not empty
		}
	}
	return nil
}

func (d *directory) find(_ context.Context, name string) ([]string, error) {
	var found []string
	err := fs.WalkDir(d.root.FS(), name, func(file string, entry fs.DirEntry, err error) error {
		if file == name && errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if entry.Name() == "lost+found" && entry.IsDir() { // exists on ext4, readable only by root
			return fs.SkipDir
		}
		if !entry.IsDir() {
			found = append(found, file)
		}
		return nil
	})
	return found, err
}

func (d *directory) location(name string) string {
	return "file://" + filepath.ToSlash(filepath.Join(d.root.Name(), name))
}
