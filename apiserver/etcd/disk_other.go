//go:build !linux && !darwin

package etcd

import "errors"

func diskOf(string) (disk, error) { return disk{}, errors.ErrUnsupported }
