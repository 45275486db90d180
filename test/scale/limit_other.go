//go:build !linux

package main

import (
	"errors"

	"quorate.dev/test/measure"
)

// limit returns an error, because processor time and memory are measured on Linux only.
func (o *options) limit(*measure.Options) (release func() error, err error) {
	return nil, errors.New("limit the memory: only Linux has cgroups")
}
