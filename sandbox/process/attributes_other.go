//go:build !linux

package process

import "syscall"

func attributes() *syscall.SysProcAttr { return nil }
