// Package backup is the command `quorate backup`: it creates, lists, restores and deletes backups of an etcd in a
// directory or in S3-compatible storage. The operator runs it in pods; it also works without the operator.
//
// create takes a snapshot from a member (package snapshot), optionally encrypts it, stores it, reads it back, and
// stores the manifest last. A backup is complete when it has a manifest. A manifest is never replaced, as far as the
// storage can create a file atomically. Every attempt stores its snapshot under its own name, so that attempts can
// run at the same time and be repeated. restore trusts nothing in the store that is not verified by a digest or key
// which the caller knows from elsewhere (expectation).
package backup

import (
	"context"
	"errors"
	"io"
)

var (
	errNotFound = errors.New("not found") // returned for a file that does not exist
	errExists   = errors.New("exists")    // returned by create for a file that exists
)

// store contains files by path. Paths are relative, separated by slashes. All methods wait for the storage until the
// context ends.
type store interface {
	// put writes a file of the given size, and replaces an existing one. Readers see the file only when it is
	// complete.
	put(ctx context.Context, path string, content io.Reader, size int64) error
	// create writes a new file, or returns errExists if the file exists. Of several processes that create the same
	// file, one succeeds.
	create(ctx context.Context, path string, content []byte) error
	// get returns the content of a file, or errNotFound. The caller must close it.
	get(ctx context.Context, path string) (io.ReadCloser, error)
	// remove deletes a file. It returns no error if the file does not exist.
	remove(ctx context.Context, path string) error
	// find returns the paths of all files below a directory, sorted. If the directory does not exist, it returns
	// none. For the directory ".", it may leave out files that are not parts of backups.
	find(ctx context.Context, directory string) ([]string, error)
	// location returns the URL of a path.
	location(path string) string
}
