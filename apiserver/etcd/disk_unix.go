//go:build linux || darwin

package etcd

import "golang.org/x/sys/unix"

// diskOf returns the state of the file system of a directory.
func diskOf(directory string) (disk, error) {
	var s unix.Statfs_t
	if err := unix.Statfs(directory, &s); err != nil {
		return disk{}, err
	}
	block := int64(s.Bsize)
	return disk{size: int64(s.Blocks) * block, free: int64(s.Bavail) * block}, nil
}
