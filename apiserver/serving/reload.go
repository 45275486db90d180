package serving

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
)

// Reloadable is implemented by configuration that is read from files. If Reload fails, the previous configuration must
// stay in use.
type Reloadable interface {
	Files() []string
	Reload() error
}

// reloader calls Reload of all Reloadables when a file changes. It watches the directories of the files, because files
// are usually replaced, not written: the kubelet updates a mounted Secret by swapping a symbolic link.
type reloader struct {
	watcher *fsnotify.Watcher
	all     []Reloadable
	logger  logr.Logger
}

func newReloader(all []Reloadable, logger logr.Logger) (*reloader, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watch files: %w", err)
	}
	r := &reloader{watcher: watcher, all: all, logger: logger}
	if err := r.watch(); err != nil {
		return nil, errors.Join(err, watcher.Close())
	}
	return r, nil
}

// watch watches the directory of each file, and the directory of the file that a symbolic link refers to. Watching a
// directory again has no effect.
func (r *reloader) watch() error {
	for _, one := range r.all {
		for _, file := range one.Files() {
			if err := r.watcher.Add(filepath.Dir(file)); err != nil {
				return fmt.Errorf("watch %s: %w", file, err)
			}
			target, err := filepath.EvalSymlinks(file)
			if err != nil || filepath.Dir(target) == filepath.Dir(file) {
				continue
			}
			if err := r.watcher.Add(filepath.Dir(target)); err != nil {
				return fmt.Errorf("watch %s: %w", target, err)
			}
		}
	}
	return nil
}

// run reloads until Close is called.
func (r *reloader) run() {
	for {
		select {
		case event, ok := <-r.watcher.Events:
			if !ok {
				return
			}
			if event.Op == fsnotify.Chmod || !r.concerns(event.Name) {
				continue
			}
			r.reload()
		case err, ok := <-r.watcher.Errors:
			if !ok {
				return
			}
			r.logger.Error(err, "File watch failed; events may have been lost")
			r.reload()
		}
	}
}

// concerns reports whether an event for the file name may change the content of a Reloadable, because the Reloadable
// has this file, or has a file that is reached through a symbolic link.
func (r *reloader) concerns(name string) bool {
	for _, one := range r.all {
		for _, file := range one.Files() {
			if filepath.Clean(file) == name {
				return true
			}
			target, err := filepath.EvalSymlinks(file)
			if err != nil || target != filepath.Clean(file) {
				return true
			}
		}
	}
	return false
}

func (r *reloader) reload() {
	for _, one := range r.all {
		if err := one.Reload(); err != nil {
			r.logger.Error(err, "Failed to reload; the previous content stays in use")
		}
	}
	if err := r.watch(); err != nil {
		r.logger.Error(err, "Failed to watch files")
	}
}

// Close stops watching, which ends run.
func (r *reloader) Close() error { return r.watcher.Close() }
