package serving

import (
	"errors"
	"fmt"
	"path/filepath"

	"github.com/fsnotify/fsnotify"
	"github.com/go-logr/logr"
)

// Reloadable is something read from files that may change. Reload keeps what it has when it fails.
type Reloadable interface {
	Files() []string
	Reload() error
}

// reloader reloads what is read from files when the system tells that something in their directories changed. It
// watches directories, as files are usually replaced, not written: mounted Secrets by swapping a link.
type reloader struct {
	watcher *fsnotify.Watcher
	all     []Reloadable
	logger  logr.Logger
}

func newReloader(all []Reloadable, logger logr.Logger) (*reloader, error) {
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, fmt.Errorf("watching files: %w", err)
	}
	r := &reloader{watcher: watcher, all: all, logger: logger}
	if err := r.watch(); err != nil {
		return nil, errors.Join(err, watcher.Close())
	}
	return r, nil
}

// watch watches the directory of each file, and that of what it links to. Directories watched already stay so.
func (r *reloader) watch() error {
	for _, one := range r.all {
		for _, file := range one.Files() {
			if err := r.watcher.Add(filepath.Dir(file)); err != nil {
				return fmt.Errorf("watching %s: %w", file, err)
			}
			target, err := filepath.EvalSymlinks(file)
			if err != nil || filepath.Dir(target) == filepath.Dir(file) {
				continue
			}
			if err := r.watcher.Add(filepath.Dir(target)); err != nil {
				return fmt.Errorf("watching %s: %w", target, err)
			}
		}
	}
	return nil
}

// run reloads until Close. Several events in a row lead to one reload, as the later ones find the queue's end.
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
			r.logger.Error(err, "Watching files") // events may have been lost
			r.reload()
		}
	}
}

// concerns tells whether an event may mean that one of the files has changed: itself, or a link on the way to it.
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
			r.logger.Error(err, "Reloading failed; the previous content stays in use")
		}
	}
	if err := r.watch(); err != nil {
		r.logger.Error(err, "Watching files")
	}
}

// Close ends run.
func (r *reloader) Close() error { return r.watcher.Close() }
