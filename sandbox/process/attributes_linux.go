package process

import "syscall"

// attributes returns attributes with which a process is in a new process group, so that Ctrl-C in the terminal does not
// reach it, and with which the kernel kills it when the thread that started it exits.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}
