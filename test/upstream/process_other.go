//go:build !linux

package upstream

import "syscall"

func endWithParent() *syscall.SysProcAttr { return nil }
