// Package backup is the command `quorate backup`: it creates, lists, restores and deletes backups of an etcd in a
// directory or in S3-compatible storage. The operator runs it in pods; it also works without the operator.
package backup

import (
	"context"
	"errors"
	"io"
)

var (
	errNotFound = errors.New("not found") // a file does not exist
	errExists   = errors.New("exists")    // a file to create exists
)

// store contains files by path. Paths are relative, separated by slashes.
type store interface {
	// put writes a file. It appears only when it is complete, and replaces one of the same path.
	put(ctx context.Context, path string, content io.Reader, size int64) error
	// create writes a new file, or returns errExists. Of several processes that create a file, one succeeds.
	create(ctx context.Context, path string, content []byte) error
	// get returns the content of a file, or errNotFound.
	get(ctx context.Context, path string) (io.ReadCloser, error)
	// remove deletes a file. A file that does not exist is no error.
	remove(ctx context.Context, path string) error
	// find returns the paths of the files in a directory and those below it, sorted. A directory that does not exist has none.
	find(ctx context.Context, directory string) ([]string, error)
	// location returns the URL of a path.
	location(path string) string
}
