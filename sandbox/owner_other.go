//go:build !unix

package sandbox

import "io/fs"

// isOwn returns true: the sandbox does not run on this system.
func isOwn(fs.FileInfo) bool { return true }
