package process

import "syscall"

// attributes put a child into a new process group, so that Ctrl-C in the terminal does not reach it. The kernel kills
// it when the thread that started it exits.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
