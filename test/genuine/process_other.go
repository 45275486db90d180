//go:build !linux

package genuine

import "syscall"

func endWithParent() *syscall.SysProcAttr { return nil }
