package backup

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
)

// directory stores files below a directory, usually the mount of a volume.
type directory struct{ root *os.Root }

func openDirectory(name string) (*directory, error) {
	root, err := os.OpenRoot(name)
	if err != nil {
		return nil, fmt.Errorf("open the directory of backups: %w", err)
	}
	return &directory{root}, nil
}

func (d *directory) put(_ context.Context, name string, content io.Reader, size int64) error {
	if err := d.root.MkdirAll(path.Dir(name), 0o750); err != nil {
		return err
	}
	partial := name + ".partial"
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
	if err := d.root.Rename(partial, name); err != nil {
		return err
	}
	parent, err := d.root.Open(path.Dir(name))
	if err != nil {
		return err
	}
	return errors.Join(parent.Sync(), parent.Close()) // makes the rename durable
}

func (d *directory) get(_ context.Context, name string) (io.ReadCloser, error) {
	f, err := d.root.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNotFound
	}
	return f, err
}

// remove also deletes the directories that become empty.
func (d *directory) remove(_ context.Context, name string) error {
	if err := d.root.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	for parent := path.Dir(name); parent != "."; parent = path.Dir(parent) {
		if d.root.Remove(parent) != nil {
			break // not empty
		}
	}
	return nil
}

func (d *directory) find(_ context.Context, name string) ([]string, error) {
	var found []string
	err := fs.WalkDir(d.root.FS(), ".", func(file string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if entry.Name() == "lost+found" && entry.IsDir() { // of ext4, readable by root only
			return fs.SkipDir
		}
		if entry.Name() == name {
			found = append(found, file)
		}
		return nil
	})
	return found, err
}

func (d *directory) location(name string) string {
	return "file://" + filepath.ToSlash(filepath.Join(d.root.Name(), name))
}
