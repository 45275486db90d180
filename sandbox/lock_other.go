//go:build !linux

package sandbox

import (
	"errors"
	"os"
)

func acquire(string) (*os.File, error) { return nil, errors.New("the sandbox requires Linux") }
